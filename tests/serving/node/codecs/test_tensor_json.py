"""Tensors as JSON, with the words for NaN and the infinities."""

from __future__ import annotations

import json
import math
import time
from datetime import date
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs
from serving.json_depth import DEFAULT_MAX_DEPTH
from serving.node.codecs.tensor_json import parse_extended_json, rows_to_json, tensor_to_json, values_to_json

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
DTYPES = st.sampled_from(["f2", "f4", "f8", "i1", "i8", "u1", "u8", "?"])
WORDS = [math.nan, math.inf, -math.inf]


def refusal(text: bytes, levels: int = DEFAULT_MAX_DEPTH) -> str:
    with pytest.raises(InvalidInputs) as caught:
        parse_extended_json(text, levels)
    return caught.value.detail


def arrays() -> st.SearchStrategy[NDArray[Any]]:
    """Of any shape and type; every other number of a float is none."""

    def array(shape: tuple[int, ...], dtype: str, seed: int) -> NDArray[Any]:
        random = np.random.default_rng(seed)
        values = (random.standard_normal(shape) * 100).astype(dtype)
        if dtype[0] != "f":
            return np.asarray(values)
        return np.where(random.random(shape) < 0.5, values, random.choice(WORDS, shape)).astype(dtype)

    return st.builds(array, SHAPES, DTYPES, st.integers(0, 2**16))


@given(arrays())
def test_arrays_come_back_from_their_text(array: NDArray[Any]) -> None:
    """Every number to the bit, in Python's own reader of JSON, which knows the words."""
    back = np.array(json.loads(tensor_to_json("y", array)), array.dtype).reshape(array.shape)

    np.testing.assert_array_equal(back, array)


@given(arrays().filter(lambda array: array.ndim > 0))
def test_rows_are_what_the_whole_is_made_of(array: NDArray[Any]) -> None:
    assert b"[%b]" % b",".join(rows_to_json("y", array)) == tensor_to_json("y", array)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.array([3.5, 4, -0.0], np.float32), b"[3.5,4.0,-0.0]"),
        (np.array([0.1, 1e-7], np.float32), b"[0.1,1e-7]"),
        (np.array(2.5), b"2.5"),
        (np.array(7), b"7"),
        (np.array(True), b"true"),
        (np.array(math.nan, np.float32), b"NaN"),
        (np.array([[1, math.inf], [-math.inf, math.nan]]), b"[[1.0,Infinity],[-Infinity,NaN]]"),
        (np.array([[b"a"], [b"\xc3\xa4"]], object), '[["a"],["ä"]]'.encode()),
        (np.array(b"one", object), b'"one"'),
        (np.zeros((2, 0)), b"[[],[]]"),
    ],
)
def test_how_tensors_are_written(array: NDArray[Any], text: bytes) -> None:
    assert tensor_to_json("y", array) == text


def test_bytes_are_base64_where_the_name_says_so() -> None:
    """That of an output ending in _bytes; others must be text."""
    values = np.array([[b"\xff", b"a"], [b"", b"b"]], object)

    assert tensor_to_json("y_bytes", values[0]) == b'[{"b64":"/w=="},{"b64":"YQ=="}]'
    assert rows_to_json("y_bytes", values)[1] == b'[{"b64":""},{"b64":"Yg=="}]'
    with pytest.raises(InvalidOutputs, match="Output y is not UTF-8 text"):
        tensor_to_json("y", values)


def test_complex_numbers_have_no_text() -> None:
    with pytest.raises(InvalidOutputs, match="Output y cannot be written as JSON"):
        tensor_to_json("y", np.array([1j]))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["a", 1, [2.5]], b'["a",1,[2.5]]'),
        ([None, math.nan], b"[null,NaN]"),
        (
            [{"a": math.inf, "b": np.array([math.nan, 1]), "c": np.int64(3)}],
            b'[{"a":Infinity,"b":[NaN,1.0],"c":3}]',
        ),
        ([{date(2020, 1, 2): None}], b'[{"2020-01-02":null}]'),
    ],
)
def test_plain_values_have_the_words_too(values: list[Any], text: bytes) -> None:
    assert values_to_json(values) == text


def test_plain_values_that_cannot_be_written() -> None:
    with pytest.raises(InvalidOutputs, match="cannot be written"):
        values_to_json([object()])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.sampled_from('NaInfinity-\\"\té'), max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("NaInf", max_size=3), inner, max_size=3)
    ),
    max_leaves=20,
)


@given(JSON)
def test_words_are_read_where_they_are_values(value: Any) -> None:
    """Not in texts nor in names; everything else as JSON has it."""
    text = json.dumps(value, ensure_ascii=False)

    assert json.dumps(parse_extended_json(text.encode(), DEFAULT_MAX_DEPTH), ensure_ascii=False) == text


def test_numbers_beside_words_are_what_they_are_elsewhere() -> None:
    """Also those that are too large for an integer."""
    long = "9" * 5000

    assert parse_extended_json(b"[NaN, 18446744073709551615]", DEFAULT_MAX_DEPTH)[1] == 2**64 - 1
    assert parse_extended_json(b"[NaN, 18446744073709551616]", DEFAULT_MAX_DEPTH)[1] == float(2**64)
    assert "number is infinity" in refusal(f"[NaN, {long}]".encode())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "JSON Parse error: The document is empty at offset: 0"),
        (b"  ", "JSON Parse error: The document is empty"),
        (b'{"a": [1, Nan]}', "at offset: 10"),
        (b'{"a": NaN, "b": x}', "at offset: 16"),
        (b'{"a": NaN, "b": "NaN}', "JSON Parse error: "),
        (b"{NaN: 1}", "JSON Parse error: "),
        (b"[+Infinity]", "JSON Parse error: "),
        (b"[NaNNaN]", "JSON Parse error: "),
        (b"[1NaN]", "JSON Parse error: "),
        (b"[1-Infinity]", "JSON Parse error: "),
        (b"[NaN\xff]", "JSON Parse error: "),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(text: bytes, problem: str) -> None:
    assert problem in refusal(text)


@pytest.mark.parametrize("text", [b'[NaN, "' + b'\\"' * 200_000, b"[NaN, " + b'"\\' * 200_000])
def test_a_text_that_does_not_end_takes_no_longer_than_others(text: bytes) -> None:
    """However many quotes are in it."""
    began = time.process_time()

    assert "JSON Parse error: " in refusal(text)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("text", [b"[[[[1]]]]", b"[[[[NaN]]]]"])
def test_depth_is_bounded_with_words_and_without(text: bytes) -> None:
    assert parse_extended_json(text, 4)
    assert "more than 3 levels" in refusal(text, 3)
