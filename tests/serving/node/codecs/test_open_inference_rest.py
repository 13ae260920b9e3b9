from __future__ import annotations

import contextlib
import gzip
import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs
from serving.model_schema import TensorSpec
from serving.node.codecs import DecodedRequest, RequestMetadata, ServedModel, open_inference_rest
from serving.node.codecs.open_inference_rest import create_codec
from serving.node.codecs.raw_tensors import from_raw, to_raw
from serving.protocols import Dialect
from serving.runtimes.datatypes import DATATYPES, dtype_of
from serving.runtimes.instance_batch import Batch, WholeTensors
from tests.serving.node.codecs import models

WIDE = TensorSpec("x", "FP32", None)
JSON_BYTES = b"inference-header-content-length"


def call(**told: Any) -> RequestMetadata:
    return RequestMetadata(Dialect.INFERENCE, "infer", "m", "3", **told)


def read(model: ServedModel, request: Any, binary: bytes | None = None) -> DecodedRequest:
    text = request if isinstance(request, bytes) else json.dumps(request).encode()
    told = None if binary is None else len(text)
    return create_codec(call(json_bytes=told), model).decode_request(text + (binary or b""))


def one(data: Any, shape: Any = (), datatype: str = "FP32", **fields: Any) -> dict[str, Any]:
    tensor = {"name": "x", "shape": list(shape), "datatype": datatype, "data": data}
    return {"inputs": [tensor], **fields}


def tensor_of(request: Any, datatype: str = "FP32", binary: bytes | None = None) -> NDArray[Any]:
    batch = read(models.graph(TensorSpec("x", datatype, None)), request, binary).instances
    assert isinstance(batch, WholeTensors)
    return batch.values["x"]


def refused(request: Any, model: ServedModel | None = None, binary: bytes | None = None) -> str:
    with pytest.raises(InvalidInputs) as caught:
        read(model or models.graph(WIDE), request, binary)
    return caught.value.detail


def answer(model: ServedModel, predictions: Batch, **fields: Any) -> Any:
    """The answer to a request with these fields; with the bytes behind it, if there are any."""
    asked = read(
        model, {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}], **fields}
    )
    reply = create_codec(call(), model).encode_response(asked, predictions)
    assert reply.status == 200
    if not reply.headers:
        return json.loads(reply.body)
    assert reply.headers[0] == (b"content-type", b"application/octet-stream")
    size = int(dict(reply.headers)[JSON_BYTES])
    return json.loads(reply.body[:size]), reply.body[size:]


# ---- data in JSON


@pytest.mark.parametrize("padding", ["", " " * 600], ids=["short", "long"])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (11,)])
@pytest.mark.parametrize("text", ["hello w\u00f6rld", "\0000"])
def test_a_text_in_no_list(text: str, shape: tuple[int, ...], padding: str) -> None:
    """One value, as MLServer has it; its shape may be its length."""
    numbers = {"name": "n", "shape": [2], "datatype": "FP32", "data": [1, 2]}
    request = one(text, shape, "BYTES", note=padding)
    request["inputs"].append(numbers)
    batch = read(
        models.graph(TensorSpec("x", "BYTES", None), TensorSpec("n", "FP32", None)), request
    ).instances
    assert isinstance(batch, WholeTensors)
    assert batch.values["x"].ravel().tolist() == [text.encode()]
    assert batch.values["x"].shape == (shape if shape != (11,) else (1,))
    assert batch.values["n"].tolist() == [1, 2]


def test_a_list_of_numbers_is_no_text() -> None:
    """Also where numbers are read apart."""
    for padding in ("", " " * 600):
        assert "takes strings; among its data is" in refused(one([1, 2], (2,), "BYTES", note=padding))
        assert "must be a list; it is a string" in refused(one("1", (1,), "FP32", note=padding))


@pytest.mark.parametrize(
    ("content_type", "data", "shape", "values"),
    [
        ("str", ["UHk=", "a"], [2, 1], [b"UHk=", b"a"]),
        ("base64", ["UHk=", "not base64!"], [2, 1], [b"Py", b"not base64!"]),
        ("base64", "AP8=", [1, 1], [b"\x00\xff"]),
        ("np", ["UHk="], [1, 1], [[b"UHk="]]),
    ],
)
def test_mlservers_content_types(content_type: str, data: Any, shape: list[int], values: list[Any]) -> None:
    """Of an input, or of the request; texts of shape [n, 1] go where one value for each row is taken."""
    parameters = {"parameters": {"content_type": content_type}}
    for request in (one(data, shape, "BYTES", **parameters), one(data, shape, "BYTES")):
        request["inputs"][0].update(parameters)
        model = models.graph(
            TensorSpec("x", "BYTES", (-1,)) if content_type != "np" else TensorSpec("x", "BYTES", None)
        )
        batch = read(model, request).instances
        tensor = batch.values["x"] if isinstance(batch, WholeTensors) else batch["x"]  # type: ignore[call-overload]
        assert tensor.tolist() == values
    wide = models.graph(TensorSpec("x", "BYTES", (-1, 1)))
    request = one(["a"], [1, 1], "BYTES", **parameters)
    batch = read(wide, request).instances
    assert isinstance(batch, dict)
    assert batch["x"].shape == (1, 1)


@pytest.mark.parametrize("name", ["predictions", "output-0", "predict"])
def test_the_one_output_by_the_names_of_other_servers(name: str) -> None:
    """KServe's and MLServer's; it is answered by the name it was asked for by."""
    outputs = [{"name": name, "parameters": {"binary_data": True}}]
    told, raw = answer(models.booster(), np.array([1.0, 2.0]), outputs=outputs)
    assert told["outputs"][0]["name"] == name
    assert np.frombuffer(raw).tolist() == [1, 2]
    assert "There is no output output-0: the model has y." in refused(
        one([1.0], (1,), outputs=[{"name": "output-0"}])
    )


@pytest.mark.parametrize(
    ("names", "methods"),
    [
        (["output-0"], None),
        (["predictions"], None),
        (["predict"], ("predict",)),
        (["predict_proba", "output-0"], ("predict_proba", "predictions")),
    ],
)
def test_names_of_other_servers_where_outputs_are_methods(
    names: list[str], methods: tuple[str, ...] | None
) -> None:
    """KServe's name asks for the usual method."""
    outputs = [{"name": name} for name in names]
    decoded = read(models.classifier(), one([1, 2, 3], (1, 3), "FP64", outputs=outputs))

    assert decoded.parameters.get("method") == methods


def test_an_output_as_base64() -> None:
    """Bytes that are no text, in JSON."""
    outputs = [{"name": "predictions", "parameters": {"content_type": "base64"}}]
    told = answer(models.booster(), [b"\x00\xff"], outputs=outputs)
    assert told["outputs"][0]["data"] == ["AP8="]


@pytest.mark.parametrize("data", [[1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]]], ids=["flat", "nested"])
@pytest.mark.parametrize("padding", ["", " " * 600], ids=["short", "long"])
def test_data_may_be_flat_or_nested(data: Any, padding: str) -> None:
    tensor = tensor_of(one(data, (2, 3), "INT32", note=padding), "INT32")

    assert tensor.dtype == np.int32
    assert tensor.tolist() == [[1, 2, 3], [4, 5, 6]]


NUMBERS = [name for name in DATATYPES if name not in ("BOOL", "BYTES")]


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize("count", [3, 300], ids=["short", "long"])
def test_every_type_of_numbers_is_read(datatype: str, count: int) -> None:
    tensor = tensor_of(one([1, 0, 2] * count, (count, 3), datatype), datatype)

    assert tensor.dtype == dtype_of(datatype)
    assert tensor.shape == (count, 3)
    assert tensor[-1].tolist() == [1, 0, 2]


@pytest.mark.parametrize("count", [1, 300], ids=["short", "long"])
def test_booleans_and_texts_are_read(count: int) -> None:
    assert tensor_of(one([True, False] * count, (count, 2), "BOOL"), "BOOL")[-1].tolist() == [True, False]
    assert tensor_of(one([["a", "ö"]] * count, (count, 2), "BYTES"), "BYTES")[-1].tolist() == [
        b"a",
        "ö".encode(),
    ]


@pytest.mark.parametrize("padding", ["", " " * 600], ids=["short", "long"])
def test_null_is_nan(padding: str) -> None:
    assert np.isnan(tensor_of(one([1.5, None], (2,), "FP64", note=padding), "FP64")).tolist() == [False, True]


def test_a_tensor_may_have_no_dimensions_or_no_elements() -> None:
    assert tensor_of(one([2.5])).tolist() == 2.5
    assert tensor_of(one([], (0, 3))).shape == (0, 3)
    assert tensor_of(one([[], []], (2, 0))).shape == (2, 0)


def test_integers_are_read_to_the_last_digit() -> None:
    most = 2**64 - 1
    assert tensor_of(one([most], (1,), "UINT64"), "UINT64").tolist() == [most]
    assert tensor_of(one([most] * 100, (100,), "UINT64"), "UINT64")[0] == most


def test_a_text_with_more_lists_than_there_can_be_inputs_is_read_once() -> None:
    """And refused for their number."""
    tensor = {"shape": [1], "datatype": "FP32", "data": [1]}
    text = orjson.dumps({"inputs": [{"name": str(number), **tensor} for number in range(16385)]})

    assert refused(text) == "The request names 16385 inputs; it can name 16384."
    assert open_inference_rest._extract_number_lists(text) == (text, {})


def test_several_long_inputs_are_read_each_by_itself() -> None:
    numbers = list(range(300))
    request = {
        "inputs": [
            {"data": [float(n) for n in numbers], "name": "a", "shape": [300, 1], "datatype": "FP32"},
            {"name": "s", "shape": [300], "datatype": "BYTES", "data": ["data"] * 300},
            {"name": "b", "data": [numbers, numbers], "shape": [2, 300], "datatype": "INT64"},
        ]
    }
    inputs = [
        TensorSpec("a", "FP32", (-1, 1)),
        TensorSpec("s", "BYTES", (-1,)),
        TensorSpec("b", "INT64", (-1, 300)),
    ]

    batch = read(models.graph(*inputs), request).instances

    assert isinstance(batch, WholeTensors)
    assert batch.values["a"].reshape(-1).tolist() == numbers
    assert batch.values["b"].tolist() == [numbers, numbers]
    assert set(batch.values["s"].tolist()) == {b"data"}


@pytest.mark.parametrize(
    ("data", "shape", "datatype", "words"),
    [
        ([1, 2], (3,), "FP32", "takes 3 values"),
        ([[1, 2], [3]], (2, 2), "FP32", "ragged"),
        ([[1, 2], [3, 4]], (4,), "FP32", "has the shape [2, 2]"),
        ([1, "a"], (2,), "FP32", "a string"),
        ([True], (1,), "FP32", "a boolean"),
        ([1.5], (1,), "INT32", "takes integers; among its data is 1.5"),
        ([None], (1,), "INT32", "null"),
        ([300], (1,), "UINT8", "out of the range of UINT8"),
        ([-1], (1,), "UINT64", "out of the range of UINT64"),
        ([2**70], (1,), "INT64", "takes integers; among its data is 1.18"),
        ([1e300], (1,), "FP32", "out of the range of FP32"),
        ([1], (1,), "BOOL", "true or false"),
        ([1], (1,), "BYTES", "takes strings"),
        ([["a"], ["b", "c"]], (3,), "BYTES", "a list"),
        ("text", (1,), "FP32", "must be a list"),
        ("\0000", (1,), "FP32", "must be a list"),
        (None, (1,), "FP32", "must be a list; it is null"),
        ([1], (1,), "FP8", "none of BOOL"),
        ([1], (-1,), "FP32", "none of them negative"),
        ([1], (1,) * 40, "FP32", "at most 32 sizes"),
        ([], (10**12, 10**12), "FP32", "takes 1000000000000000000000000 values"),
        ([], (0, 2**62, 4), "FP32", "too large"),
        ([], (0, 2**63), "FP32", "too large"),
    ],
)
@pytest.mark.parametrize("more", [0, 300], ids=["short", "long"])
def test_data_that_does_not_fit_is_refused_in_words(
    data: Any, shape: Any, datatype: str, words: str, more: int
) -> None:
    """In the same words whether the body is short or long."""
    note = {"name": "y", "shape": [more], "datatype": "FP32", "data": [0.5] * more}
    request = one(data, shape, datatype)
    request["inputs"].append(note)

    assert words in refused(request, models.graph(WIDE, TensorSpec("y", "FP32", None)))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "has no JSON"),
        (b"[]", "Expected `object`"),
        (gzip.compress(b"{}", mtime=0), "compressed with gzip"),
        (b"{}", "missing required field `inputs`"),
        (b'{"inputs": [{"name": "x"}]}', "missing required field `shape` - at `$.inputs[0]`"),
        (b'{"inputs": [{"name": "x", "shape": ["a"], "datatype": "FP32"}]}', "at `$.inputs[0].shape[0]`"),
        (b'{"inputs": [], "id": 5}', "Expected `str | null`, got `int` - at `$.id`"),
        (b'{"inputs": []}', "Input x is missing"),
        (b'{"inputs": [NaN]}', "not valid JSON"),
        (b'{"inputs": []}\0\0', "Inference-Header-Content-Length"),
        (b'{"inputs":' + b"[" * 200 + b"]" * 200 + b"}", "nested too deeply"),
        (
            b'{"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1,,2]}]'
            + b" " * 600
            + b"}",
            "JSON",
        ),
    ],
)
def test_what_is_no_request_is_refused_in_words(body: bytes, words: str) -> None:
    assert words in refused(body)


def test_a_name_comes_once() -> None:
    request = one([1], (1,))
    request["inputs"] *= 2

    assert refused(request) == "There are two inputs x."


def test_inputs_are_checked_against_the_signature() -> None:
    assert refused(one([1, 2], (1, 2)), models.booster()) == (
        "Input x takes numbers of shape [-1, 3]; got FP32 of shape [1, 2]."
    )


VALUES = st.recursive(
    st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.none()
    | st.booleans(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=8,
)
REGULAR = arrays.array_shapes(max_dims=3, max_side=3).flatmap(
    lambda shape: arrays.arrays(np.float64, shape, elements=st.integers(-300, 300)).map(
        lambda array: (list(shape), array.astype(int).tolist())
    )
)
ANY = st.tuples(st.lists(st.integers(-1, 3), max_size=3), st.lists(VALUES, max_size=4))


@settings(max_examples=200, deadline=None)
@given(REGULAR | ANY, st.sampled_from(DATATYPES))
def test_a_long_body_is_read_as_a_short_one_is(given_: tuple[list[int], Any], datatype: str) -> None:
    """To the same values, or with the same words; numbers are read apart in long ones."""
    shape, data = given_

    def outcome(**fields: Any) -> object:
        try:
            tensor = tensor_of(one(data, shape, datatype, **fields), datatype)
        except InvalidInputs as error:
            return error.detail
        return tensor.dtype, tensor.shape, repr(tensor.tolist())

    assert outcome(note=" " * 600) == outcome()


# ---- bytes behind the JSON


def behind(size: int, shape: Any, datatype: str = "FP32") -> dict[str, Any]:
    tensor = {"name": "x", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}
    return {"inputs": [tensor]}


def test_tensors_may_be_bytes_behind_the_json() -> None:
    x, s = np.array([[1.5, 2.5]], np.float32), b"\1\0\0\0a\2\0\0\0bc"
    request = {
        "inputs": [behind(8, [1, 2])["inputs"][0], {**behind(11, [2], "BYTES")["inputs"][0], "name": "s"}]
    }
    model = models.graph(TensorSpec("x", "FP32", None), TensorSpec("s", "BYTES", None))

    batch = read(model, request, x.tobytes() + s).instances

    assert isinstance(batch, WholeTensors)
    assert batch.values["x"].tolist() == x.tolist()
    assert batch.values["s"].tolist() == [b"a", b"bc"]


def test_bytes_and_json_may_stand_in_one_request() -> None:
    request = one([1], (1,))
    request["inputs"].append({**behind(4, [1])["inputs"][0], "name": "y"})
    model = models.graph(WIDE, TensorSpec("y", "FP32", None))

    batch = read(model, request, np.float32(2).tobytes()).instances

    assert isinstance(batch, WholeTensors)
    assert {name: tensor.tolist() for name, tensor in batch.values.items()} == {"x": [1], "y": [2]}


def test_bytes_in_order_are_not_copied() -> None:
    rows = np.ones((2, 3))
    request = json.dumps(behind(48, [2, 3], "FP64")).encode()
    request += b" " * (-len(request) % 8)
    body = bytearray(request + rows.tobytes())

    batch = create_codec(call(json_bytes=len(request)), models.booster()).decode_request(body).instances

    assert isinstance(batch, np.ndarray)
    assert np.shares_memory(batch, np.frombuffer(body, np.uint8))


@pytest.mark.parametrize(
    ("request_", "binary", "words"),
    [
        (behind(8, [1, 2]), b"1234", "Input x has 8 bytes, but only 4 are left"),
        (behind(8, [1, 2]), b"1234567890", "2 bytes more than its inputs say"),
        (behind(8, [1, 3]), b"12345678", "Input x has 8 bytes; FP32 of shape [1, 3] takes 12"),
        (behind(8, [10**12, 10**12]), b"12345678", "takes 4000000000000000000000000"),
        (behind(0, [0, 2**62, 4]), b"", "too large"),
        (behind(3, [1], "BYTES"), b"123", "too few for 1 texts"),
        (behind(6, [1], "BYTES"), b"\5\0\0\0ab", "ends within text 0 of 1"),
        (behind(8, [1], "BYTES"), b"\1\0\0\0abcd", "3 bytes more than its 1 texts take"),
        (behind(-1, [1]), b"", "must be a number of bytes; it is -1"),
        (behind("8", [1]), b"", "must be a number of bytes; it is '8'"),  # type: ignore[arg-type]
        ({"inputs": [one([1], (1,))["inputs"][0] | behind(4, [1])["inputs"][0]]}, b"1234", "both"),
        ({"inputs": [one([1])["inputs"][0] | {"parameters": {"shared_memory_region": "a"}}]}, b"", "shared"),
    ],
)  # fmt: skip
def test_bytes_that_do_not_fit_are_refused_in_words(request_: Any, binary: bytes, words: str) -> None:
    assert words in refused(
        request_, models.graph(TensorSpec("x", request_["inputs"][0]["datatype"], None)), binary
    )


def test_a_body_is_as_long_as_its_head_says_at_least() -> None:
    with pytest.raises(InvalidInputs, match="is 100, but the whole body has 2 bytes"):
        create_codec(call(json_bytes=100), models.booster()).decode_request(b"{}")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_bytes_are_read_as_they_are_written(data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(DATATYPES))
    dtype = dtype_of(datatype)
    assert dtype is not None
    shape = data.draw(arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    if datatype == "BYTES":
        array = data.draw(arrays.arrays(object, shape, elements=st.binary(max_size=9), fill=st.nothing()))
    else:
        size = int(np.prod(shape)) * dtype.itemsize
        array = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
        array = array.astype(bool) if datatype == "BOOL" else array

    again = from_raw("x", datatype, shape, bytes(to_raw("x", array)))

    assert again.shape == array.shape
    assert again.tolist() == array.tolist() or again.tobytes() == array.tobytes()


# ---- parameters and answers


def test_the_answer_tells_model_version_and_the_id_of_the_request() -> None:
    predictions = np.array([0.1], np.float32)

    assert answer(models.booster(), predictions, id="a-1") == {
        "model_name": "m",
        "model_version": "3",
        "id": "a-1",
        "outputs": [{"name": "predictions", "datatype": "FP32", "shape": [1], "data": [0.1]}],
    }
    assert "id" not in answer(models.booster(), predictions)


@pytest.mark.parametrize(
    ("predictions", "datatype", "shape", "data"),
    [
        ([[1, 2]], "INT64", [1, 2], [1, 2]),
        ([True], "BOOL", [1], [True]),
        (["ö"], "BYTES", [1], ["ö"]),
        ([{"a": 1}], "BYTES", [1], ['{"a":1}']),
        (np.array([[0.5], [np.nan]]), "FP64", [2, 1], [0.5, None]),
        (np.array([0.5], np.float16), "FP16", [1], [0.5]),
        (np.ones((4, 2))[:, 1], "FP64", [4], [1, 1, 1, 1]),
    ],
)
def test_answers_are_flat_json(predictions: Any, datatype: str, shape: Any, data: Any) -> None:
    (output,) = answer(models.routine(), predictions)["outputs"]

    assert output == {"name": "predictions", "datatype": datatype, "shape": shape, "data": data}


TWO = (TensorSpec("a", "FP32", (-1,)), TensorSpec("b", "BYTES", (-1,)))
OUTPUTS = {"a": np.array([1.5], np.float32), "b": np.array([b"xy"], object)}
GRAPH = models.graph(TensorSpec("x", "FP64", (-1, 3)), outputs=TWO)


def test_all_outputs_are_bytes_if_that_is_asked_for() -> None:
    said, raw = answer(GRAPH, OUTPUTS, parameters={"binary_data_output": True})

    assert said["outputs"] == [
        {"name": "a", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}},
        {"name": "b", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}},
    ]
    assert raw == np.float32(1.5).tobytes() + b"\2\0\0\0xy"


def test_outputs_are_those_asked_for_each_in_its_form() -> None:
    outputs = [{"name": "b"}, {"name": "a", "parameters": {"binary_data": True}}]

    said, raw = answer(GRAPH, OUTPUTS, outputs=outputs)

    assert [(out["name"], out.get("data")) for out in said["outputs"]] == [("b", ["xy"]), ("a", None)]
    assert raw == np.float32(1.5).tobytes()
    said = answer(GRAPH, OUTPUTS, outputs=[{"name": "b", "parameters": {"binary_data": False}}],
                  parameters={"binary_data_output": True})  # fmt: skip
    assert said["outputs"] == [{"name": "b", "datatype": "BYTES", "shape": [1], "data": ["xy"]}]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"outputs": [{"name": "c"}]}, "There is no output c: the model has a, b."),
        ({"outputs": [{"name": "a"}, {"name": "a"}]}, "asked for twice"),
        (
            {"outputs": [{"name": "a", "parameters": {"classification": 3}}]},
            '"classification" is not offered',
        ),
        ({"outputs": [{"name": "a", "parameters": {"shared_memory_region": "r"}}]}, "shared memory"),
        ({"outputs": [{"name": "a", "parameters": {"binary_data": 1}}]}, "must be true or false; it is 1"),
        ({"parameters": {"binary_data_output": "yes"}}, "must be true or false; it is 'yes'"),
        ({"parameters": {"signature_name": 5}}, "must be a string"),
        ({"parameters": {"signature_name": "sing"}}, "No signature found for signature key sing"),
    ],
)
def test_wishes_that_cannot_be_are_refused_in_words(fields: Any, words: str) -> None:
    request = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}], **fields}

    assert words in refused(request, GRAPH)


def test_outputs_without_a_word_in_the_protocol_are_an_error() -> None:
    with pytest.raises(InvalidOutputs, match="COMPLEX64"):
        answer(GRAPH, {"a": np.ones(1, np.complex64)})
    with pytest.raises(InvalidOutputs, match="binary_data"):
        answer(GRAPH, {"b": np.array([b"\xff"], object)})


def test_parameters_reach_the_models_that_know_them() -> None:
    """All others are to be ignored."""
    request = one([1], (1, 1), parameters={"priority": 1, "binary_data_output": True, "signature_name": "s"})

    assert read(models.routine(), request).parameters == {"priority": 1, "signature_name": "s"}
    assert read(models.booster(1, knows=()), request).parameters == {}
    assert read(models.booster(1, knows=("priority",)), request).parameters == {"priority": 1}


def test_an_error_is_told_as_the_protocol_does() -> None:
    reply = create_codec(call(), models.booster()).encode_error(InvalidInputs("There is no x."))

    assert (reply.status, orjson.loads(reply.body)) == (400, {"error": "There is no x."})


def whole(request: Any, binary: bytes = b"") -> tuple[bytes, int]:
    text = json.dumps(request).encode()
    return text + binary, len(text)


X = {"name": "x", "shape": [2, 100], "datatype": "FP32"}
BODIES = [
    whole({"inputs": [{**X, "data": [0.25] * 200}], "id": "a", "outputs": [{"name": "y"}]}),
    whole({"inputs": [{**X, "data": [[-1.5] * 100] * 2}], "parameters": {"binary_data_output": True}}),
    whole({"inputs": [{**X, "parameters": {"binary_data_size": 800}}]}, b"\0" * 800),
    whole(behind(19, [2, 1], "BYTES"), b"\1\0\0\0a\x0a\0\0\0bcdefghijk"),
]
CUTS = st.lists(
    st.tuples(
        st.integers(0, 1500),
        st.integers(0, 4),
        st.binary(max_size=3) | st.sampled_from([b"[", b'"', b"}", b"]"]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(BODIES), CUTS, st.integers(-3, 3))
def test_whatever_comes_is_read_or_refused(
    body: tuple[bytes, int], cuts: list[tuple[int, int, bytes]], off: int
) -> None:
    """Never with another error than one that says what is wrong."""
    text, size = body
    for at, length, put in cuts:
        text = text[:at] + put + text[at + length :]
    for told in (None, max(size + off, 0)):
        for model in (models.graph(TensorSpec("x", "FP32", (-1, 100))), models.routine(), models.texts()):
            with contextlib.suppress(InvalidInputs):
                create_codec(call(json_bytes=told), model).decode_request(text)
