"""Predictions as lines of result files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from batch.records.blocks import BatchedBlock, EncodedBlock, RecordBlock, RejectedRecord
from batch.records.encode import LineEncoder
from serving.errors import InvalidOutputs
from serving.runtimes.instance_batch import Batch, count_rows
from serving.runtimes.json_codec import encode_lines, encode_predictions

Keys = Sequence[Mapping[str, Any]]


def encoded(
    *parts: Batch, output_format: str = "JSON", keys: Keys | None = None, bad: tuple[RejectedRecord, ...] = ()
) -> EncodedBlock:
    """A block with these predictions of as many records, called 0, 1, …"""
    size = sum(map(count_rows, parts))
    block = RecordBlock(
        3, 4, "/in/file", 10, b"\n".join(b"%d" % number for number in range(size)), stored_bytes=7
    )
    rows = None if keys is None else list(range(size))
    return LineEncoder(output_format).encode(BatchedBlock(block, parts, rows, keys, bad))


def lines(found: EncodedBlock) -> list[Any]:
    return [json.loads(line) for line in found.results.splitlines()]


def cells(found: EncodedBlock) -> list[list[str]]:
    return list(csv.reader(io.StringIO(found.results.decode(), newline="")))


# ---- JSON

dtypes = st.sampled_from(["<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "i1", "<u8", "<u4", "<u2", "u1", "?"])
any_array = st.tuples(
    dtypes, st.sampled_from([(1,), (3,), (7,), (3, 0), (3, 1), (2, 3), (4, 2, 2)]), st.sampled_from("CF")
).flatmap(
    lambda found: arrays.arrays(found[0], found[1]).map(
        lambda array: np.asarray(array, order="F" if found[2] == "F" else "C")
    )
)
bytes_or_text = st.binary(max_size=4).filter(lambda value: value.isascii()) | st.text(max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
plain = json_values | any_array | st.lists(any_array, max_size=2)


def of_objects(found: list[Any]) -> NDArray[Any]:
    column = np.empty(len(found), object)
    column[:] = found
    return column


columns = st.dictionaries(
    st.text(max_size=3), st.tuples(dtypes, st.sampled_from([(3,), (3, 2), (3, 1, 2)])), min_size=1, max_size=3
).flatmap(lambda named: st.fixed_dictionaries({name: arrays.arrays(*shape) for name, shape in named.items()}))
texts = st.lists(bytes_or_text, min_size=3, max_size=3).map(of_objects)
batches = (
    any_array
    | st.lists(plain, min_size=1, max_size=4)
    | columns
    | st.builds(lambda numeric, text: {**numeric, "text": text}, columns, texts)
)


@given(batches)
@example(np.array([math.nan, math.inf, -math.inf, -0.0, 1e16, 5e-324]))
@example(np.array([0.1, 1e-7], np.float32))
@example(np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))
@example(np.array([2**63 - 1, -(2**63)]))
@example(np.array([2**64 - 1], np.uint64))
@example({"x_bytes": of_objects([b"\xff", b"a", b""])})
@example(np.array(["a,b", "c\n"]))
def test_lines_are_what_an_answer_has(batch: Batch) -> None:
    """Each line is to the byte what stands for that row in the answer of an online request."""
    try:
        online = encode_predictions(batch)
    except InvalidOutputs:
        with pytest.raises(InvalidOutputs):
            encode_lines(batch)
        return
    got = encode_lines(batch)

    assert got.endswith(b"\n")
    assert got.count(b"\n") == count_rows(batch)
    assert b'{"predictions":[' + b",".join(got[:-1].split(b"\n")) + b"]}" == online
    assert encoded(batch).results == got


def test_no_rows_are_no_lines() -> None:
    """Not even an empty one."""
    empty: list[Batch] = [np.array([]), np.empty((0, 2)), [], {"x": np.array([])}]

    assert [encode_lines(batch) for batch in empty] == [b""] * 4


def test_what_has_no_number_is_null() -> None:
    """NaN and infinities, as online."""
    found = encoded(np.array([[1.5, math.nan], [math.inf, 2]]), {"y": np.array([math.nan])})

    assert found.results == b'[1.5,null]\n[null,2.0]\n{"y":null}\n'


def test_what_a_block_is_besides() -> None:
    """Its place, its counts and its bad records stay with it."""
    bad = RejectedRecord(99, "reason", "snippet")
    found = encoded([1, 2], [3], bad=(bad,))

    assert (found.shard, found.index, found.file, found.stored_bytes, found.last) == (
        3,
        4,
        "/in/file",
        7,
        False,
    )
    assert (found.results, found.predictions, found.rejected, found.header) == (b"1\n2\n3\n", 3, (bad,), ())


@pytest.mark.parametrize("output_format", ["JSON", "CSV"])
@pytest.mark.parametrize("keys", [None, [{"id": n} for n in range(5)]])
def test_a_prediction_that_json_cannot_carry(output_format: str, keys: Keys | None) -> None:
    """It is a bad record, named by its place; the others keep their lines and their keys."""
    found = encoded([1, {2}], [3, object(), 5], output_format=output_format, keys=keys)

    if output_format == "CSV":
        rows = [[int(cell) for cell in row] for row in cells(found)]
    else:
        rows = [list(line.values()) if keys else [line] for line in lines(found)]
    assert rows == ([[0, 1], [2, 3], [4, 5]] if keys else [[1], [3], [5]])
    assert found.predictions == 3
    assert [(one.offset, one.snippet) for one in found.rejected] == [(12, "1"), (16, "3")]
    assert "cannot be written as JSON" in found.rejected[0].reason


def test_text_that_is_none() -> None:
    """Bytes that are no UTF-8 in an output not called _bytes: the row is bad, those beside it are not."""
    found = encoded({"name": of_objects([b"a", b"\xff", b"b"])})

    assert lines(found) == [{"name": "a"}, {"name": "b"}]
    assert "_bytes" in found.rejected[0].reason


def test_the_end_of_a_shard_is_no_text() -> None:
    """In every format."""
    for output_format in ("JSON", "CSV"):
        found = LineEncoder(output_format).encode(BatchedBlock(RecordBlock(3, 9, last=True), ()))

        assert (found.results, found.header, found.predictions, found.last) == (b"", (), 0, True)


# ---- keys


def test_keys_stand_before_the_prediction() -> None:
    """In the order they were asked for; a prediction that is no object is called prediction."""
    keys: Keys = [{"b": 1, "a": "x"}, {"b": None, "a": [1, {"c": 2}]}]

    assert encoded({"y": np.array([1, 2])}, keys=keys).results == (
        b'{"b":1,"a":"x","y":1}\n{"b":null,"a":[1,{"c":2}],"y":2}\n'
    )
    assert encoded(np.array([[0.5], [2]]), keys=keys).results.splitlines()[0] == (
        b'{"b":1,"a":"x","prediction":[0.5]}'
    )


@pytest.mark.parametrize("output_format", ["JSON", "CSV"])
def test_a_key_that_is_an_output(output_format: str) -> None:
    """No line can hold both: an error that names it."""
    with pytest.raises(InvalidOutputs, match="'y' is a key and an output"):
        encoded({"y": np.array([1])}, keys=[{"y": 2}], output_format=output_format)
    with pytest.raises(InvalidOutputs, match="'prediction' is a key and an output"):
        encoded(np.array([1]), keys=[{"prediction": 2}], output_format=output_format)


@given(st.lists(json_values, min_size=1, max_size=4))
def test_keys_change_no_prediction(values: list[Any]) -> None:
    """Beside keys stands the same JSON as without them."""
    online = json.loads(encode_predictions(values))["predictions"]
    found = encoded(values, keys=[{"my key": number} for number in range(len(values))])

    for number, (line, value) in enumerate(zip(lines(found), online, strict=True)):
        assert line.pop("my key") == number
        assert repr(line) == repr(value if isinstance(value, dict) else {"prediction": value})


# ---- CSV

AWKWARD = ["a,b", 'say "x"', "two\nlines", "\r", "", " ", "ä€😀", "'", "\x0b\x1c\u2028", "=1"]


def test_csv_columns_are_the_outputs() -> None:
    """A row per prediction without header, which is beside it; keys are columns before the outputs."""
    outputs = {"label": of_objects([b"a", b"b"]), "p": np.array([0.25, math.nan], np.float32)}

    found = encoded(outputs, output_format="CSV")
    keyed = encoded(outputs, output_format="CSV", keys=[{"id": 1}, {"id": "x"}])

    assert (found.header, found.results) == (("label", "p"), b"a,0.25\nb,\n")
    assert (keyed.header, keyed.results) == (("id", "label", "p"), b"1,a,0.25\nx,b,\n")


def test_csv_of_predictions_without_names() -> None:
    """One column, called prediction; lists and objects are JSON in their cell."""
    found = encoded(np.array([[1, 2], [3, 4]]), output_format="CSV")

    assert found.header == ("prediction",)
    assert found.results == b'"[1,2]"\n"[3,4]"\n'


def test_any_text_is_one_cell() -> None:
    """Commas, quotes and line ends stay inside of it."""
    found = encoded({"x": of_objects(AWKWARD), "n": np.arange(10)}, output_format="CSV")

    assert cells(found) == [[text, str(number)] for number, text in enumerate(AWKWARD)]
    assert found.predictions == 10


@given(st.lists(st.fixed_dictionaries({"a": json_values, "b": json_values}), min_size=1, max_size=4))
def test_cells_are_the_values(rows: list[dict[str, Any]]) -> None:
    """Numbers read back exactly, text as it is, null as nothing, and the rest as JSON."""
    found = encoded(rows, output_format="CSV")

    assert found.header == tuple(rows[0])
    for row, line in zip(cells(found), encode_lines(rows).splitlines(), strict=True):
        values = orjson.loads(line)
        for cell, name in zip(row, found.header, strict=True):
            match values[name]:
                case None:
                    assert cell == ""
                case bool() | list() | dict() as value:
                    assert orjson.loads(cell) == value
                case float() as value:
                    assert float(cell) == value
                case value:
                    assert cell == str(value)


def test_rows_with_other_outputs_are_no_csv() -> None:
    """The error names both and says what to do; in another order they are the same columns."""
    with pytest.raises(InvalidOutputs, match="Use outputDataFormat JSON"):
        encoded([{"a": 1}, {"b": 2}], output_format="CSV")

    assert encoded([{"a": 1, "b": 2}, {"b": 3, "a": 4}], output_format="CSV").results == b"1,2\n4,3\n"
