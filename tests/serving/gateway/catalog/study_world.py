"""A state with a study, and the rules at work on it."""

from __future__ import annotations

from typing import Any

from serving.gateway.catalog import studies, trials
from serving.gateway.catalog.study_checks import read_study
from serving.gateway.state.study_records import StudyOperationRecord, StudySnapshot
from serving.names import StudyName
from serving.resources import resource_from_json
from serving.study_resources import StudyConfig, TrialBody
from tests.serving.gateway.catalog_world import World
from tuning.space import Value
from tuning.study import Measurement, Trial

NAME = StudyName("p", "here", "s")
CONFIG: dict[str, Any] = {
    "metrics": [{"metric": "loss", "goal": "MINIMIZE"}],
    "parameters": [
        {"parameter": "x", "type": "DOUBLE", "doubleValueSpec": {"minValue": 0, "maxValue": 1}},
        {"parameter": "depth", "type": "INTEGER", "integerValueSpec": {"minValue": "1", "maxValue": "8"}},
    ],
}


class StudyWorld(World):
    """The study has two parameters and one metric, unless it is given another configuration."""

    def __init__(self, config: dict[str, Any] = CONFIG, **more: Any) -> None:
        super().__init__()
        study = read_study(resource_from_json(StudyConfig, config))
        self.do(studies.create_study, NAME, study, most=0, **more)

    @property
    def snapshot(self) -> StudySnapshot:
        return self.state.studies[NAME]

    def trial(self, number: int) -> Trial:
        return trials.get_trial(self.state, NAME, number)

    def request(self, x: float = 0.5, **fields: Any) -> Trial:
        """A trial that a client creates."""
        parameters = [{"parameter": "x", "floatValue": x}, {"parameter": "depth", "intValue": 3}]
        body = resource_from_json(TrialBody, {"parameters": parameters, **fields})
        created: Trial = self.do(trials.create_trial, NAME, body)
        return created

    def suggest(self, client: str, count: int = 1, *, used_up: bool = False) -> StudyOperationRecord:
        """As many new points as are missing."""
        missing = trials.count_trials_to_suggest(self.snapshot, client, count)
        operation: StudyOperationRecord = self.do(
            trials.suggest_trials,
            NAME,
            client,
            count,
            uid=self.snapshot.record.study.uid,
            last_trial=self.snapshot.record.last_trial,
            points=[] if used_up else [point(number) for number in range(missing)],
            started_at=1.0,
            used_up=used_up,
        )
        return operation

    def measure(self, number: int, step: int, loss: float) -> Trial:
        changed: Trial = self.do(trials.add_measurement, NAME, number, Measurement(step, 0.0, {"loss": loss}))
        return changed

    def complete(self, number: int, **fields: Any) -> Trial:
        ended: Trial = self.do(trials.complete_trial, NAME, number, **fields)
        return ended


def point(number: int) -> dict[str, Value]:
    return {"x": number / 1000, "depth": 1}
