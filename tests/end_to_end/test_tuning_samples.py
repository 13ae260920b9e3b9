"""The tuning configurations of Google's samples, with programs that only report: each as a small grid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.jobs import finished, submit
from tests.end_to_end.training_jobs import training_job, write_wheel
from tests.server import Server

CONFIGS = json.loads((Path(__file__).parents[1] / "data" / "tuning_configs.json").read_text())
# Takes any arguments, and reports how many of them are tuned.
PROGRAM = """
    import os, sys, hypertune

    tuned = [word for word in sys.argv[1:] if word.startswith("--") and "=" in word]
    tag = os.environ["CLOUD_ML_HP_METRIC_TAG"]
    hypertune.HyperTune().report_hyperparameter_tuning_metric(tag, len(tuned), 1)
"""


def make_grid(spec: dict[str, Any]) -> dict[str, Any]:
    """The same search over the ends of its ranges, of which two trials are run."""
    params = [make_discrete(param) if param["type"] == "DOUBLE" else param for param in spec["params"]]
    return {**spec, "params": params, "algorithm": "GRID_SEARCH", "maxTrials": 2, "maxParallelTrials": 2}


def make_discrete(param: dict[str, Any]) -> dict[str, Any]:
    ends = [param["minValue"], param["maxValue"]]
    others = {key: value for key, value in param.items() if key not in ("minValue", "maxValue")}
    return {**others, "type": "DISCRETE", "discreteValues": ends}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(tmp_path_factory.mktemp("wheel"), PROGRAM)


@pytest.mark.parametrize("number", range(len(CONFIGS)), ids=[config["source"] for config in CONFIGS])
def test_a_configuration_runs_as_a_grid(server: Server, wheel: Path, number: int, tmp_path: Path) -> None:
    spec = CONFIGS[number]["trainingInput"]["hyperparameters"]
    body = training_job(f"sample_{number}", wheel, jobDir=str(tmp_path), hyperparameters=make_grid(spec))
    ended = finished(server, submit(server, body))

    assert ended["state"] == "SUCCEEDED", ended
    trials = ended["trainingOutput"]["trials"]
    names = [param["parameterName"] for param in spec["params"]]
    assert [list(trial["hyperparameters"]) for trial in trials] == [names, names]
    assert [trial["finalMetric"]["objectiveValue"] for trial in trials] == [len(names)] * 2
