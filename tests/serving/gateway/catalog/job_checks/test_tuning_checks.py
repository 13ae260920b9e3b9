"""The tuning part of new training jobs: what is taken, and what is refused with which field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.errors import InvalidArgument
from serving.gateway.catalog.job_checks.tuning_checks import DEFAULT_TAG, check_tuning, read_plan, read_study
from serving.resources import HyperparameterSpec, resource_from_json
from tuning.decide import TuningPlan
from tuning.space import Parameter, ParameterKind, Scale
from tuning.study import Algorithm, Goal, StoppingRule

CONFIGS = json.loads((Path(__file__).parents[4] / "data" / "tuning_configs.json").read_text())
RATE: dict[str, Any] = {"parameterName": "rate", "type": "DOUBLE", "minValue": 0.1, "maxValue": 1}
LAYERS: dict[str, Any] = {"parameterName": "layers", "type": "INTEGER", "minValue": 1, "maxValue": 3}
LONG = "é" * 999
KERNEL: dict[str, Any] = {
    "parameterName": "kernel",
    "type": "CATEGORICAL",
    "categoricalValues": ["rbf", "linear"],
}
BATCH: dict[str, Any] = {"parameterName": "batch", "type": "DISCRETE", "discreteValues": [16, 32, 64.5]}


def read(**fields: Any) -> HyperparameterSpec:
    return resource_from_json(HyperparameterSpec, {"params": [RATE], **fields})


def test_all_types_and_scales_are_read() -> None:
    log = RATE | {"parameterName": "log", "scaleType": "UNIT_LOG_SCALE"}
    reverse = RATE | {"parameterName": "reverse", "scaleType": "UNIT_REVERSE_LOG_SCALE"}
    study = read_study(read(params=[RATE, log, reverse, LAYERS, KERNEL, BATCH]))

    assert study.space.parameters == (
        Parameter(name="rate", kind=ParameterKind.DOUBLE, minimum=0.1, maximum=1.0),
        Parameter(name="log", kind=ParameterKind.DOUBLE, scale=Scale.LOG, minimum=0.1, maximum=1.0),
        Parameter(
            name="reverse", kind=ParameterKind.DOUBLE, scale=Scale.REVERSE_LOG, minimum=0.1, maximum=1.0
        ),
        Parameter(name="layers", kind=ParameterKind.INTEGER, minimum=1, maximum=3),
        Parameter(name="kernel", kind=ParameterKind.CATEGORICAL, values=("rbf", "linear")),
        Parameter(name="batch", kind=ParameterKind.DISCRETE, values=(16.0, 32.0, 64.5)),
    )


def test_defaults_are_those_of_the_service() -> None:
    study = read_study(read())

    assert study.metrics[0].name == DEFAULT_TAG
    assert study.metrics[0].goal is Goal.MAXIMIZE
    assert study.algorithm is Algorithm.GAUSSIAN_PROCESS_BANDIT
    assert study.stopping_rule is StoppingRule.NONE
    assert read_plan(read()) == TuningPlan(max_trials=1, max_parallel=1)


def test_names_of_the_api_are_read_in_any_case() -> None:
    given = read(goal="minimize", algorithm="random_search", enableTrialEarlyStopping=True)
    study = read_study(given)

    assert study.metrics[0].goal is Goal.MINIMIZE
    assert study.algorithm is Algorithm.RANDOM_SEARCH
    assert study.stopping_rule is StoppingRule.MEDIAN


def test_no_more_trials_run_in_parallel_than_there_are() -> None:
    assert read_plan(read(maxTrials=3, maxParallelTrials=9)) == TuningPlan(max_trials=3, max_parallel=3)


def test_bounds_that_are_left_out_are_zero_and_may_be_equal() -> None:
    check_tuning(read(params=[{"parameterName": "a", "type": "DOUBLE", "maxValue": 1}]))
    check_tuning(read(params=[RATE | {"maxValue": 0.1}]))


def test_bounds_of_a_discrete_parameter_are_ignored() -> None:
    check_tuning(read(params=[BATCH | {"minValue": 5, "maxValue": 1}]))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"params": []}, "params"),
        ({"params": [RATE] * 201}, "params"),
        (
            {
                "params": [
                    KERNEL | {"parameterName": f"k{n}", "categoricalValues": ["é" * 999]} for n in range(20)
                ]
            },
            "params",
        ),
        ({"params": [RATE, RATE]}, "params[1].parameter_name"),
        ({"params": [RATE | {"parameterName": ""}]}, "params[0].parameter_name"),
        ({"params": [RATE | {"parameterName": "a=b"}]}, "params[0].parameter_name"),
        ({"params": [RATE | {"parameterName": "a b"}]}, "params[0].parameter_name"),
        ({"params": [RATE | {"parameterName": "job-dir"}]}, "params[0].parameter_name"),
        ({"params": [RATE | {"type": ""}]}, "params[0].type"),
        ({"params": [RATE | {"type": "FLOAT"}]}, "params[0].type"),
        ({"params": [RATE | {"scaleType": "LOG"}]}, "params[0].scale_type"),
        ({"params": [RATE | {"minValue": 2}]}, "params[0].max_value"),
        ({"params": [RATE | {"minValue": 0, "scaleType": "UNIT_LOG_SCALE"}]}, "params[0].scale_type"),
        (
            {"params": [RATE | {"minValue": -1, "scaleType": "UNIT_REVERSE_LOG_SCALE"}]},
            "params[0].scale_type",
        ),
        ({"params": [RATE | {"categoricalValues": ["a"]}]}, "params[0].categorical_values"),
        ({"params": [RATE | {"discreteValues": [1]}]}, "params[0].discrete_values"),
        ({"params": [RATE | {"maxValue": 1e400}]}, "params[0].max_value"),
        ({"params": [LAYERS | {"minValue": 0.5}]}, "params[0].min_value"),
        ({"params": [LAYERS | {"maxValue": 1e300}]}, "params[0].max_value"),
        ({"params": [KERNEL | {"categoricalValues": []}]}, "params[0].categorical_values"),
        ({"params": [KERNEL | {"categoricalValues": ["a", "a"]}]}, "params[0].categorical_values"),
        ({"params": [KERNEL | {"categoricalValues": ["a\0"]}]}, "params[0].categorical_values"),
        ({"params": [KERNEL | {"maxValue": 1}]}, "params[0].max_value"),
        ({"params": [KERNEL | {"scaleType": "UNIT_LOG_SCALE"}]}, "params[0].scale_type"),
        ({"params": [BATCH | {"discreteValues": []}]}, "params[0].discrete_values"),
        ({"params": [BATCH | {"discreteValues": list(range(1001))}]}, "params[0].discrete_values"),
        ({"params": [BATCH | {"discreteValues": [2, 1]}]}, "params[0].discrete_values"),
        ({"params": [BATCH | {"discreteValues": [1, 1]}]}, "params[0].discrete_values"),
        (
            {"params": [BATCH | {"discreteValues": [0, 1], "scaleType": "UNIT_LOG_SCALE"}]},
            "params[0].scale_type",
        ),
        ({"params": [LAYERS, RATE], "algorithm": "GRID_SEARCH"}, "params[1].type"),
        ({"algorithm": "BEST"}, "algorithm"),
        ({"goal": "BEST"}, "goal"),
        ({"hyperparameterMetricTag": "a\0"}, "hyperparameter_metric_tag"),
        ({"maxTrials": -1}, "max_trials"),
        ({"maxTrials": 1001}, "max_trials"),
        ({"maxParallelTrials": -1}, "max_parallel_trials"),
        ({"maxFailedTrials": -1}, "max_failed_trials"),
        ({"resumePreviousJobId": "no/job"}, "resume_previous_job_id"),
    ],
)
def test_what_is_wrong_is_refused_with_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_tuning(read(**fields))

    assert caught.value.field == f"training_input.hyperparameters.{field}"


@pytest.mark.parametrize("config", CONFIGS, ids=[config["source"] for config in CONFIGS])
def test_the_tuning_configurations_of_googles_samples_are_taken(config: dict[str, Any]) -> None:
    given = resource_from_json(HyperparameterSpec, config["trainingInput"]["hyperparameters"])
    check_tuning(given)
    study = read_study(given)

    assert [one.name for one in study.space.parameters] == [one.parameter_name for one in given.params]
