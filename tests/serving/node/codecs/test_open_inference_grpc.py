from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from serving.errors import InvalidInputs
from serving.model_schema import TensorSpec
from serving.node.codecs import DecodedRequest, RequestMetadata, ServedModel
from serving.node.codecs.open_inference_grpc import create_codec
from serving.protocols import Dialect
from serving.protocols.protos import load_message_class
from serving.runtimes.datatypes import dtype_of
from serving.runtimes.instance_batch import Batch, WholeTensors
from tests.serving.node.codecs import models

CALL = RequestMetadata(Dialect.INFERENCE_GRPC, "infer", "m", "3")
X = np.array([[1.5, 2.5, 3.5]])
ROW = {"name": "x", "datatype": "FP64", "shape": [1, 3]}
GRAPH = models.graph(
    TensorSpec("x", "FP64", (-1, 3)),
    outputs=(TensorSpec("a", "FP32", (-1,)), TensorSpec("b", "BYTES", (-1,))),
)
OUTPUTS = {"a": np.array([1.5], np.float32), "b": np.array([b"xy"], object)}


def request(**fields: Any) -> bytes:
    body: bytes = load_message_class("inference.ModelInferRequest")(**fields).SerializeToString()
    return body


def raw(**fields: Any) -> bytes:
    return request(inputs=[ROW], raw_input_contents=[X.tobytes()], **fields)


def listed(**fields: Any) -> bytes:
    return request(inputs=[{**ROW, "contents": {"fp64_contents": [1.5, 2.5, 3.5]}}], **fields)


def read(model: ServedModel, body: bytes) -> DecodedRequest:
    return create_codec(CALL, model).decode_request(body)


def refused(body: bytes, model: ServedModel = GRAPH) -> str:
    with pytest.raises(InvalidInputs) as caught:
        read(model, body)
    return caught.value.detail


def tensor_of(datatype: str, shape: list[int], **contents: Any) -> NDArray[Any]:
    one = {"name": "x", "datatype": datatype, "shape": shape, "contents": contents}
    batch = read(models.graph(TensorSpec("x", datatype, None)), request(inputs=[one])).instances
    assert isinstance(batch, WholeTensors)
    return batch.values["x"]


def answer(model: ServedModel, body: bytes, predictions: Batch) -> Any:
    reply = create_codec(CALL, model).encode_response(read(model, body), predictions)
    assert reply.status == 200
    return load_message_class("inference.ModelInferResponse").FromString(reply.body)


@pytest.mark.parametrize("body", [raw(), listed()], ids=["raw", "listed"])
def test_a_tensor_is_bytes_or_a_list(body: bytes) -> None:
    batch = read(models.booster(), body).instances

    assert isinstance(batch, np.ndarray)
    assert batch.tolist() == X.tolist()


@pytest.mark.parametrize(
    ("datatype", "contents"),
    [
        ("BOOL", {"bool_contents": [True, False]}),
        ("INT8", {"int_contents": [-128, 127]}),
        ("INT64", {"int64_contents": [-(2**63), 2**63 - 1]}),
        ("UINT16", {"uint_contents": [0, 65535]}),
        ("UINT64", {"uint64_contents": [0, 2**64 - 1]}),
        ("FP32", {"fp32_contents": [0.5, 1.5]}),
        ("BYTES", {"bytes_contents": [b"a\0", b""]}),
    ],
)
def test_each_type_has_its_list(datatype: str, contents: Any) -> None:
    tensor = tensor_of(datatype, [2, 1], **contents)

    (values,) = contents.values()
    assert tensor.dtype == dtype_of(datatype)
    assert tensor.reshape(-1).tolist() == values
    assert tensor.shape == (2, 1)


def test_answers_come_as_the_request_came() -> None:
    as_bytes, as_lists = answer(GRAPH, raw(id="7"), OUTPUTS), answer(GRAPH, listed(), OUTPUTS)

    assert (as_bytes.model_name, as_bytes.model_version, as_bytes.id) == ("m", "3", "7")
    assert list(as_bytes.raw_output_contents) == [np.float32(1.5).tobytes(), b"\2\0\0\0xy"]
    assert [(out.name, out.datatype, list(out.shape)) for out in as_bytes.outputs] == [
        ("a", "FP32", [1]),
        ("b", "BYTES", [1]),
    ]
    assert not as_lists.raw_output_contents
    assert list(as_lists.outputs[0].contents.fp32_contents) == [1.5]
    assert list(as_lists.outputs[1].contents.bytes_contents) == [b"xy"]


def test_types_without_a_list_are_answered_as_bytes() -> None:
    said = answer(models.routine(), listed(), np.array([0.5], np.float16))

    assert list(said.raw_output_contents) == [np.float16(0.5).tobytes()]


def test_outputs_are_those_asked_for() -> None:
    said = answer(GRAPH, raw(outputs=[{"name": "b"}]), OUTPUTS)

    assert [output.name for output in said.outputs] == ["b"]
    assert list(said.raw_output_contents) == [b"\2\0\0\0xy"]
    assert "no output c" in refused(raw(outputs=[{"name": "c"}]))


def test_parameters_reach_the_models_that_know_them() -> None:
    parameters = {
        "i": {"int64_param": 5},
        "b": {"bool_param": False},
        "s": {"string_param": "x"},
        "d": {"double_param": 0.5},
        "u": {"uint64_param": 2**64 - 1},
        "none": {},
    }

    assert read(models.routine(), raw(parameters=parameters)).parameters == {
        "i": 5, "b": False, "s": "x", "d": 0.5, "u": 2**64 - 1,
    }  # fmt: skip
    assert (
        read(GRAPH, raw(parameters={"signature_name": {"string_param": "serving_default"}})).parameters == {}
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\xff\xff", "not an inference.ModelInferRequest"),
        (request(), "Input x is missing"),
        (request(inputs=[ROW]), "takes 3 values; its fp64_contents has 0"),
        (
            request(inputs=[ROW], raw_input_contents=[b"", b""]),
            "There are 1 inputs, but 2 raw_input_contents",
        ),
        (request(inputs=[ROW], raw_input_contents=[b"123"]), "has 3 bytes; FP64 of shape [1, 3] takes 24"),
        (request(inputs=[ROW, ROW], raw_input_contents=[X.tobytes()] * 2), "two inputs x"),
        (request(inputs=[{**ROW, "contents": {"fp64_contents": [1]}}], raw_input_contents=[b""]), "both"),
        (
            request(inputs=[{**ROW, "contents": {"fp32_contents": [1, 2, 3]}}]),
            "has fp32_contents; expected fp64",
        ),
        (request(inputs=[{**ROW, "datatype": "FP16"}]), "send it in raw_input_contents"),
        (
            request(inputs=[{**ROW, "datatype": "INT8", "contents": {"int_contents": [1, 2, 300]}}]),
            "range of INT8",
        ),
        (request(inputs=[{**ROW, "datatype": "TEXT"}]), "none of BOOL"),
        (request(inputs=[{**ROW, "shape": [-1]}]), "none of them negative"),
        (request(inputs=[{**ROW, "shape": [2**60, 2**60]}]), "its fp64_contents has 0"),
        (request(inputs=[{**ROW, "shape": [0, 2**60, 9]}]), "too large"),
        (
            request(
                inputs=[{**ROW, "parameters": {"shared_memory_region": {"string_param": "r"}}}],
                raw_input_contents=[X.tobytes()],
            ),
            "shared memory",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_words(body: bytes, words: str) -> None:
    assert words in refused(body)


def test_an_error_is_a_status_of_grpc() -> None:
    reply = create_codec(CALL, GRAPH).encode_error(InvalidInputs("There is no x."))

    assert reply.headers[0] == (b"grpc-status", b"3")
    assert reply.body == b"There is no x."


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(
        [raw(id="7"), listed(outputs=[{"name": "a"}]), raw(parameters={"k": {"bool_param": True}})]
    ),
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 3), st.binary(max_size=3)), min_size=1, max_size=4),
)
def test_whatever_comes_is_read_or_refused(body: bytes, cuts: list[tuple[int, int, bytes]]) -> None:
    """Never with another error than one that says what is wrong."""
    for at, length, put in cuts:
        body = body[:at] + put + body[at + length :]
    for model in (GRAPH, models.routine(), models.booster()):
        with contextlib.suppress(InvalidInputs):
            read(model, body)
