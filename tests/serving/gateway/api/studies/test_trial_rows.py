"""Rows of trials are what the API has rendered, the best first."""

from __future__ import annotations

import pytest

from serving.gateway.api.studies.rendering import TrialRenderer
from serving.gateway.api.studies.trial_rows import TrialRow, read_curve, read_row, sort_rows
from serving.gateway.state.study_records import StudyRecord
from serving.names import StudyName
from tuning.space import Parameter, ParameterKind, SearchSpace, Value
from tuning.study import Goal, Measurement, Metric, Study, Trial, TrialState

PARAMETERS = (
    Parameter(name="rate", kind=ParameterKind.DOUBLE, minimum=0.0, maximum=1.0),
    Parameter(name="depth", kind=ParameterKind.INTEGER, minimum=1, maximum=9),
    Parameter(name="kernel", kind=ParameterKind.CATEGORICAL, values=("rbf", "poly")),
)
POINT: dict[str, Value] = {"rate": 0.25, "depth": 3, "kernel": "poly"}


def build_study(goal: Goal = Goal.MAXIMIZE) -> Study:
    return Study(uid="u", space=SearchSpace(PARAMETERS), metrics=(Metric("loss", goal),))


def read(trial: Trial) -> tuple[TrialRow, list[tuple[int, float]]]:
    """A trial as it comes back from the answer that has it."""
    study = build_study()
    name = StudyName("p", "here", "s")
    rendered = TrialRenderer(StudyRecord(name=name, study=study, create_time="")).render(trial)
    return read_row(study, rendered), read_curve(study, rendered)


def measured(step: int, loss: float) -> Measurement:
    return Measurement(step, float(step), {"loss": loss})


def test_a_completed_trial() -> None:
    row, curve = read(
        Trial(
            number=7,
            parameters=POINT,
            state=TrialState.COMPLETED,
            measurements=(measured(1, 0.5), Measurement(2, 2.0, {"other": 1.0}), measured(3, 0.0)),
            final=measured(3, 0.0),
            started_at=100.0,
            ended_at=104.0,
        )
    )

    assert row == TrialRow(7, "SUCCEEDED", 0.0, 3, POINT, 4.0, "")
    assert curve == [(1, 0.5), (3, 0.0)]


def test_a_trial_that_runs_has_the_value_that_it_has_reached() -> None:
    row, curve = read(Trial(number=1, parameters=POINT, measurements=(measured(1, 0.5),), started_at=100.0))

    assert (row.state, row.value, row.step, row.seconds) == ("RUNNING", 0.5, 1, None)
    assert curve == [(1, 0.5)]
    assert read(Trial(number=2, parameters=POINT))[0].value is None


def test_a_failed_trial_has_a_reason_and_no_value() -> None:
    row, _ = read(
        Trial(
            number=1,
            parameters=POINT,
            state=TrialState.COMPLETED,
            measurements=(measured(1, 0.5),),
            infeasible=True,
            infeasible_reason="no memory",
        )
    )

    assert (row.state, row.value, row.reason) == ("FAILED", None, "no memory")


@pytest.mark.parametrize(
    ("goal", "expected"), [(Goal.MAXIMIZE, [4, 6, 1, 3, 5, 2]), (Goal.MINIMIZE, [3, 1, 4, 6, 5, 2])]
)
def test_the_best_is_first_and_failed_ones_are_last(goal: Goal, expected: list[int]) -> None:
    values = [
        (1, 0.25, "SUCCEEDED"),
        (2, None, "FAILED"),
        (3, 0.0, "SUCCEEDED"),
        (4, 0.5, "SUCCEEDED"),
        (5, 0.9, "RUNNING"),
        (6, 0.5, "SUCCEEDED"),
    ]
    rows = [TrialRow(number, state, value, 1, POINT, 2.0, "") for number, value, state in values]

    assert [one.number for one in sort_rows(build_study(goal), rows)] == expected
