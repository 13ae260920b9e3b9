"""Trials as the page has them."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest

from serving.errors import FailedPrecondition
from serving.gateway.console.pages.trials import build_trial_table
from serving.gateway.console.rendering import PageRenderer


def make_job(goal: str, *values: float, **parameters: str) -> dict[str, Any]:
    """Trials 1, 2, ... with these values, the best first as the API lists them."""
    trials = [
        {
            "trialId": str(number),
            "state": "SUCCEEDED",
            "hyperparameters": {**parameters, "rate": f"0.{number}"},
            "finalMetric": {"objectiveValue": value, "trainingStep": "3"},
        }
        for number, value in enumerate(values, 1)
    ]
    trials.sort(key=lambda one: one["finalMetric"]["objectiveValue"], reverse=goal != "MINIMIZE")  # type: ignore[index]
    return {
        "jobId": "t",
        "trainingInput": {"hyperparameters": {"goal": goal, "hyperparameterMetricTag": "score"}},
        "trainingOutput": {"trials": trials},
    }


@pytest.mark.parametrize(("goal", "best"), [("MAXIMIZE", [2.0, 2.0, 5.0]), ("MINIMIZE", [2.0, 1.0, 1.0])])
def test_the_best_so_far_follows_the_order_of_trials(goal: str, best: list[float]) -> None:
    rows = sorted(build_trial_table(make_job(goal, 2.0, 1.0, 5.0)).rows, key=lambda row: row.number)
    assert [row.best for row in rows] == best


def test_other_jobs_have_no_trials() -> None:
    with pytest.raises(FailedPrecondition, match="no tuning job"):
        build_trial_table({"jobId": "t", "trainingInput": {}})


def test_values_of_trials_are_text_and_reach_the_script_whole() -> None:
    word = "<script>\" ' \u202e" + "x" * 30_000
    table = build_trial_table(make_job("MAXIMIZE", 1.0, word=word))
    values = {
        "project": "p", "id": "t", "table": table, "has_ended": True, "may_deploy": True,
        "anti_forgery_token": "",
    }  # fmt: skip
    page = PageRenderer("static/x").render("_trials.html", values).text
    assert "<script>" not in page
    data = re.search(r'data-trials="([^"]*)"', page)
    assert data is not None
    assert json.loads(unescape(data[1]))["rows"][0]["parameters"]["word"] == word
    assert "?trial=best" in page
