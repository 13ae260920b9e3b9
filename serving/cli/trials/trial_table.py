"""The trials of a tuning job, as the studies API tells of them."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.cli.api_client import ApiClient
from serving.errors import FailedPrecondition
from tuning.messages import KnownTrial
from tuning.optimal import find_sign
from tuning.space import Value, format_value
from tuning.study import Study


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial; `value` is None where it has none yet, or failed. `seconds` is how long it took."""

    number: int
    state: str
    value: float | None
    step: int
    parameters: Mapping[str, Value]
    seconds: float | None
    reason: str

    def to_known_trial(self) -> KnownTrial:
        is_failed = self.state == "FAILED"
        objectives = (self.value,) if self.value is not None and self.state != "RUNNING" else ()
        return KnownTrial(self.number, dict(self.parameters), objectives, is_failed)


@dataclass(frozen=True, slots=True)
class TrialTable:
    """`rows` are best first, then those that run, then those that failed."""

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

        known = tuple(row.to_known_trial() for row in sorted(self.rows, key=lambda row: row.number))
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
    found = client.call("GET", f"{name}/trials").get("trials", [])
    return TrialTable(study, sort_rows(study, [_read_row(study, trial) for trial in found]))


def sort_rows(study: Study, rows: Sequence[TrialRow]) -> list[TrialRow]:
    sign = find_sign(study.metrics[0])
    ranks = {"FAILED": 2, "RUNNING": 1}

    def rank(row: TrialRow) -> tuple[int, float, int]:
        return ranks.get(row.state, 0), -sign * (row.value or 0.0), row.number

    return sorted(rows, key=rank)


def _read_row(study: Study, trial: Mapping[str, Any]) -> TrialRow:
    metric = study.metrics[0].name
    measured = [*trial.get("measurements", ()), *filter(None, [trial.get("finalMeasurement")])]
    last = next((one for one in reversed(measured) if metric in _read_metrics(one)), None)
    is_failed = trial.get("trialInfeasible", False)
    return TrialRow(
        number=int(trial["name"].rpartition("/")[2]),
        state="FAILED" if is_failed else "SUCCEEDED" if trial["state"] == "COMPLETED" else "RUNNING",
        value=None if last is None or is_failed else _read_metrics(last)[metric],
        step=int(last.get("stepCount", 0)) if last is not None else 0,
        parameters={one["parameter"]: _read_value(one) for one in trial["parameters"]},
        seconds=_read_seconds(trial),
        reason=trial.get("infeasibleReason", ""),
    )


def _read_metrics(measurement: Mapping[str, Any]) -> dict[str, float]:
    return {one["metric"]: float(one["value"]) for one in measurement.get("metrics", ())}


def _read_value(parameter: Mapping[str, Any]) -> Value:
    if "floatValue" in parameter:
        return float(parameter["floatValue"])
    if "intValue" in parameter:
        return int(parameter["intValue"])
    return str(parameter["stringValue"])


def _read_seconds(trial: Mapping[str, Any]) -> float | None:
    if not trial.get("endTime"):
        return None
    begin, end = (datetime.datetime.fromisoformat(trial[field]) for field in ("startTime", "endTime"))
    return (end - begin).total_seconds()
