"""The values of trials as CSV, what matters among them, and their picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serving.cli.trials.trial_plot import draw_trials
from serving.cli.trials.trial_table import TrialTable
from serving.errors import FailedPrecondition
from serving.gateway.api.studies.trial_rows import TrialRow
from tuning.space import Parameter, ParameterKind, Scale, SearchSpace
from tuning.study import Goal, Metric, Study

RATE = Parameter(name="rate", kind=ParameterKind.DOUBLE, scale=Scale.LOG, minimum=0.001, maximum=1.0)
KERNEL = Parameter(name="kernel", kind=ParameterKind.CATEGORICAL, values=("rbf", "poly, or not"))


def build_study(goal: Goal = Goal.MAXIMIZE) -> Study:
    return Study(uid="u", space=SearchSpace((RATE, KERNEL)), metrics=(Metric("loss", goal),))


def row(number: int, value: float | None, state: str = "SUCCEEDED", **fields: Any) -> TrialRow:
    defaults = {
        "step": 1,
        "parameters": {"rate": 0.5 / number, "kernel": "rbf"},
        "seconds": 2.0,
        "reason": "",
    }
    return TrialRow(number=number, state=state, value=value, **{**defaults, **fields})


ROWS = [row(1, 0.25), row(2, None, "FAILED"), row(3, 0.0), row(4, 0.5), row(5, 0.9, "RUNNING"), row(6, 0.5)]


def test_csv_has_all_digits_and_quotes() -> None:
    kernel = {"rate": 0.1 + 0.2, "kernel": "poly, or not"}
    failed = row(2, None, "FAILED", seconds=None, reason="no\nmemory")
    table = TrialTable(build_study(), [row(1, 0.1 + 0.2, parameters=kernel), failed])

    assert table.format_csv() == (
        "trial,state,loss,step,rate,kernel,seconds,reason\n"
        '1,SUCCEEDED,0.30000000000000004,1,0.30000000000000004,"poly, or not",2.000,\n'
        '2,FAILED,,1,0.25,rbf,,"no\nmemory"\n'
    )


def test_importance_of_the_only_parameter_that_matters() -> None:
    rows = [
        row(number, number / 20, parameters={"rate": number / 20, "kernel": KERNEL.values[number % 2]})
        for number in range(1, 20)
    ]
    shares = TrialTable(build_study(), rows).measure_importance()

    assert shares["rate"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    assert TrialTable(build_study(), rows[:2]).measure_importance() == {}


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    draw_trials(TrialTable(build_study(), ROWS), "job", tmp_path / "trials.png")

    assert (tmp_path / "trials.png").read_bytes().startswith(b"\x89PNG")


def test_there_is_no_picture_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="nothing to draw"):
        draw_trials(TrialTable(build_study(), [ROWS[1]]), "job", tmp_path / "trials.png")
