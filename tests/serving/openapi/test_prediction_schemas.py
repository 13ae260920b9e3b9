"""The bodies that models take and answer, held against bodies."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec, with_bare_answers
from serving.openapi import prediction_schemas


def graph(
    *inputs: TensorSpec, outputs: tuple[TensorSpec, ...] = (TensorSpec("y", "FP32", (-1, 2)),)
) -> ModelSchema:
    return ModelSchema("tensorflow_savedmodel", {DEFAULT_SIGNATURE: ModelSignature(inputs, outputs)})


def table(*inputs: TensorSpec, platform: str = "sklearn", strict: bool = True) -> ModelSchema:
    outputs = (TensorSpec("predictions", "INT64", (-1,)),)
    return ModelSchema(platform, {DEFAULT_SIGNATURE: ModelSignature(inputs, outputs)}, strict=strict)


IMAGE = graph(TensorSpec("x", "FP32", (-1, 2, 3)))
TEXTS = graph(
    TensorSpec("s", "BYTES", (-1,)), TensorSpec("n", "INT64", (-1, -1)), TensorSpec("b", "BOOL", (-1,))
)
PAIR = graph(TensorSpec("x", "FP32", (2, 1)))
NUMBERS = table(TensorSpec("instances", "FP64", (-1, 2)))
TREES = table(TensorSpec("instances", "FP64", (-1, 2)), platform="xgboost")
MIXED = table(TensorSpec("age", "FP64", (-1,)), TensorSpec("city", "BYTES", (-1,)))
ORDERED = table(TensorSpec("column-0", "FP64", (-1,)), TensorSpec("column-1", "BYTES", (-1,)))
ROUTINE = table(TensorSpec("instances", "BYTES", None), platform="custom", strict=False)
UNNAMED = ModelSchema(
    "tensorflow_savedmodel",
    {"a": IMAGE.signatures[DEFAULT_SIGNATURE], "b": PAIR.signatures[DEFAULT_SIGNATURE]},
    "",
)


@pytest.mark.parametrize(
    ("schema", "instances", "fits"),
    [
        (IMAGE, [[[1, 2, 3], [4, 5, 6.5]]], True),
        (IMAGE, [{"x": [[1, 2, 3], [4, 5, 6]]}], True),
        (IMAGE, [[[1, 2, 3]]], False),
        (IMAGE, [[[1, 2, "3"], [4, 5, 6]]], False),
        (IMAGE, [], False),
        (TEXTS, [{"s": "a", "n": [1, 2], "b": True}, {"s": {"b64": "AA=="}, "n": [], "b": False}], True),
        (TEXTS, [{"s": "a", "n": [1.5], "b": True}], False),
        (TEXTS, [{"s": "a", "n": [1]}], False),
        (PAIR, [[1], [2]], True),
        (PAIR, [[1]], False),
        (NUMBERS, [[1, 2.5]], True),
        (NUMBERS, [[1, None]], False),
        (NUMBERS, [[1, 2, 3]], False),
        (TREES, [[1, None]], True),
        (MIXED, [{"age": 3, "city": "x"}, {"age": 4, "city": "y"}], True),
        (MIXED, [[4, "y"]], True),
        (MIXED, [{"age": 3, "city": "x"}, [4, "y"]], False),
        (MIXED, [{"age": 3}], False),
        (MIXED, [["x", 3]], False),
        (ORDERED, [[1, "x"]], True),
        (ORDERED, [{"column-0": 1, "column-1": "x"}], False),
        (ROUTINE, [{"any": ["thing"]}, None], True),
    ],
)
def test_a_request(schema: ModelSchema, instances: Any, fits: bool) -> None:
    assert (
        jsonschema_rs.is_valid(prediction_schemas.build_request_schema(schema), {"instances": instances})
        is fits
    )


@pytest.mark.parametrize(
    ("schema", "predictions", "fits"),
    [
        (IMAGE, [{"y": [0.5, None]}], True),
        (IMAGE, [[0.5, 1]], False),
        (NUMBERS, [1], True),
        (NUMBERS, ["1"], False),
        (ROUTINE, [{"sum": 1}, "x"], True),
    ],
)
def test_an_answer(schema: ModelSchema, predictions: Any, fits: bool) -> None:
    assert (
        jsonschema_rs.is_valid(prediction_schemas.build_response_schema(schema), {"predictions": predictions})
        is fits
    )


def test_an_only_output_without_its_name() -> None:
    """In the shape and in the example; where a signature has several, they keep theirs."""
    several = (TensorSpec("y", "FP32", (-1,)), TensorSpec("z", "FP32", (-1,)))
    known = ModelSchema(PAIR.platform, PAIR.signatures, example=[1.0], answer={"y": [0.5, 0.5]})
    bare = with_bare_answers(known, bare=True)

    assert prediction_schemas.example_response(bare) == {"predictions": [[0.5, 0.5], [0.5, 0.5]]}
    assert jsonschema_rs.is_valid(
        prediction_schemas.build_response_schema(bare), prediction_schemas.example_response(bare)
    )
    assert not jsonschema_rs.is_valid(
        prediction_schemas.build_response_schema(bare), prediction_schemas.example_response(known)
    )
    assert with_bare_answers(known, bare=False) is known
    assert with_bare_answers(NUMBERS, bare=True) is NUMBERS
    both = with_bare_answers(graph(*IMAGE.signatures[DEFAULT_SIGNATURE].inputs, outputs=several), bare=True)
    assert jsonschema_rs.is_valid(
        prediction_schemas.build_response_schema(both), {"predictions": [{"y": 1, "z": 2}]}
    )


def test_other_fields_of_a_request() -> None:
    """A graph takes the name of a signature, a routine anything."""
    named = {"signature_name": "a", "instances": [[[1, 2, 3], [4, 5, 6]]]}

    assert not jsonschema_rs.is_valid(
        prediction_schemas.build_request_schema(NUMBERS), {"instances": [[1, 2]], "more": 1}
    )
    assert jsonschema_rs.is_valid(
        prediction_schemas.build_request_schema(ROUTINE), {"instances": [1], "more": 1}
    )
    assert jsonschema_rs.is_valid(prediction_schemas.build_request_schema(UNNAMED), named)
    assert not jsonschema_rs.is_valid(
        prediction_schemas.build_request_schema(UNNAMED), {**named, "signature_name": "b"}
    )
    assert not jsonschema_rs.is_valid(
        prediction_schemas.build_request_schema(UNNAMED), {"instances": named["instances"]}
    )
    assert not jsonschema_rs.is_valid(prediction_schemas.build_request_schema(IMAGE), named)


def test_an_example_has_as_many_rows_as_there_must_be() -> None:
    known = ModelSchema(PAIR.platform, PAIR.signatures, example=[1.0], answer={"y": [0.5, 0.5]})

    asked, answered = prediction_schemas.example_request(known), prediction_schemas.example_response(known)

    assert asked == {"instances": [[1.0], [1.0]]}
    assert jsonschema_rs.is_valid(prediction_schemas.build_request_schema(known), asked)
    assert jsonschema_rs.is_valid(prediction_schemas.build_response_schema(known), answered)


def test_a_long_example_is_left_to_the_schema_of_its_version() -> None:
    long = ModelSchema(IMAGE.platform, IMAGE.signatures, example=[0.0] * 10_000, answer=[0.0] * 10_000)

    assert (prediction_schemas.example_request(long), prediction_schemas.example_response(long)) == (
        None,
        None,
    )
    assert (prediction_schemas.example_request(IMAGE), prediction_schemas.example_response(IMAGE)) == (
        None,
        None,
    )
