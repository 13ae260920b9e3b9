"""TensorProto messages and arrays: every type, both ways, and nothing that a message only claims to have."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs, ServingError
from serving.model_schema import TensorSpec
from serving.node.codecs.tensorflow_grpc import create_codec
from serving.node.codecs.tensorproto import MAX_FILLED_BYTES, TYPE_NUMBERS, decode_tensors, encode_tensors
from serving.node.codecs.zero_copy import MIN_CONTENT_BYTES, extract_contents
from serving.protocols import Dialect, RequestMetadata, protos
from serving.runtimes.datatypes import dtype_of
from tests.serving.node.codecs import models

REQUEST = protos.load_message_class("tensorflow.serving.PredictRequest")
RESPONSE = protos.load_message_class("tensorflow.serving.PredictResponse")
INPUTS, OUTPUTS = 2, 1

NUMERIC = [name for name in TYPE_NUMBERS if name not in ("BYTES", "BF16")]
SHAPES = st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


def arrays() -> st.SearchStrategy[NDArray[Any]]:
    """Arrays of every type."""
    numbers = st.sampled_from(NUMERIC).flatmap(lambda name: st_numpy.arrays(dtype_of(name), SHAPES))  # type: ignore[arg-type]
    texts = st_numpy.arrays(object, SHAPES, elements=st.binary(max_size=20), fill=st.just(b""))
    return numbers | texts


def request(shape: tuple[int, ...], datatype: str = "FP32", **values: Any) -> Any:
    """A request with a tensor x."""
    made = REQUEST()
    tensor = made.inputs["x"]
    tensor.MergeFrom(
        protos.load_message_class("tensorflow.TensorProto")(dtype=TYPE_NUMBERS[datatype], **values)
    )
    tensor.tensor_shape.SetInParent()
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    return made


def read(message: Any) -> dict[str, NDArray[Any]]:
    """The tensors of a request, as they are read from its bytes."""
    slim, lifted = extract_contents(message.SerializeToString(), INPUTS)
    return decode_tensors(REQUEST.FromString(slim).inputs, lifted)


def refused(message: Any) -> str:
    with pytest.raises(InvalidInputs) as caught:
        read(message)
    return caught.value.detail


def written(**outputs: NDArray[Any]) -> Any:
    return RESPONSE.FromString(b"".join(encode_tensors(outputs, OUTPUTS)))


@settings(max_examples=200)
@given(arrays())
def test_what_is_written_is_read_again(array: NDArray[Any]) -> None:
    """Type, shape and every bit; texts with whatever bytes they have."""
    outputs = written(x=array).outputs

    got = decode_tensors(outputs, {})["x"]
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert got.tolist() == array.tolist() if array.dtype.kind == "O" else got.tobytes() == array.tobytes()
    assert not outputs["x"].tensor_content  # clients look into the lists


@settings(max_examples=100)
@given(st.sampled_from(NUMERIC).flatmap(lambda name: st_numpy.arrays(dtype_of(name), SHAPES)))  # type: ignore[arg-type]
def test_contents_are_the_bytes_of_an_array(array: NDArray[Any]) -> None:
    """As `tf.make_tensor_proto` has them."""
    message = request(array.shape, _name(array), tensor_content=array.tobytes())
    got = read(message)["x"]
    assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes())


def _name(array: NDArray[Any]) -> str:
    return next(name for name in NUMERIC if dtype_of(name) == array.dtype)


@pytest.mark.parametrize("datatype", NUMERIC)
@pytest.mark.parametrize("field", ["tensor_content", "list"])
def test_long_tensors_are_read_alike(datatype: str, field: str) -> None:
    """Whether protobuf is given them or not; those that can be are not copied."""
    random = np.random.default_rng(1)
    array = random.integers(0, 2, (70, 100)).astype(dtype_of(datatype))
    message = written(x=array, y=array[:1, :1])
    asked = request((), "INT32", int_val=[7])
    if field == "list":
        asked.inputs["x"].CopyFrom(message.outputs["x"])
    else:
        asked.inputs["x"].CopyFrom(request((70, 100), datatype, tensor_content=array.tobytes()).inputs["x"])
    asked.inputs["y"].CopyFrom(message.outputs["y"])
    asked.model_spec.name = "m"
    body = bytearray(asked.SerializeToString())

    slim, lifted = extract_contents(body, INPUTS)
    parsed = REQUEST.FromString(bytes(slim))
    got = decode_tensors(parsed.inputs, lifted)
    assert parsed.model_spec.name == "m"
    assert sorted(got) == ["x", "y"]
    np.testing.assert_array_equal(got["x"], array, strict=True)
    np.testing.assert_array_equal(got["y"], array[:1, :1], strict=True)
    as_in_memory = datatype in ("FP32", "FP64", "COMPLEX64", "COMPLEX128")
    assert bool(lifted) == (field == "tensor_content" or as_in_memory)
    if lifted and datatype != "BOOL":
        assert np.shares_memory(got["x"], np.frombuffer(body, np.uint8))


def test_unusual_messages_are_left_to_protobuf() -> None:
    """Of two entries with a key the last one counts, and of two contents of a tensor."""
    long, short = request((2000,), tensor_content=b"\1" * 8000), request((1,), float_val=[5])
    twice = long.SerializeToString() + short.SerializeToString()
    assert extract_contents(twice, INPUTS) == (twice, {})

    tensor = long.inputs["x"].SerializeToString() + bytes([4 << 3 | 2, 4]) + b"\2" * 4
    entry = b"\x0a\x01x\x12" + bytes([len(tensor) & 0x7F | 0x80, len(tensor) >> 7]) + tensor
    split = b"\x12" + bytes([len(entry) & 0x7F | 0x80, len(entry) >> 7]) + entry
    assert REQUEST.FromString(split).inputs["x"].tensor_content == b"\2" * 4
    assert extract_contents(split, INPUTS) == (split, {})
    assert extract_contents(long.SerializeToString()[:-1], INPUTS)[1] == {}
    assert len(long.SerializeToString()) > MIN_CONTENT_BYTES


@given(st.binary(max_size=300))
def test_any_bytes_are_lifted_or_left(noise: bytes) -> None:
    """Noise in front of a request makes no difference to what protobuf reads of it."""
    body = noise + request((2000,), tensor_content=b"\1" * 8000).SerializeToString()
    slim, lifted = extract_contents(body, INPUTS)
    try:
        wanted = REQUEST.FromString(body)
    except protos.MessageDecodeError:
        if not lifted:
            return
        with pytest.raises(protos.MessageDecodeError):
            REQUEST.FromString(slim)
    else:
        found = REQUEST.FromString(slim)
        for name, content in lifted.items():
            setattr(found.inputs[name], content.field, bytes(content.data))
        assert found == wanted


@pytest.mark.parametrize(
    ("shape", "datatype", "values", "wanted"),
    [
        ((3,), "FP32", {"float_val": [1, 2]}, [1, 2, 2]),
        ((2, 2), "INT64", {"int64_val": [-7]}, [[-7, -7], [-7, -7]]),
        ((2,), "FP64", {}, [0, 0]),
        ((2,), "BYTES", {}, [b"", b""]),
        ((3,), "BYTES", {"string_val": [b"a", b"b\0"]}, [b"a", b"b\0", b"b\0"]),
        ((), "BOOL", {"bool_val": [True]}, True),
        ((0, 5), "FP32", {}, []),
        ((2,), "BOOL", {"tensor_content": b"\0\7"}, [False, True]),
        ((3,), "BYTES", {"tensor_content": b"\1\0\2abc"}, [b"a", b"", b"bc"]),
        ((2,), "COMPLEX64", {"scomplex_val": [1, 2]}, [1 + 2j, 1 + 2j]),
        ((2,), "FP16", {"half_val": [0x3C00, 0xC000]}, [1, -2]),
    ],
)
def test_short_lists_go_on(shape: tuple[int, ...], datatype: str, values: Any, wanted: Any) -> None:
    """With their last element, as in TensorFlow; an empty one with zeros."""
    got = read(request(shape, datatype, **values))["x"]
    assert (got.tolist(), got.shape, got.dtype) == (wanted, shape, dtype_of(datatype))


def test_bfloat16_is_wider_where_numpy_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A float32 has the same number."""
    for values in ({"half_val": [0x3F80, 0xC000]}, {"tensor_content": b"\x80\x3f\x00\xc0"}):
        with monkeypatch.context() as patch:
            patch.setattr("serving.node.codecs.tensorproto.dtype_of", lambda name: None)
            got = read(request((2,), "BF16", **values))["x"]
        assert (got.dtype.name, got.tolist()) == ("float32", [1, -2])


def test_bfloat16_is_itself_where_numpy_has_it() -> None:
    """That is where TensorFlow is."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([[1.5, -2]], ml_dtypes.bfloat16)
    outputs = written(x=array).outputs
    assert list(outputs["x"].half_val) == [0x3FC0, 0xC000]
    np.testing.assert_array_equal(decode_tensors(outputs, {})["x"], array, strict=True)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (request((3,), tensor_content=b"1234"), "tensor_content has 4 bytes; 3 elements of DT_FLOAT"),
        (request((1 << 40,), float_val=[1]), r"it has 1 of the 1099511627776 elements of its shape"),
        (request((1 << 62, 1 << 62, 1 << 62)), "send all elements"),
        (request((1,), float_val=[1, 2]), r"it has 2 elements; its shape \[1\] takes 1"),
        (request((-1,), float_val=[1]), "its shape is not known"),
        (request((1,) * 33, float_val=[1]), "it has 33 dimensions; at most 32"),
        (request((0, 1 << 62)), "Input x: "),
        (request((2,), "INT8", int_val=[1, 128]), "128 is no number of 8 bits"),
        (request((1,), "FP16", half_val=[-1]), "-1 is no number of 16 bits"),
        (request((1,), "COMPLEX64", scomplex_val=[1, 2, 3]), "takes two"),
        (request((2,), "BYTES", tensor_content=b"\1"), "has not the lengths of 2 texts"),
        (request((2,), "BYTES", tensor_content=b"\1\1a"), "has 1 bytes for texts that have 2"),
        (request((2000,), double_val=[1] * 2000), "in double_val; those of DT_FLOAT go into float_val"),
    ],
)
def test_what_is_wrong_is_told(message: Any, why: str) -> None:
    """Of which input, and what; a shape that lies allocates nothing."""
    said = refused(message)
    assert said.startswith("Input x: ")
    assert re.search(why, said)


def test_types_that_are_not_taken() -> None:
    """Those of quantised numbers, resources, and what nobody knows."""
    for number, name in (
        (11, "DT_QINT8"),
        (20, "DT_RESOURCE"),
        (0, "DT_INVALID"),
        (77, "77, an unknown type"),
    ):
        message = request((1,))
        message.inputs["x"].dtype = number
        assert refused(message).startswith(f"Input x: its dtype is {name}; it can be one of DT_BOOL, DT_INT8")


def test_unknown_ranks_are_refused() -> None:
    message = request((1,), float_val=[1])
    message.inputs["x"].tensor_shape.unknown_rank = True
    assert "its shape is not known" in refused(message)


def test_a_request_of_millions_of_parts_does_not_keep_a_node_busy() -> None:
    """Each is a few bytes."""
    unknown = b"\x78\x00" * 1_000_000 + request((2000,), tensor_content=bytes(8000)).SerializeToString()
    assert extract_contents(unknown, INPUTS) == (unknown, {})

    texts = request((1 << 21,), "BYTES", tensor_content=bytes(1 << 21))
    assert "tensor_content can have 1048576 texts; send more of them in string_val" in refused(texts)

    examples = protos.load_message_class("tensorflow.serving.ClassificationRequest")()
    examples.input.example_list.MergeFromString(b"\x0a\x00" * ((1 << 20) + 1))
    made = create_codec(RequestMetadata(Dialect.TENSORFLOW_GRPC, "classify", "m", "v"), models.booster(3))
    with pytest.raises(InvalidInputs, match="The request has 1048577 examples; it can have 1048576"):
        made.decode_request(examples.SerializeToString())


def test_what_is_left_out_is_limited_for_a_request() -> None:
    """Not for each of its tensors."""
    message = REQUEST()
    for name in ("a", "b", "c"):
        message.inputs[name].MergeFrom(request((MAX_FILLED_BYTES // 8,), float_val=[1]).inputs["x"])
    assert "send all elements" in refused(message)
    del message.inputs["c"]
    assert all(array.nbytes == MAX_FILLED_BYTES // 2 for array in read(message).values())


@given(st.lists(st.integers(-2, 1 << 63), max_size=40), st.integers(0, 120), st.binary(max_size=64))
def test_any_tensor_is_read_or_refused(sizes: list[int], number: int, content: bytes) -> None:
    """Whatever its shape, type and contents say."""
    message = request(())
    tensor = message.inputs["x"]
    tensor.dtype = number
    tensor.tensor_content = content
    for size in sizes:
        tensor.tensor_shape.dim.add(size=min(size, (1 << 63) - 1))
    try:
        got = read(message)["x"]
    except InvalidInputs:
        pass
    else:
        assert got.shape == tuple(sizes)
        assert got.nbytes <= max(MAX_FILLED_BYTES, 8 * math.prod(sizes))


def test_answers_are_made_of_any_memory() -> None:
    """Columns, slices, other byte orders."""
    array = np.arange(24, dtype=">f8").reshape(4, 6)[::2, 1:].T
    np.testing.assert_array_equal(decode_tensors(written(y=array).outputs, {})["y"], array)


def test_types_that_no_tensor_has() -> None:
    with pytest.raises(InvalidOutputs, match="Output y is of the type datetime64"):
        encode_tensors({"y": np.array(["2020-01-01"], "datetime64[D]")}, OUTPUTS)


VERBS = {
    "predict": "PredictRequest",
    "classify": "ClassificationRequest",
    "regress": "RegressionRequest",
    "multi-inference": "MultiInferenceRequest",
}


@pytest.mark.parametrize("verb", VERBS)
@settings(max_examples=100)
@given(data=st.data())
def test_any_message_is_read_or_refused(verb: str, data: st.DataObject) -> None:
    """Nothing that is sent is an error of the server: requests with a few bytes changed, for every model."""
    made = protos.load_message_class(f"tensorflow.serving.{VERBS[verb]}")()
    if verb == "predict":
        made.CopyFrom(request((2, 3), tensor_content=bytes(24)))
        made.output_filter.append("predictions")
    else:
        made.input.example_list_with_context.examples.add().features.feature["a"].float_list.value.append(1)
    if verb == "multi-inference":
        made.tasks.add(method_name="tensorflow/serving/classify").model_spec.signature_name = "say"
    else:
        made.model_spec.signature_name = data.draw(st.sampled_from(["", "say", "serving_default"]))
    body = bytearray(made.SerializeToString())
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)), max_size=4)
    ):
        body[place] = byte

    for model in (models.booster(3), models.routine(), models.graph(TensorSpec("x", "FP32", (-1, 3)))):
        with contextlib.suppress(ServingError):
            create_codec(RequestMetadata(Dialect.TENSORFLOW_GRPC, verb, "m", "v"), model).decode_request(body)
