"""Studies and trials as real clients write them."""

from __future__ import annotations

from typing import Any

import pytest

from serving.errors import InvalidArgument
from serving.resources import resource_from_json
from serving.study_resources import (
    CompleteTrialRequest,
    Duration,
    IntegerValueSpec,
    MeasurementBody,
    ParentIntValueSpec,
    StudyBody,
    TrialBody,
)


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"elapsed_time": {"seconds": 12}}, Duration(seconds="12")),
        ({"elapsedTime": {"seconds": "12", "nanos": 5}}, Duration(seconds="12", nanos=5)),
        ({"elapsedTime": "3.5s"}, "3.5s"),
        ({"elapsedTime": None}, ""),
        ({}, ""),
    ],
)
def test_a_duration_is_a_text_or_an_object(sent: dict[str, Any], read: object) -> None:
    assert resource_from_json(MeasurementBody, sent).elapsed_time == read


def test_integers_come_as_numbers_and_as_texts() -> None:
    """Also those in lists."""
    sent = {
        "study_config": {
            "parameters": [
                {
                    "integer_value_spec": {"min_value": 1, "max_value": "3"},
                    "child_parameter_specs": [{"parent_int_values": {"values": [1, "2"]}}],
                }
            ]
        }
    }

    config = resource_from_json(StudyBody, sent).study_config

    assert config is not None
    (parameter,) = config.parameters
    assert parameter.integer_value_spec == IntegerValueSpec(min_value="1", max_value="3")
    assert parameter.child_parameter_specs[0].parent_int_values == ParentIntValueSpec(values=("1", "2"))


def test_zero_is_a_value_and_null_is_none() -> None:
    trial = resource_from_json(
        TrialBody, {"parameters": [{"parameter": "x", "floatValue": 0, "stringValue": None}]}
    )

    assert trial.parameters[0].float_value == 0
    assert trial.parameters[0].string_value is None
    assert not resource_from_json(CompleteTrialRequest, {"infeasible_reason": None}).infeasible_reason


def test_an_unknown_field_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidArgument, match=r'"range" at "studyConfig.parameters\[0\]"'):
        resource_from_json(StudyBody, {"studyConfig": {"parameters": [{"range": 1}]}})
