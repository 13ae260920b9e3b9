"""What is read of studies, trials and measurements, and what is refused with its field."""

from __future__ import annotations

from typing import Any

import pytest

from serving.errors import InvalidArgument
from serving.gateway.catalog.study_checks import read_measurement, read_study
from serving.resources import resource_from_json
from serving.study_resources import MeasurementBody, StudyConfig
from tuning.space import Parameter, ParameterKind, Scale
from tuning.study import Algorithm, Goal, Measurement, Metric, StoppingRule, Study

METRICS = [{"metric": "loss", "goal": "MINIMIZE"}]
X = {"parameter": "x", "type": "DOUBLE", "doubleValueSpec": {"minValue": -1, "maxValue": 1}}
N = {"parameter": "n", "type": "INTEGER", "integerValueSpec": {"minValue": 1, "maxValue": "3"}}
KIND = {"parameter": "kind", "type": "CATEGORICAL", "categoricalValueSpec": {"values": ["tree", "linear"]}}
RATE = {"parameter": "rate", "type": "DISCRETE", "discreteValueSpec": {"values": [0.5, 1]}}


def read(*parameters: dict[str, Any], **fields: Any) -> Study:
    config = {"metrics": METRICS, "parameters": list(parameters), **fields}
    return read_study(resource_from_json(StudyConfig, config))


def test_parameters_of_all_types() -> None:
    study = read(X, N, KIND, RATE)

    assert study.space.parameters == (
        Parameter(name="x", kind=ParameterKind.DOUBLE, minimum=-1.0, maximum=1.0),
        Parameter(name="n", kind=ParameterKind.INTEGER, minimum=1, maximum=3),
        Parameter(name="kind", kind=ParameterKind.CATEGORICAL, values=("tree", "linear")),
        Parameter(name="rate", kind=ParameterKind.DISCRETE, values=(0.5, 1.0)),
    )
    assert study.metrics == (Metric("loss", Goal.MINIMIZE),)
    assert isinstance(study.space.parameters[1].minimum, int)


def test_bounds_that_are_left_out_are_zero() -> None:
    """As proto3 leaves zeros out."""
    one, two = read({**X, "doubleValueSpec": {"maxValue": 2}}, {**N, "integerValueSpec": {}}).space.parameters

    assert (one.minimum, one.maximum) == (0.0, 2.0)
    assert (two.minimum, two.maximum) == (0, 0)


@pytest.mark.parametrize(
    ("text", "scale"),
    [
        ("SCALE_TYPE_UNSPECIFIED", Scale.LINEAR),
        ("UNIT_LINEAR_SCALE", Scale.LINEAR),
        ("unit_log_scale", Scale.LOG),
        ("UNIT_REVERSE_LOG_SCALE", Scale.REVERSE_LOG),
    ],
)
def test_scales(text: str, scale: Scale) -> None:
    """Values of enums count in any case."""
    (parameter,) = read({**N, "scale_type": text}).space.parameters

    assert parameter.scale is scale


def test_children_name_the_values_of_their_parent() -> None:
    children = [
        {**X, "parentCategoricalValues": {"values": ["linear"]}},
        {**N, "parameter": "depth", "parent_categorical_values": {"values": ["tree"]}},
    ]
    of_integers = {**RATE, "parentIntValues": {"values": [1, "3"]}}

    kind, n = read(
        {**KIND, "childParameterSpecs": children}, {**N, "childParameterSpecs": [of_integers]}
    ).space.parameters

    assert [(child.name, child.parent_values) for child in kind.children] == [
        ("x", ("linear",)),
        ("depth", ("tree",)),
    ]
    assert n.children[0].parent_values == (1, 3)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        (None, (StoppingRule.NONE, False)),
        ({}, (StoppingRule.NONE, False)),
        ({"medianAutomatedStoppingConfig": {}}, (StoppingRule.MEDIAN, False)),
        ({"decay_curve_stopping_config": {"use_elapsed_time": True}}, (StoppingRule.DECAY_CURVE, True)),
    ],
)
def test_rules_of_early_stopping(config: Any, rule: tuple[StoppingRule, bool]) -> None:
    study = read(X, automatedStoppingConfig=config)

    assert (study.stopping_rule, study.use_elapsed_time) == rule


@pytest.mark.parametrize("text", [None, "ALGORITHM_UNSPECIFIED", "GAUSSIAN_PROCESS_BANDIT"])
def test_the_default_algorithm_is_bayesian(text: str | None) -> None:
    assert read(X, algorithm=text).algorithm is Algorithm.GAUSSIAN_PROCESS_BANDIT


@pytest.mark.parametrize(
    ("parameters", "fields", "field"),
    [
        ([], {}, "parameters"),
        ([X, X], {}, "parameters"),
        ([{**X, "doubleValueSpec": {"minValue": 2, "maxValue": 1}}], {}, "parameters"),
        ([{**X, "scaleType": "UNIT_LOG_SCALE"}], {}, "parameters"),
        ([{**RATE, "discreteValueSpec": {"values": [2, 1]}}], {}, "parameters"),
        ([{**KIND, "childParameterSpecs": [X]}], {}, "parameters"),
        ([{**X, "type": ""}], {}, "parameters[0].type"),
        ([{**X, "type": "TEXT"}], {}, "parameters[0].type"),
        ([N, {**X, "parameter": ""}], {}, "parameters[1].parameter"),
        ([{**X, "scaleType": "CUBIC"}], {}, "parameters[0].scale_type"),
        ([{**X, "type": "INTEGER"}], {}, "parameters[0].double_value_spec"),
        ([{"parameter": "x", "type": "DOUBLE"}], {}, "parameters[0].double_value_spec"),
        ([{**N, "integerValueSpec": {"minValue": "1.5"}}], {}, "parameters[0].integer_value_spec.min_value"),
        (
            [{**N, "integerValueSpec": {"maxValue": str(1 << 63)}}],
            {},
            "parameters[0].integer_value_spec.max_value",
        ),
        (
            [{**KIND, "categoricalValueSpec": {"values": [str(number) for number in range(1001)]}}],
            {},
            "parameters[0].categorical_value_spec.values",
        ),
        (
            [
                {
                    **KIND,
                    "childParameterSpecs": [
                        {
                            **X,
                            "parentIntValues": {"values": []},
                            "parentCategoricalValues": {"values": ["tree"]},
                        }
                    ],
                }
            ],
            {},
            "parameters[0].child_parameter_specs[0].parent_int_values",
        ),
        ([{**X, "parameter": f"x{number}"} for number in range(201)], {}, "parameters"),
        ([X], {"metrics": []}, "metrics"),
        ([X], {"metrics": METRICS * 2}, "metrics"),
        ([X], {"metrics": [{"metric": ""}]}, "metrics[0].metric"),
        ([X], {"metrics": [{"metric": "loss", "goal": "LOW"}]}, "metrics[0].goal"),
        ([X], {"algorithm": "MAGIC"}, "algorithm"),
        ([X], {"algorithm": "GRID_SEARCH"}, "algorithm"),
        (
            [X],
            {
                "automatedStoppingConfig": {
                    "decayCurveStoppingConfig": {},
                    "medianAutomatedStoppingConfig": {},
                }
            },
            "automated_stopping_config",
        ),
    ],
)
def test_a_study_that_cannot_be_is_refused(
    parameters: list[dict[str, Any]], fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read(*parameters, **fields)

    assert caught.value.field == f"study.study_config.{field}"


def test_a_study_without_a_configuration_is_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_study(None)

    assert caught.value.field == "study.study_config.parameters"


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [("1.5s", 1.5), ({"seconds": 12, "nanos": 500_000_000}, 12.5), ({"seconds": "3"}, 3.0), ("", 0.0)],
)
def test_a_measurement(sent: Any, seconds: float) -> None:
    body = {
        "stepCount": "7",
        "elapsedTime": sent,
        "metrics": [{"metric": "loss"}, {"metric": "b", "value": 2}],
    }

    measurement = read_measurement(resource_from_json(MeasurementBody, body), "measurement")

    assert measurement == Measurement(7, seconds, {"loss": 0.0, "b": 2.0})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"metrics": []}, "metrics"),
        ({"metrics": [{"value": 1}]}, "metrics[0].metric"),
        ({"metrics": [{"metric": "loss", "value": "NaN"}]}, "metrics[0].value"),
        ({"metrics": [{"metric": "loss"}, {"metric": "loss"}]}, "metrics[1]"),
        ({"stepCount": -1}, "step_count"),
        ({"stepCount": "many"}, "step_count"),
        ({"elapsedTime": "1"}, "elapsed_time"),
        ({"elapsedTime": "-1s"}, "elapsed_time"),
        ({"elapsedTime": {"seconds": -1}}, "elapsed_time"),
        ({"elapsedTime": {"seconds": "x"}}, "elapsed_time.seconds"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused(fields: dict[str, Any], field: str) -> None:
    body = {"metrics": [{"metric": "loss", "value": 1}], **fields}

    with pytest.raises(InvalidArgument) as caught:
        read_measurement(resource_from_json(MeasurementBody, body), "measurement")

    assert caught.value.field == f"measurement.{field}"


def test_parameters_whose_trials_would_be_large_are_refused() -> None:
    """Each trial has a value of each."""
    values = {"values": ["short", "x" * 1000]}
    kinds = [{**KIND, "parameter": f"k{number}", "categoricalValueSpec": values} for number in range(66)]

    read(*kinds[:65])
    with pytest.raises(InvalidArgument, match="take more than 64 KiB"):
        read(*kinds)
