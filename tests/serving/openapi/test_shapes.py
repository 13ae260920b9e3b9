"""The bodies that models take and answer, held against bodies."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from serving.openapi import shapes
from serving.schema import DEFAULT, Schema, Signature, Tensor, as_answered


def graph(*inputs: Tensor, outputs: tuple[Tensor, ...] = (Tensor("y", "FP32", (-1, 2)),)) -> Schema:
    return Schema("tensorflow_savedmodel", {DEFAULT: Signature(inputs, outputs)})


def table(*inputs: Tensor, platform: str = "sklearn", strict: bool = True) -> Schema:
    outputs = (Tensor("predictions", "INT64", (-1,)),)
    return Schema(platform, {DEFAULT: Signature(inputs, outputs)}, strict=strict)


IMAGE = graph(Tensor("x", "FP32", (-1, 2, 3)))
TEXTS = graph(Tensor("s", "BYTES", (-1,)), Tensor("n", "INT64", (-1, -1)), Tensor("b", "BOOL", (-1,)))
PAIR = graph(Tensor("x", "FP32", (2, 1)))
NUMBERS = table(Tensor("instances", "FP64", (-1, 2)))
TREES = table(Tensor("instances", "FP64", (-1, 2)), platform="xgboost")
MIXED = table(Tensor("age", "FP64", (-1,)), Tensor("city", "BYTES", (-1,)))
ORDERED = table(Tensor("column-0", "FP64", (-1,)), Tensor("column-1", "BYTES", (-1,)))
ROUTINE = table(Tensor("instances", "BYTES", None), platform="custom", strict=False)
UNNAMED = Schema("tensorflow_savedmodel", {"a": IMAGE.signatures[DEFAULT], "b": PAIR.signatures[DEFAULT]}, "")


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
def test_a_request(schema: Schema, instances: Any, fits: bool) -> None:
    assert jsonschema_rs.is_valid(shapes.request(schema), {"instances": instances}) is fits


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
def test_an_answer(schema: Schema, predictions: Any, fits: bool) -> None:
    assert jsonschema_rs.is_valid(shapes.answer(schema), {"predictions": predictions}) is fits


def test_an_only_output_without_its_name() -> None:
    """In the shape and in the example; where a signature has several, they keep theirs."""
    several = (Tensor("y", "FP32", (-1,)), Tensor("z", "FP32", (-1,)))
    known = Schema(PAIR.platform, PAIR.signatures, example=[1.0], answer={"y": [0.5, 0.5]})
    bare = as_answered(known, bare=True)

    assert shapes.example_answer(bare) == {"predictions": [[0.5, 0.5], [0.5, 0.5]]}
    assert jsonschema_rs.is_valid(shapes.answer(bare), shapes.example_answer(bare))
    assert not jsonschema_rs.is_valid(shapes.answer(bare), shapes.example_answer(known))
    assert as_answered(known, bare=False) is known
    assert as_answered(NUMBERS, bare=True) is NUMBERS
    both = as_answered(graph(*IMAGE.signatures[DEFAULT].inputs, outputs=several), bare=True)
    assert jsonschema_rs.is_valid(shapes.answer(both), {"predictions": [{"y": 1, "z": 2}]})


def test_other_fields_of_a_request() -> None:
    """A graph takes the name of a signature, a routine anything."""
    named = {"signature_name": "a", "instances": [[[1, 2, 3], [4, 5, 6]]]}

    assert not jsonschema_rs.is_valid(shapes.request(NUMBERS), {"instances": [[1, 2]], "more": 1})
    assert jsonschema_rs.is_valid(shapes.request(ROUTINE), {"instances": [1], "more": 1})
    assert jsonschema_rs.is_valid(shapes.request(UNNAMED), named)
    assert not jsonschema_rs.is_valid(shapes.request(UNNAMED), {**named, "signature_name": "b"})
    assert not jsonschema_rs.is_valid(shapes.request(UNNAMED), {"instances": named["instances"]})
    assert not jsonschema_rs.is_valid(shapes.request(IMAGE), named)


def test_an_example_has_as_many_rows_as_there_must_be() -> None:
    known = Schema(PAIR.platform, PAIR.signatures, example=[1.0], answer={"y": [0.5, 0.5]})

    asked, answered = shapes.example(known), shapes.example_answer(known)

    assert asked == {"instances": [[1.0], [1.0]]}
    assert jsonschema_rs.is_valid(shapes.request(known), asked)
    assert jsonschema_rs.is_valid(shapes.answer(known), answered)


def test_a_long_example_is_left_to_the_schema_of_its_version() -> None:
    long = Schema(IMAGE.platform, IMAGE.signatures, example=[0.0] * 10_000, answer=[0.0] * 10_000)

    assert (shapes.example(long), shapes.example_answer(long)) == (None, None)
    assert (shapes.example(IMAGE), shapes.example_answer(IMAGE)) == (None, None)
