from __future__ import annotations

import msgspec

from tests.tuning.test_study import STUDY
from tuning.messages import KnownTrial, SuggestionRequest, TuningRequest, read_known_trials
from tuning.study import Measurement, Trial, TrialState


def completed(number: int, **changes: object) -> Trial:
    trial = Trial(number=number, parameters={"x": 0.5}, state=TrialState.COMPLETED)
    return msgspec.structs.replace(trial, **changes)


def test_a_request_reads_back() -> None:
    request = SuggestionRequest(STUDY, (KnownTrial(1, {"x": 1.0}, (2.0,)), KnownTrial(2, {"x": 2.0})), 2, 3)

    assert msgspec.json.decode(msgspec.json.encode(request), type=TuningRequest) == request


def test_trials_are_read_as_suggestions_see_them() -> None:
    measured = completed(3, final=Measurement(9, values={"loss": 1.5, "other": 2.0}))
    trials = [
        measured,
        Trial(number=1, parameters={"x": 0.5}, state=TrialState.REQUESTED),
        completed(2, final=Measurement(values={"loss": 1.0}), infeasible=True),
        completed(4, final=Measurement(values={"other": 1.0})),
    ]

    assert read_known_trials(STUDY, trials) == (
        KnownTrial(1, {"x": 0.5}),
        KnownTrial(2, {"x": 0.5}, infeasible=True),
        KnownTrial(3, {"x": 0.5}, (1.5,)),
        KnownTrial(4, {"x": 0.5}, infeasible=True),
    )
