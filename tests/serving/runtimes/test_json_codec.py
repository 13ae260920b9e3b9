from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadtests.bench.parsing import measure_image
from serving.errors import InvalidInputs, InvalidOutputs
from serving.json_depth import DEFAULT_MAX_DEPTH
from serving.runtimes import ArrayFormat, ColumnsFormat, ColumnSpec, InputFormat, RowsFormat, json_codec
from serving.runtimes.input_conversion import convert_instances
from serving.runtimes.instance_batch import Batch, split_batch
from serving.runtimes.json_codec import (
    AnswerStyle,
    InstancesDecoder,
    encode_bodies,
    encode_lines,
    encode_predictions,
)

PADDING = " " * 512  # makes a body long enough for the dense way
FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int32)
BYTES = np.dtype(object)


def decode(body: Any, form: InputFormat) -> tuple[Batch, dict[str, Any]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return InstancesDecoder().decode(raw, lambda _: form)


def one(dtype: np.dtype[Any], *shape: int | None, name: str = "x") -> ColumnsFormat:
    return ColumnsFormat((ColumnSpec(name, dtype, shape),))


def refusal(body: Any, form: InputFormat) -> str:
    with pytest.raises(InvalidInputs) as caught:
        decode(body, form)
    return caught.value.detail


finite = st.floats(allow_nan=False, allow_infinity=False)
numbers = finite | st.integers(-(2**53), 2**53)


def outcome(body: bytes, form: InputFormat) -> Any:
    """What a body comes to: instances with their dtype and the parameters, or the words of its refusal."""
    try:
        instances, parameters = decode(body, form)
    except InvalidInputs as error:
        return error.message
    return written(instances), parameters


def plain_outcome(body: bytes, form: InputFormat) -> Any:
    """The same by way of Python values."""
    try:
        instances, parameters = json_codec._decode_generic(body, lambda _: form, DEFAULT_MAX_DEPTH)
    except InvalidInputs as error:
        return error.message
    return written(instances), parameters


def written(instances: Batch) -> str:
    if isinstance(instances, np.ndarray):
        return repr((instances.dtype.str, instances.tolist()))
    if isinstance(instances, dict):
        return repr({name: written(column) for name, column in instances.items()})
    return repr(instances)


FORMS = st.sampled_from(
    [ArrayFormat(None, nullable=True), ArrayFormat(2, nullable=False), one(FLOAT), one(INT, 2), RowsFormat()]
)
FIELDS = st.dictionaries(
    st.sampled_from(["a", "b"]), st.none() | st.lists(st.integers(), max_size=2), max_size=1
)


@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=1, max_size=5)
    )
)
@example([[0]])
@example([[-0.0, 1e308]])
@example([[2**53, 2**53 + 1]])
def test_all_ways_give_what_numpy_makes_of_the_list(rows: list[list[float]]) -> None:
    """Alone, beside other fields, in a long body: the same as np.array(list), to the bit and in dtype."""
    bodies = [
        json.dumps({"instances": rows}),
        json.dumps({"instances": rows}, indent=1),
        json.dumps({"other": None, "instances": rows}),
        json.dumps({"other": None, "instances": rows}) + PADDING,
    ]
    wanted = np.array(rows)

    for body in bodies:
        got, _ = decode(body.encode(), ArrayFormat(None, nullable=False))
        assert isinstance(got, np.ndarray)
        assert got.dtype == wanted.dtype
        assert got.tobytes() == wanted.tobytes() or np.array_equal(got, wanted)


# What float32 has no room for becomes infinite, of which numpy warns.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@given(
    st.recursive(
        numbers | st.none() | st.text(max_size=3) | st.booleans(), lambda x: st.lists(x, max_size=3)
    ),
    FIELDS,
    FORMS,
    st.sampled_from(["", PADDING]),
)
@example([[0.0], []], {}, ArrayFormat(None, nullable=True), "")
@example([[[1], [2, 3]], [[4, 5], [6]]], {}, one(FLOAT), "")
def test_all_ways_agree_on_anything(
    value: Any, others: dict[str, Any], form: InputFormat, padding: str
) -> None:
    """What the dense way does not take is refused or converted exactly as the plain way does it."""
    body = (json.dumps({"instances": [value], **others}) + padding).encode()

    assert outcome(body, form) == plain_outcome(body, form)


@given(
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    form=FORMS,
    edits=st.lists(
        st.tuples(
            st.integers(0, 60),
            st.integers(0, 2),
            st.sampled_from([*'[]{},:".-+eE019 \t\n\\', "[]", "],[", "null", "true", "\0", "\u00e9"]),
        ),
        max_size=3,
    ),
    padding=st.sampled_from(["", PADDING]),
)
@example([2], ArrayFormat(None, nullable=False), [(5, 0, " ")], "")
def test_bodies_that_are_nearly_regular(
    shape: list[int], form: InputFormat, edits: list[tuple[int, int, str]], padding: str
) -> None:
    """A character more, less or another one: whatever it does to the text, all ways see the same in it."""
    text = json.dumps({"instances": (np.arange(math.prod(shape)).reshape(shape) / 2).tolist()})
    for place, removed, inserted in edits:
        text = text[:place] + inserted + text[place + removed :]
    body = (text + padding).encode()

    assert outcome(body, form) == plain_outcome(body, form)


def test_a_decoder_goes_from_shape_to_shape() -> None:
    """What it knows of the last body says nothing of the next one."""
    decoder, form = InstancesDecoder(), ArrayFormat(None, nullable=False)
    shapes = [(1, 2), (2, 1), (1, 2), (2, 2), (1, 4), (4, 1)]

    for shape in shapes:
        body = json.dumps({"instances": np.ones(shape).tolist()}).encode()
        instances, _ = decoder.decode(body, lambda _: form)
        assert isinstance(instances, np.ndarray)
        assert instances.shape == shape


def test_image_rows_become_one_array_of_the_models_dtype() -> None:
    """Nested numeric instances of a single-input signature arrive as one named column."""
    image = np.arange(2 * 3 * 4 * 3).reshape(2, 3, 4, 3)

    instances, parameters = decode(
        json.dumps({"instances": image.tolist(), "signature_name": "s"}).encode(), one(FLOAT, 3, 4, 3)
    )

    assert isinstance(instances, dict)
    assert parameters == {"signature_name": "s"}
    assert instances["x"].dtype == np.float32
    np.testing.assert_array_equal(instances["x"], image)


def test_the_form_may_depend_on_the_parameters() -> None:
    """The other fields of the body are known before the instances are parsed."""

    def form_of(parameters: Mapping[str, Any]) -> InputFormat:
        assert parameters == {"signature_name": "b", "options": {"k": [1, 2]}}
        return RowsFormat()

    body = {"instances": [[1.5] * 200], "signature_name": "b", "options": {"k": [1, 2]}}

    instances, _ = InstancesDecoder().decode(json.dumps(body).encode(), form_of)

    assert instances == body["instances"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([[1, 2]], np.int64), ([[1, 2.0]], np.float64), ([[True, False]], np.bool_), ([[1, None]], np.float64)],
)
def test_dtype_follows_the_numbers(values: list[Any], dtype: type) -> None:
    """All-integer bodies stay int64, null is NaN where the model takes it, booleans are left to numpy."""
    instances, _ = decode({"instances": values}, ArrayFormat(None, nullable=True))

    assert np.array(instances).dtype == dtype


def test_objects_pass_as_rows_where_welcome() -> None:
    """A model with column names takes objects as they are."""
    rows = [{"age": 3, "city": "x"}]

    instances, _ = decode({"instances": rows}, ArrayFormat(2, nullable=False, allows_objects=True))

    assert instances == rows


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b'{"instances": [[NaN]]}', "send null for a missing value"),
        (b'{"instances": [[-Infinity]]}', "send null for a missing value"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b"{}", 'no "instances"'),
        (b'{"instances": 3}', "it is a number"),
        (b'{"instances": []}', "empty list"),
        (b'{"instances": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
    ],
)
@pytest.mark.parametrize("padding", ["", PADDING])
def test_bad_bodies_are_refused_in_words(body: bytes, said: str, padding: str) -> None:
    """Whatever is wrong with a body is said, on either way."""
    assert said in refusal(body + padding.encode() if body else body, ArrayFormat(2, nullable=False))


@pytest.mark.parametrize(
    ("instances", "said"),
    [
        ([[1, 2, 3]], "Instance 0 has 3 values; the model expects 2"),
        ([[1, 2], [1]], "Instance 1 has 1 values; the model expects 2"),
        ([1, 2], "Instance 0 is a number; expected a list of 2 numbers"),
        ([[1, "a"]], "Instance 0, value 1 is a string; expected a number"),
        ([[1, None]], "Instance 0, value 1 is null; this model does not take missing values"),
        ([[1, [2]]], "Instance 0, value 1 is a list; expected a number"),
        ([{"a": 1}], "Instance 0 is an object"),
    ],
)
def test_bad_rows_are_named(instances: Any, said: str) -> None:
    """The instance, the place in it, what was expected and what came."""
    assert said in refusal({"instances": instances}, ArrayFormat(2, nullable=False))


def test_ragged_rows_are_named_where_any_width_will_do() -> None:
    """Without a known width, rows must still agree."""
    assert "Instance 1 has 1 values, instance 0 has 2" in refusal(
        {"instances": [[1, 2], [1]]}, ArrayFormat(None, nullable=False)
    )


TWO = ColumnsFormat((ColumnSpec("a", FLOAT, ()), ColumnSpec("s", BYTES, ())))


@pytest.mark.parametrize(
    ("instances", "form", "said"),
    [
        ([{"b": [1]}], one(FLOAT, 1), "Expected tensor name: x, got tensor name: ['b']"),
        ([[1, 2]], one(FLOAT, 3), "Input x expects shape [3] per instance, got shape [2]"),
        ([[1, 2], [1]], one(FLOAT, None), "the instances differ in shape"),
        ([["a", "b"]], one(FLOAT, 2), "Instance 0: input x takes numbers (float32), got a string ('a')"),
        ([[1.5], [None]], one(INT, 1), "Instance 1: input x takes integers (int32), got null"),
        ([[1.5], ["1.5"]], one(INT, 1), "Instance 1: input x takes integers (int32), got a string ('1.5')"),
        ([[True], [1e30]], one(INT, 1), "out of the range of int32"),
        ([["1"], ["2", "3"]], one(FLOAT, 1), "the instances differ in shape"),
        ([True, 2], one(np.dtype(bool)), "Instance 1: input x takes booleans (bool), got a number (2)"),
        ([[2**40]], one(INT, 1), "out of the range of int32"),
        ([[0.5, 2**63]], one(np.dtype(np.int64), 2), "out of the range of int64"),
        ([3], one(BYTES), "takes strings"),
        ([{"b64": "%%"}], one(BYTES), "invalid base64"),
        ([["a"], ["b", "c"]], one(BYTES, None), "the instances differ in shape"),
        ([1], TWO, "the model has several inputs"),
        ([{"a": 1, "s": "x", "z": 1}], TWO, "Unexpected tensor name: z"),
        (
            [{"a": 1, "s": "x"}, {"a": 1}],
            TWO,
            "Input s was missing in at least one input instance (instance 1)",
        ),
    ],
)
def test_bad_columns_are_named(instances: Any, form: InputFormat, said: str) -> None:
    """The contract's sentences for tensors that do not fit."""
    assert said in refusal({"instances": instances}, form)


@pytest.mark.parametrize(
    ("instances", "form"),
    [
        ([["1", 2.5], [True, None]], one(FLOAT, 2)),
        ([["0.1", "1e3"], ["-inf", "nan"]], one(FLOAT, 2)),
        ([[1.5, True], [-2.9, "7"]], one(INT, 2)),
        ([2**53 + 1, 0.5], one(np.dtype(np.int64))),
        ([True, False, 1, 0.0], one(np.dtype(bool))),
        ([[True], [2**70]], one(FLOAT, 1)),
    ],
)
def test_values_that_the_service_took_are_what_numpy_makes_of_them(
    instances: Any, form: ColumnsFormat
) -> None:
    """It fed sessions with lists, which those convert to the type of their placeholder."""
    found, _ = decode({"instances": instances}, form)

    assert isinstance(found, dict)
    wanted = np.asarray(instances, form.inputs[0].dtype)
    assert found["x"].dtype == wanted.dtype
    np.testing.assert_array_equal(found["x"], wanted)


def test_texts_with_numbers_are_numbers_for_arrays() -> None:
    """In a list of numbers, and where null is missing too."""
    found, _ = decode({"instances": [["1", 2], [None, "0.5"]]}, ArrayFormat(2, nullable=True))

    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, [[1, 2], [math.nan, 0.5]])
    assert "Instance 1, value 0 is a string" in refusal(
        {"instances": [["1"], ["x"]]}, ArrayFormat(1, nullable=True)
    )


def test_tensorflow_servings_protocol_takes_no_such_values() -> None:
    """It has types of its own for what JSON has."""
    for value, form in (("1", one(FLOAT)), (True, one(INT)), (1.5, one(INT)), (None, one(FLOAT))):
        with pytest.raises(InvalidInputs):
            convert_instances([value], form)


def test_strings_and_base64_become_bytes() -> None:
    """Text is UTF-8, {"b64"} is decoded at any depth, rows become columns."""
    rows = [{"a": 1, "s": "é"}, {"a": 2.5, "s": {"b64": "AP8="}}]

    instances, _ = decode({"instances": rows}, TWO)

    assert isinstance(instances, dict)
    np.testing.assert_array_equal(instances["a"], np.array([1, 2.5], np.float32))
    assert instances["s"].tolist() == ["é".encode(), b"\x00\xff"]


@pytest.mark.parametrize("value", ["abc", {"x": "abc"}, {"b64": "YWJj"}])
def test_one_string_input_takes_bare_named_and_base64_values(value: Any) -> None:
    """A single input may be given bare or by name."""
    instances, _ = decode({"instances": [value]}, one(BYTES))

    assert isinstance(instances, dict)
    assert instances["x"].tolist() == [b"abc"]


@pytest.mark.parametrize(
    ("predictions", "wanted"),
    [
        (np.array([1, 2]), [1, 2]),
        (np.array([0.1, 1 / 3], np.float32), [0.1, 0.33333334]),
        (np.array([0.1], np.float16), [0.099975586]),
        ({"p": np.array([0.1, math.inf], np.float32)}, [{"p": 0.1}, {"p": None}]),
        ({"a": np.zeros((2, 0)), "b": np.array(["x", "y"])}, [{"a": [], "b": "x"}, {"a": [], "b": "y"}]),
        (np.array([[0.5, 1.5]]), [[0.5, 1.5]]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array(["a", None], object), ["a", None]),
        (np.array([[1.0, 2.0], [3.0, 4.0]]).T, [[1.0, 3.0], [2.0, 4.0]]),
        (np.array([True]), [True]),
        ([{"k": np.float64(1.5), 3: [1]}], [{"k": 1.5, "3": [1]}]),
        ([math.nan, math.inf, 1.0], [None, None, 1.0]),
        (np.array([math.nan, -math.inf]), [None, None]),
        (
            {"p": np.array([[1.0], [2.0]], np.float32), "c": np.array([b"x", b"y"], object)},
            [{"p": [1.0], "c": "x"}, {"p": [2.0], "c": "y"}],
        ),
        ({"i_bytes": np.array([b"\xff"], object)}, [{"i_bytes": {"b64": "/w=="}}]),
        ({"n": np.array([7], np.int64)}, [{"n": 7}]),
    ],
)
def test_predictions_as_json(predictions: Batch, wanted: Any) -> None:
    """Arrays as tolist() gives them, float32 in its own digits; NaN and infinities as null; named outputs as
    objects. Line by line it is the same.
    """
    assert json.loads(encode_predictions(predictions)) == {"predictions": wanted}
    assert [json.loads(line) for line in encode_lines(predictions).splitlines()] == wanted


@pytest.mark.parametrize(
    ("predictions", "wanted"),
    [
        ({"p": np.array([[0.1, 0.9], [0.5, math.nan]], np.float32)}, [[0.1, 0.9], [0.5, None]]),
        ({"p": np.array([1, 2])}, [1, 2]),
        ({"p": np.array([b"a", b"b"], object)}, ["a", "b"]),
        ({"p_bytes": np.array([b"\xff", b"b"], object)}, [{"b64": "/w=="}, {"b64": "Yg=="}]),
        ({"p": np.zeros((2, 0))}, [[], []]),
        ({"p": np.array([1, 2]), "q": np.array([3, 4])}, [{"p": 1, "q": 3}, {"p": 2, "q": 4}]),
        (np.array([[1.5], [2.5]]), [[1.5], [2.5]]),
        ([{"p": 1}, {"p": 2}], [{"p": 1}, {"p": 2}]),
    ],
)
def test_an_only_output_may_come_without_its_name(predictions: Batch, wanted: list[Any]) -> None:
    """In bodies of one request and of several, and in lines; what a routine answers stays as it is."""
    style = AnswerStyle(bare=True)

    assert json.loads(encode_predictions(predictions, style)) == {"predictions": wanted}
    assert [json.loads(body) for body in encode_bodies(predictions, [1, 1], style)] == [
        {"predictions": [one]} for one in wanted
    ]
    assert [json.loads(line) for line in encode_lines(predictions, style).splitlines()] == wanted


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.array([0.1, 1 / 3, 1], np.float32), b"[0.10000000149011612,0.3333333432674408,1.0]"),
        (np.array([0.1], np.float16), b"[0.0999755859375]"),
        (np.array([0.1], np.float64), b"[0.1]"),
        (np.array([math.nan], np.float32), b"[null]"),
        (np.array([7], np.int32), b"[7]"),
    ],
)
def test_float32_may_have_the_digits_of_float64(values: Any, text: bytes) -> None:
    """As AI Platform wrote them, by `tolist`."""
    style = AnswerStyle(bare=True, long_decimals=True)

    assert (
        encode_predictions(values, style)
        == encode_predictions({"p": values}, style)
        == b'{"predictions":%b}' % text
    )
    assert encode_lines(values, style) == text[1:-1].replace(b",", b"\n") + b"\n"


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
@example([2.0**-149, 2.0**-126, 2.0**24, 1 / 3])
def test_float32_is_read_back_to_the_bit(values: list[float]) -> None:
    """Alone, in rows and in columns, whatever is printed is the same float32 when it is read."""
    array = np.array(values, np.float32)

    alone = json.loads(encode_predictions(array))["predictions"]
    column = [row["x"] for row in json.loads(encode_predictions({"x": array[:, None]}))["predictions"]]

    assert np.array(alone, np.float32).tobytes() == array.tobytes()
    assert column == [[value] for value in alone]


@pytest.mark.parametrize("predictions", [[object()], [2**70], {"s": np.array([b"\xff"], object)}])
def test_predictions_that_json_cannot_carry(predictions: Batch) -> None:
    """An answer that cannot be written is the model's fault, and said so."""
    with pytest.raises(InvalidOutputs):
        encode_predictions(predictions)


@pytest.mark.parametrize("form", [ArrayFormat(None, nullable=False), one(FLOAT), one(INT), one(BYTES)])
@pytest.mark.parametrize(("depth", "leaf"), [(65, "1"), (500, '"text"'), (1000, "1")])
def test_lists_deeper_than_arrays_can_be(form: InputFormat, depth: int, leaf: str) -> None:
    """Refused as bad input, whichever way the body takes."""
    body = '{"instances":' + "[" * depth + leaf + "]" * depth + "}" + PADDING

    assert refusal(body.encode(), form)


@pytest.mark.parametrize("padding", ["", PADDING])
def test_of_two_fields_with_one_name_the_last_is_taken(padding: str) -> None:
    """However long the body is."""
    body = '{"a":1,"instances":[[1.5]],"instances":[[2.5]],"a":2}' + padding

    batch, parameters = decode(body.encode(), ArrayFormat(None, nullable=False))

    assert isinstance(batch, np.ndarray)
    assert batch.tolist() == [[2.5]]
    assert parameters == {"a": 2}


@pytest.mark.parametrize("padding", ["", PADDING])
def test_a_nul_does_not_end_a_name(padding: str) -> None:
    """However long the body is."""
    body = '{"instances":[[1.5]],"a":1,"a\\u0000b":2,"instances\\u0000":3}' + padding

    batch, parameters = decode(body.encode(), ArrayFormat(None, nullable=False))

    assert isinstance(batch, np.ndarray)
    assert batch.tolist() == [[1.5]]
    assert parameters == {"a": 1, "a\0b": 2, "instances\0": 3}


@pytest.mark.parametrize("form", [ArrayFormat(2, nullable=True), one(FLOAT, 2)])
def test_a_long_text_takes_no_more_memory_than_it_needs(form: InputFormat) -> None:
    """An array of numpy's own texts would have room for the longest one in each place: here a gigabyte."""
    rows = [["x" * 100_000, "y"], *([1, "y"] for _ in range(1500))]
    tracemalloc.start()
    try:
        message = refusal({"instances": rows}, form)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert "got a string" in message or "is a string" in message
    assert peak < 20e6


@pytest.mark.alone
def test_an_image_is_parsed_in_a_fifth_of_the_plain_time() -> None:
    """A 224 x 224 x 3 image of JSON floats, beside json.loads and numpy.array in the same run."""
    plain, ours = measure_image()

    assert plain / ours >= 5


@pytest.mark.parametrize("shape", [(), (3,), (1,), (2, 2), (0,), (2, 0)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "U3", "object"])
@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 1, 3), (4,)])
def test_answers_of_a_shared_call_are_written_as_if_each_were_alone(
    shape: tuple[int, ...], dtype: str, counts: tuple[int, ...]
) -> None:
    """To the byte, whether they are cut out of one text or not."""
    whole = np.random.default_rng(0).normal(scale=1e6, size=(sum(counts), *shape)).astype(dtype)
    if dtype.startswith("float"):
        whole.flat[:1] = math.nan
    named = {"a": whole, "b": whole}

    for batch in (whole, named, whole.tolist()):
        assert encode_bodies(batch, counts) == [
            encode_predictions(part) for part in split_batch(batch, counts)
        ]
