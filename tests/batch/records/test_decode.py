"""Blocks of records as instances."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batch.records.blocks import BatchedBlock, RecordBlock
from batch.records.decode import RecordDecoder, takes_raw_lines
from serving.errors import InvalidInputs
from serving.runtimes import ArrayFormat, ColumnsFormat, ColumnSpec, InputFormat, RowsFormat
from serving.runtimes.input_conversion import convert_instances
from serving.runtimes.instance_batch import Batch, count_rows, take_rows

# Numbers that a float32 cannot hold are infinite in it, online as here.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")

ANY_WIDTH = ArrayFormat(None, nullable=False)
PAIRS = ArrayFormat(2, nullable=False)
NULLABLE = ArrayFormat(None, nullable=True)


def column(dtype: type | str, *shape: int | None, name: str = "x") -> ColumnsFormat:
    return ColumnsFormat((ColumnSpec(name, np.dtype(dtype), shape),))


TEXT = column(object)
FORMS: dict[str, InputFormat] = {
    "rows": RowsFormat(),
    "any width": ANY_WIDTH,
    "pairs": PAIRS,
    "nullable": NULLABLE,
    "objects": ArrayFormat(2, nullable=False, allows_objects=True),
    "float32 pairs": column(np.float32, 2),
    "int32 of any width": column(np.int32, None),
    "matrices": column(np.float64, 2, 2),
    "any shape": ColumnsFormat((ColumnSpec("x", np.dtype(np.float32), None),)),
    "single number": column(np.int64),
    "flag": column(bool),
    "texts": column(object, 2),
    "two inputs": ColumnsFormat((*column(np.float32, 2, name="a").inputs, *column(object, name="b").inputs)),
}
forms = st.sampled_from(list(FORMS.values()))


def block(*lines: bytes, offset: int = 0) -> RecordBlock:
    return RecordBlock(0, 0, "/in/file", offset, b"\n".join(lines))


def decode(given_block: RecordBlock, form: InputFormat, keys: Sequence[str] = ()) -> BatchedBlock:
    return RecordDecoder(form, keys).decode(given_block)


def lines_of(found: BatchedBlock) -> list[int]:
    """The numbers of the records that have instances."""
    everything = range(len(found.block.split_records()))
    return list(everything if found.rows is None else found.rows)


def values(batch: Batch) -> Any:
    """A batch as plain values that can be compared, with its types."""
    if isinstance(batch, dict):
        return {name: values(part) for name, part in batch.items()}
    if isinstance(batch, np.ndarray):
        return (batch.dtype.str, batch.shape[1:], repr(batch.tolist()))
    return repr(batch)


def each_row(found: BatchedBlock) -> list[Batch]:
    return [
        take_rows(part, slice(place, place + 1)) for part in found.parts for place in range(count_rows(part))
    ]


# ---- what is kept

numbers = st.integers(-(2**63), 2**64 - 1) | st.integers(-9, 9) | st.floats(allow_nan=False)
pairs = st.lists(numbers, min_size=2, max_size=2)
well_formed = pairs | st.lists(pairs, min_size=2, max_size=2) | st.lists(numbers, max_size=3) | numbers
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "a", "b", "b64"]), inner)
    ),
    max_leaves=6,
)
# Texts that are no JSON alone, but may be together with what is before or behind them.
HALVES = [
    b"[1,2", b"3,4]", b"[1,2],[3,4]", b"[[1,2],[3,4]", b"[3,4]]", b"[[1,2]],[[3,4]]", b"]", b"[", b",",
    b"[1,2],", b",[1,2]", b"[1 2]", b"[1,,2]", b"[01,2]", b"[1.,2]", b"[.5,1]", b"[+1,2]", b"[1e5,2E-3]",
    b"[NaN,1]", b"[Infinity,1]", b"[-Infinity,1]", b"[1e999,1]", b"[nan,1]", b"[1,2]x", b"[1,2]#",
    b"[0x10,2]", b"[1_0,2]", b'["1",2]', b"[true,false]", b"[null,1]", b"[1,2]\r", b" [1,2]", b"[1,2] ",
    b"[ 1 , 2 ]", b"\t[1,2]\t", b"", b" ", b"\t", b"[]", b"[[]]", b"[[],[]]", b"{}", b"[-0,0]", b"[-0.0,0]",
    b"[[1],[2,3]]", b"[[1,2],[3,4]]", b"[9223372036854775808,1]", b"[1e400,1]", b"\xff[1,2]", b"[1,2]\x00",
    b"[1,2]\x0b", b"\x0c[1,2]", b"[1,\xc2\xa02]", b"1", b"1,2", b"-", b"\xef\xbb\xbf[1,2]",
]  # fmt: skip
records = (
    st.sampled_from(HALVES)
    | well_formed.map(lambda value: orjson.dumps(value) if not too_large(value) else b"[0]")
    | well_formed.map(lambda value: json.dumps(value).encode())
    | anything.map(lambda value: json.dumps(value).encode())
)
some_records = st.lists(records, min_size=1, max_size=6) | st.lists(
    pairs.map(lambda value: json.dumps(value).encode()), min_size=1, max_size=6
)


def too_large(value: Any) -> bool:
    return any(map(too_large, value)) if isinstance(value, list) else isinstance(value, int)


@given(some_records, forms)
@example([b"[1,2", b"3,4]"], PAIRS)
@example([b"[1,2", b"3,4]"], column(np.float32, None))
@example([b"[1,2],[3,4]", b"[5,6"], PAIRS)
@example([b"[1,2],[3,4]", b"[5", b"6]"], PAIRS)
@example([b"[[1,2],[3,4]", b"[5,6]]"], column(np.float64, 3, 2))
@example([b"[[1,2]],[[3,4]]", b"[[5,6]", b"[7,8]]"], column(np.float64, None, 2))
@example([b"[1,2]", b""], PAIRS)
@example([b"[1,2]", b"[3,4],"], PAIRS)
def test_a_record_is_kept_if_it_is_good_alone(lines: list[bytes], form: InputFormat) -> None:
    """Exactly the lines that are JSON and fit the model by themselves have instances; blank ones are none.

    The others are named by their place and content, each once.
    """
    found = decode(block(*lines), form)

    good: list[int] = []
    bad: list[int] = []
    for number, (_, line) in enumerate(found.block.split_records()):
        try:
            convert_instances([orjson.loads(line)], form, lenient=True)
        except orjson.JSONDecodeError:
            if line.strip():
                bad.append(number)
        except InvalidInputs:
            bad.append(number)
        else:
            good.append(number)
    offsets = [offset for offset, _ in found.block.split_records()]
    assert lines_of(found) == good
    assert sum(count_rows(part) for part in found.parts) == len(good)
    assert [one.offset for one in found.rejected] == [offsets[number] for number in bad]
    for one, number in zip(found.rejected, bad, strict=True):
        assert one.snippet == found.block.split_records()[number][1].decode(errors="replace")
        assert "Invalid inputs" in one.reason
        assert "instance 0" not in one.reason.lower()


@given(some_records, forms)
@example([b"[1,2]", b"[3.5,4]"], PAIRS)
@example([b"[[1,2],[3,4]]", b"[[1,2],[3,4]]"], column(np.float64, 2, 2))
def test_both_ways_give_the_same_instances(lines: list[bytes], form: InputFormat) -> None:
    """A whole block at once or record by record: the same values of the same types for the same records."""
    instances = RecordDecoder(form)
    at_once, one_by_one = instances.decode(block(*lines)), instances._decode_each(block(*lines))

    assert lines_of(at_once) == lines_of(one_by_one)
    assert list(map(values, at_once.parts)) == list(map(values, one_by_one.parts))
    assert at_once.rejected == one_by_one.rejected


@given(some_records, forms)
def test_values_are_those_of_the_record(lines: list[bytes], form: InputFormat) -> None:
    """Each instance holds what its record says, whatever stands beside it (integers may become floats)."""
    found = decode(block(*lines), form)

    for number, row in zip(lines_of(found), each_row(found), strict=True):
        alone = convert_instances([orjson.loads(found.block.split_records()[number][1])], form, lenient=True)
        if isinstance(alone, dict):
            assert values(row) == values(alone)
        elif isinstance(alone, np.ndarray) or isinstance(row, np.ndarray):
            np.testing.assert_array_equal(np.asarray(row, float), np.asarray(alone, float))
        else:
            assert row == alone or repr(row) == repr(alone)


def test_plain_numbers_take_the_way_of_whole_blocks() -> None:
    """Regular lines become one array without a look at each; nothing is said of single rows."""
    found = decode(block(*[b"[1.5,2]"] * 100), PAIRS)

    assert found.rows is None
    assert isinstance(found.parts[0], np.ndarray)
    assert found.parts[0].shape == (100, 2)


def test_a_line_in_parts_does_not_join_others() -> None:
    """Lines that would be good only together are bad, and cost no other line."""
    found = decode(block(b"[1,2]", b"[3,4", b"5,6]", b"[7,8]"), PAIRS)

    assert np.asarray(found.parts[0]).tolist() == [[1, 2], [7, 8]]
    assert lines_of(found) == [0, 3]
    assert [(one.offset, one.snippet) for one in found.rejected] == [(6, "[3,4"), (11, "5,6]")]


def test_half_of_all_lines_malformed() -> None:
    """Every second line of a large block is bad for one of several reasons: the others are all there."""
    wrong = [b"[1,2,3]", b"{", b"[1,null]", b'["a","b"]', b"7"]
    lines = [b"[%d,0]" % n if n % 2 else wrong[n % 5] for n in range(2000)]
    found = decode(block(*lines), PAIRS)

    assert [row[0] for row in np.asarray(found.parts[0]).tolist()] == list(range(1, 2000, 2))
    assert len(found.rejected) == 1000
    assert len({one.reason for one in found.rejected}) == 5


def test_rows_of_several_shapes_are_kept_apart() -> None:
    """Where a model takes any width, rows of another width are another batch, in the order of the records."""
    found = decode(block(b"[1,2]", b"[3,4]", b"[5]", b"oops", b"[6,7]"), ANY_WIDTH)

    assert [np.asarray(part).tolist() for part in found.parts] == [[[1, 2], [3, 4]], [[5]], [[6, 7]]]
    assert lines_of(found) == [0, 1, 2, 4]
    assert [one.offset for one in found.rejected] == [16]


def test_missing_values_where_the_model_takes_them() -> None:
    """null is NaN for a model that knows missing values, and a bad record for another."""
    lines = [b"[1,null]", b"[2,3]"]
    known, unknown = decode(block(*lines), NULLABLE), decode(block(*lines), PAIRS)

    (part,) = known.parts
    assert isinstance(part, np.ndarray)
    assert math.isnan(part[0, 1])
    assert not known.rejected
    assert "null" in unknown.rejected[0].reason


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("depth", [70, 400, 900, 1000, 5000])
def test_deep_nesting_costs_its_record_only(form: InputFormat, depth: int) -> None:
    """However deep a line is nested, the one beside it is predicted or refused for its own reasons."""
    deep = b"[" * depth + b"1" + b"]" * depth
    alone = decode(block(b"[1,2]"), form)
    found = decode(block(deep, b"[1,2]"), form)

    fits = isinstance(form, RowsFormat) and depth <= 1000
    assert lines_of(found) == [0] * fits + [1] * len(lines_of(alone))
    assert len(found.rejected) == (not fits) + len(alone.rejected)


def test_the_end_of_a_shard_holds_nothing() -> None:
    """The block without records has no instances and no errors, with raw lines too."""
    for form in FORMS.values():
        found = decode(RecordBlock(3, 7, last=True), form)

        assert (found.parts, found.rejected, found.rows) == ((), (), None)


def test_a_block_of_blank_lines() -> None:
    """Nothing to predict, nothing wrong."""
    found = decode(block(b"", b" ", b"\t", b""), PAIRS)

    assert (found.parts, found.rejected, lines_of(found)) == ((), (), [])


# ---- what is said of bad records


def test_what_a_bad_record_looks_like() -> None:
    """Its place in the file, the reason in words, and at most 1000 characters of it."""
    long = b'{"text": "' + b"x" * 5000
    found = decode(block(b"[1,2]", long, b"\xff\xfe", offset=100), PAIRS)
    first, second = found.rejected

    assert (first.offset, second.offset) == (106, 106 + len(long) + 1)
    assert first.snippet == long[:1000].decode()
    assert "not valid JSON" in first.reason
    assert second.snippet == "\ufffd\ufffd"


def test_a_snippet_may_cut_a_character() -> None:
    """1000 bytes that end in the middle of a character are still text, of no more than 1000 characters."""
    found = decode(block("ä".encode() * 700, b"x" + "ä".encode() * 700), PAIRS)

    assert all(len(one.snippet) <= 1000 for one in found.rejected)
    assert found.rejected[1].snippet.endswith("\ufffd")


def test_offsets_count_line_ends_of_windows() -> None:
    r"""\r is part of the line end: not of the record, but of the places of those behind it."""
    found = decode(block(b"[1,2]\r", b"oops\r", b"[3,4]\r"), PAIRS)

    assert np.asarray(found.parts[0]).tolist() == [[1, 2], [3, 4]]
    assert [(one.offset, one.snippet) for one in found.rejected] == [(7, "oops")]


# ---- raw lines


@pytest.mark.parametrize(
    ("form", "raw"),
    [
        (TEXT, True),
        (ColumnsFormat((ColumnSpec("x", np.dtype(object), None),)), True),
        (column(object, 2), False),
        (column(np.float32), False),
        (FORMS["two inputs"], False),
        (RowsFormat(), False),
        (ANY_WIDTH, False),
    ],
)
def test_who_takes_raw_lines(form: InputFormat, raw: bool) -> None:
    """A model with one input, which is one string."""
    assert takes_raw_lines(form) is raw


def test_raw_lines_are_not_parsed() -> None:
    """A string input gets the line as it is, whatever it looks like; only its line end is taken off."""
    lines = [b'{"x": "a"}', b'"quoted"', b'{"b64": "YQ=="}', b"[1]", b"  spaces ", b"plain", b"", b"\xff"]
    found = decode(block(*lines), TEXT)

    (part,) = found.parts
    assert isinstance(part, dict)
    assert part["x"].tolist() == lines
    assert (found.rejected, lines_of(found)) == ((), list(range(8)))


def test_records_that_are_no_text() -> None:
    """The records of a TFRecord file reach a string input byte by byte, line ends and all."""
    records = ((0, b"\xff\x00\n\r"), (20, b""), (36, b'{"x": 1}'))
    found = decode(RecordBlock(0, 0, "/in/file", records=records), TEXT)

    (part,) = found.parts
    assert isinstance(part, dict)
    assert part["x"].tolist() == [record for _, record in records]


def test_records_that_are_json() -> None:
    """For other models the records of a TFRecord file are JSON; what is none is named by its place."""
    records = ((0, b"[1,2]"), (21, b"\xff\n"), (39, b"[3,\n4]"))
    found = decode(RecordBlock(0, 0, "/in/file", records=records), PAIRS)

    assert np.asarray(found.parts[0]).tolist() == [[1, 2], [3, 4]]
    assert [one.offset for one in found.rejected] == [21]


def test_base64_in_json_is_decoded() -> None:
    """Where lines are parsed, {"b64": ...} means bytes, and what is no base64 is a bad record."""
    found = decode(block(b'[{"b64": "/wA="}, "a"]', b'[{"b64": "!"}, "a"]', b'["x", "y"]'), FORMS["texts"])

    (part,) = found.parts
    assert isinstance(part, dict)
    assert part["x"].tolist() == [[b"\xff\x00", b"a"], [b"x", b"y"]]
    assert "base64" in found.rejected[0].reason


# ---- the request log


def logged(body: Any, **others: Any) -> bytes:
    """A line of the online request log."""
    row = {
        "model": "m",
        "model_version": "v",
        "time": "2026-01-01T00:00:00Z",
        "raw_data": body if isinstance(body, str) else json.dumps(body),
        "raw_prediction": '{"predictions":[1]}',
        "groundtruth": None,
    }
    return orjson.dumps({**row, **others})


def test_the_request_log_is_input() -> None:
    """A logged request is all of its instances, in their order, beside lines that are instances."""
    request = {"instances": [[3, 4], [5, 6]], "signature_name": "s"}
    lines = [b"[1,2]", logged(request, record_id="1", request_id="2", project="p"), b"[7,8]"]
    found = decode(block(*lines), PAIRS)

    assert np.asarray(found.parts[0]).tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert lines_of(found) == [0, 1, 1, 2]


def test_the_request_log_of_a_model_of_text() -> None:
    """For a string input too: its instances are JSON strings, those of other lines the lines."""
    found = decode(block(logged({"instances": ["a", {"b64": "Yg=="}, {"x": "c"}]}), b"d"), TEXT)

    (part,) = found.parts
    assert isinstance(part, dict)
    assert part["x"].tolist() == [b"a", b"b", b"c", b"d"]
    assert lines_of(found) == [0, 0, 0, 1]


@pytest.mark.parametrize("body", ["no json", "[]", "{}", '{"instances": 1}'])
def test_a_logged_request_without_instances(body: str) -> None:
    """It is a bad record."""
    found = decode(block(logged(body), b"[1,2]"), PAIRS)

    assert len(found.rejected) == 1
    assert lines_of(found) == [1]


def test_one_bad_instance_of_a_logged_request() -> None:
    """The others of its request are predicted; the error names the line."""
    line = logged({"instances": [[1, 2], [3], [5, 6]]})
    found = decode(block(b"[0,0]", line), PAIRS)

    assert np.asarray(found.parts[0]).tolist() == [[0, 0], [1, 2], [5, 6]]
    assert lines_of(found) == [0, 1, 1]
    assert [one.offset for one in found.rejected] == [6]


def test_what_only_looks_like_the_request_log() -> None:
    """An object with other fields is an instance, or none, as any other."""
    found = decode(block(b'{"model":1,"raw_data":"{}"}', logged({"instances": [1]}, more=1)), RowsFormat())

    assert lines_of(found) == [0, 1]
    assert isinstance(found.parts[0], list)
    assert found.parts[0][0] == {"model": 1, "raw_data": "{}"}


# ---- keys


def test_keys_pass_the_model_by() -> None:
    """The named fields are kept beside each instance, which is what is left of the object."""
    lines = [
        b'{"id": 7, "instance": [1, 2]}',
        b'{"instance": [3, 4], "id": {"a": [null]}}',
        b'{"id": 1.50, "instance": [1]}',
    ]
    found = decode(block(*lines), PAIRS, ["id"])

    assert np.asarray(found.parts[0]).tolist() == [[1, 2], [3, 4]]
    assert found.keys == [{"id": 7}, {"id": {"a": [None]}}]
    assert lines_of(found) == [0, 1]
    assert len(found.rejected) == 1


def test_the_rest_of_the_object_is_the_instance() -> None:
    """With several fields left it is the object without the keys; keys come in the order they are named."""
    lines = [b'{"u": 1, "a": [1, 2], "t": 2, "b": "x"}', b'{"t": 1, "u": 2, "b": "y", "a": [0, 0]}']
    found = decode(block(*lines), FORMS["two inputs"], ["t", "u"])

    (part,) = found.parts
    assert isinstance(part, dict)
    assert part["a"].tolist() == [[1, 2], [0, 0]]
    assert part["b"].tolist() == [b"x", b"y"]
    assert [list(one.items()) for one in found.keys or ()] == [[("t", 2), ("u", 1)], [("t", 1), ("u", 2)]]


def test_records_without_their_keys() -> None:
    """No object, a key that is missing, nothing but keys: bad records that say so."""
    lines = [b"[1, 2]", b'{"instance": [1, 2]}', b'{"id": 1}', b'{"id": 1, "instance": [1, 2]}']
    found = decode(block(*lines), PAIRS, ["id"])

    assert lines_of(found) == [3]
    assert [one.offset for one in found.rejected] == [0, 7, 28]
    for one, words in zip(found.rejected, ["is a list", "no field 'id'", "an object"], strict=True):
        assert words in one.reason


def test_keys_beside_text() -> None:
    """With keys the lines of a string input are objects too."""
    found = decode(block(b'{"id": 1, "x": "a"}', b'{"id": 2, "instance": {"b64": "Yg=="}}'), TEXT, ["id"])

    (part,) = found.parts
    assert isinstance(part, dict)
    assert part["x"].tolist() == [b"a", b"b"]
    assert found.keys == [{"id": 1}, {"id": 2}]


def test_keys_in_the_request_log() -> None:
    """Each logged instance has its own; one without costs its whole line."""
    good = logged({"instances": [{"id": 1, "instance": [1, 2]}, {"id": 2, "instance": [3, 4]}]})
    bad = logged({"instances": [{"id": 1, "instance": [1, 2]}, {"instance": [3, 4]}]})
    found = decode(block(good, bad), PAIRS, ["id"])

    assert found.keys == [{"id": 1}, {"id": 2}]
    assert len(found.rejected) == 1


def test_a_decoder_can_be_used_again() -> None:
    """What an instance holds is its own: the next block does not change it."""
    instances = RecordDecoder(PAIRS)
    first = instances.decode(block(*[b"[1.5,2]"] * 50))
    before = values(first.parts[0])
    instances.decode(block(*[b"[7.5,8]"] * 50))

    assert values(first.parts[0]) == before
