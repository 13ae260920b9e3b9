"""The trials of a tuning job, as the studies API tells of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.cli.api_client import ApiClient
from serving.errors import FailedPrecondition
from serving.gateway.api.studies.trial_rows import TrialRow, read_row, sort_rows
from tuning.messages import KnownTrial
from tuning.space import format_value
from tuning.study import Study


@dataclass(frozen=True, slots=True)
class TrialTable:
    """`rows` are in the order of `sort_rows`."""

    study: Study
    rows: Sequence[TrialRow]

    @property
    def metric(self) -> str:
        return self.study.metrics[0].name

    @property
    def parameters(self) -> Sequence[str]:
        return [parameter.name for parameter in self.study.space.parameters]

    def format_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        head = ["trial", "state", self.metric, "step", *self.parameters, "seconds", "reason"]
        writer.writerow(head)
        for row in self.rows:
            values = [format_value(row.parameters[name]) for name in self.parameters]
            value = "" if row.value is None else repr(row.value)
            seconds = "" if row.seconds is None else f"{row.seconds:.3f}"
            writer.writerow([row.number, row.state, value, row.step, *values, seconds, row.reason])
        return text.getvalue()

    def measure_importance(self) -> Mapping[str, float]:
        """The share of each parameter in the metric, {} while too few trials have ended."""
        from tuning.algorithms.importance import measure_importance  # noqa: PLC0415  start-up time
        from tuning.messages import ImportanceRequest  # noqa: PLC0415

        known = tuple(_to_known_trial(row) for row in sorted(self.rows, key=lambda row: row.number))
        return measure_importance(ImportanceRequest(self.study, known)).shares


def read_trial_table(client: ApiClient, job: Mapping[str, Any], parent: str) -> TrialTable:
    """Ask for the trials of a job; `parent` is its project. Raises FailedPrecondition for other jobs."""
    from serving.gateway.catalog.study_checks import read_study  # noqa: PLC0415  start-up time
    from serving.resources import resource_from_json  # noqa: PLC0415
    from serving.study_resources import StudyConfig  # noqa: PLC0415

    if not job.get("trainingOutput", {}).get("isHyperparameterTuningJob"):
        raise FailedPrecondition(f"{job['jobId']} is no tuning job: it has no trials.")
    name = f"{parent}/locations/{job['trainingInput']['region']}/studies/{job['jobId']}"
    study = read_study(resource_from_json(StudyConfig, client.call("GET", name)["studyConfig"]))
    found = client.list_resources(f"{name}/trials", "trials", {})
    return TrialTable(study, sort_rows(study, [read_row(study, trial) for trial in found]))


def _to_known_trial(row: TrialRow) -> KnownTrial:
    objectives = (row.value,) if row.value is not None and row.state != "RUNNING" else ()
    return KnownTrial(row.number, dict(row.parameters), objectives, row.state == "FAILED")
