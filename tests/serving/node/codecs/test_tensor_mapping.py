from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs
from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec
from serving.node.codecs import CodecCache, ServedModel
from serving.node.codecs.tensor_mapping import batch_to_tensors, find_signature, tensors_to_batch
from serving.protocols import Dialect, RequestMetadata
from serving.protocols.protos import load_message_class
from serving.runtimes import RowsFormat
from serving.runtimes.datatypes import DATATYPES, datatype_of, dtype_of
from serving.runtimes.instance_batch import WholeTensors
from tests.serving.node.codecs import models

X = TensorSpec("x", "FP32", (-1, 2))
N = TensorSpec("n", "INT64", (-1,))


def objects(*values: Any) -> NDArray[Any]:
    return np.array(values, object)


def refused(model: ServedModel, signature: str = "", **tensors: NDArray[Any]) -> str:
    with pytest.raises(InvalidInputs) as caught:
        tensors_to_batch(model, tensors, signature)
    return caught.value.detail


# ---- graphs


def test_rows_of_a_graph_are_columns_that_can_share_a_call() -> None:
    x, n = np.ones((3, 2), np.float32), np.arange(3)

    batch, parameters = tensors_to_batch(models.graph(X, N), {"n": n, "x": x})

    assert isinstance(batch, dict)
    assert batch["x"] is x
    assert batch["n"] is n
    assert parameters == {}


@pytest.mark.parametrize(
    ("inputs", "given"),
    [
        ((TensorSpec("k", "FP32", ()),), {"k": np.array(2, np.float32)}),
        ((TensorSpec("x", "FP32", (1, 2)),), {"x": np.ones((1, 2), np.float32)}),
        ((X, N), {"x": np.ones((3, 2), np.float32), "n": np.arange(2)}),
        ((X,), {"x": np.ones((0, 2), np.float32)}),
        ((TensorSpec("x", "FP32", None),), {"x": np.ones((1, 2), np.float32)}),
    ],
    ids=["scalar", "fixed batch", "uneven rows", "no rows", "open rank"],
)
def test_what_has_no_rows_goes_into_a_graph_whole(
    inputs: tuple[TensorSpec, ...], given: dict[str, NDArray[Any]]
) -> None:
    batch, _ = tensors_to_batch(models.graph(*inputs), given)

    assert isinstance(batch, WholeTensors)
    assert batch.values.keys() == given.keys()


def test_rows_stay_whole_where_an_output_has_none() -> None:
    model = models.graph(X, outputs=(TensorSpec("mean", "FP32", ()),))

    assert isinstance(tensors_to_batch(model, {"x": np.ones((3, 2), np.float32)})[0], WholeTensors)


def test_numbers_become_wider_and_never_narrower() -> None:
    batch, _ = tensors_to_batch(models.graph(N), {"n": np.array([1, 2], np.int32)})

    assert isinstance(batch, dict)
    assert batch["n"].dtype == np.int64
    assert refused(models.graph(X), x=np.ones((1, 2))) == (
        "Input x takes FP32 of shape [-1, 2]; got FP64 of shape [1, 2]."
    )
    assert "INT64" in refused(models.graph(N), n=np.ones(1, np.float32))
    assert "INT64" in refused(models.graph(N), n=np.ones(1, np.uint64))
    assert "INT64" in refused(models.graph(N), n=np.ones(1, np.bool_))


def test_a_tensor_of_another_shape_is_refused() -> None:
    assert refused(models.graph(X), x=np.ones((1, 3), np.float32)) == (
        "Input x takes FP32 of shape [-1, 2]; got FP32 of shape [1, 3]."
    )


def test_names_are_to_be_those_of_the_signature() -> None:
    x = np.ones((1, 2), np.float32)

    assert refused(models.graph(X, N), x=x) == "Input n is missing: the model takes x, n; got x."
    assert refused(models.graph(X), x=x, y=x) == "There is no input y: the model takes x; got x, y."


def test_a_message_does_not_list_names_without_end() -> None:
    many = {f"x{number}": np.ones(1) for number in range(1000)}

    with pytest.raises(InvalidInputs, match=r"x18, x19 and 980 more\.") as caught:
        tensors_to_batch(models.graph(X), many)
    assert len(caught.value.detail) < 300


def test_a_signature_is_chosen_by_its_name() -> None:
    model = models.graph(X)

    assert tensors_to_batch(model, {"text": objects(b"a")}, "say")[1] == {"signature_name": "say"}
    assert tensors_to_batch(model, {"x": np.ones((1, 2), np.float32)}, "serving_default")[1] == {}
    assert refused(model, "sing", x=np.ones(1)) == (
        "No signature found for signature key sing. The model has: serving_default, say."
    )
    assert find_signature(model).inputs == (X,)


def test_numbers_of_the_other_endianness_are_turned_round() -> None:
    batch, _ = tensors_to_batch(models.graph(X), {"x": np.ones((1, 2), ">f4")})

    assert isinstance(batch, dict)
    assert batch["x"].dtype.isnative
    assert batch["x"].tolist() == [[1, 1]]


# ---- rows


def test_rows_of_numbers_are_taken_by_any_name_without_a_copy() -> None:
    rows = np.ones((2, 3))

    assert tensors_to_batch(models.booster(), {"input-0": rows}) == (rows, {})


@pytest.mark.parametrize(
    ("dtype", "becomes"),
    [("f2", "f8"), ("f4", "f8"), ("i4", "i8"), ("u1", "i8"), ("u8", "i8"), ("?", "i8")],
)
def test_numbers_have_the_type_that_those_of_json_have(dtype: str, becomes: str) -> None:
    batch, _ = tensors_to_batch(models.booster(), {"x": np.ones((1, 3), dtype)})

    assert isinstance(batch, np.ndarray)
    assert batch.dtype == np.dtype(becomes)
    assert batch.tolist() == [[1, 1, 1]]


def test_a_row_alone_is_refused_in_words() -> None:
    assert refused(models.booster(), x=np.ones(3)) == (
        "Input x takes numbers of shape [-1, 3]; got FP64 of shape [3]. A single row has the shape [1, 3]."
    )


def test_rows_that_are_no_numbers_or_of_another_width_are_refused() -> None:
    assert "got FP64 of shape [1, 4]" in refused(models.booster(), x=np.ones((1, 4)))
    assert "got BYTES of shape [1, 3]" in refused(models.booster(), x=objects([b"a", b"b", b"c"]))
    assert "no rows" in refused(models.booster(), x=np.ones((0, 3)))
    assert "above" in refused(models.booster(), x=np.full((1, 3), 2**63, np.uint64))
    assert refused(models.booster()) == "The request has no inputs."


def test_rows_that_begin_anywhere_in_a_body_are_put_in_place() -> None:
    rows = np.frombuffer(b"\0" + np.ones(3).tobytes(), np.float64, offset=1).reshape(1, 3)
    assert not rows.flags.aligned

    batch, _ = tensors_to_batch(models.booster(), {"x": rows})

    assert isinstance(batch, np.ndarray)
    assert batch.flags.aligned


@pytest.mark.parametrize("dialect", [Dialect.TENSORFLOW_GRPC, Dialect.INFERENCE_GRPC, Dialect.INFERENCE])
@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_requests_of_many_names_are_refused(dialect: Dialect, what: str) -> None:
    """They would keep a node busy."""
    made = CodecCache(models.routine()).get_or_create(RequestMetadata(dialect))
    with pytest.raises(InvalidInputs, match=f"The request names 16385 {what}; it can name 16384"):
        made.decode_request(many(dialect, what))


@pytest.mark.parametrize("count", [1 << 21, 1 << 40])
def test_lists_of_nothing_are_not_endless(count: int) -> None:
    """A few bytes can tell of any number of rows without a value."""
    tensor = {"name": "x", "shape": [count, 0], "datatype": "FP32"}
    grpc = load_message_class("inference.ModelInferRequest")(inputs=[tensor], raw_input_contents=[b""])
    serving = load_message_class("tensorflow.serving.PredictRequest")()
    serving.inputs["x"].dtype = 1
    for size in (count, 0):
        serving.inputs["x"].tensor_shape.dim.add(size=size)
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count}, 0), }}".encode()

    for call, body in (
        (RequestMetadata(Dialect.INFERENCE), orjson.dumps({"inputs": [{**tensor, "data": []}]})),
        (RequestMetadata(Dialect.INFERENCE_GRPC), grpc.SerializeToString()),
        (RequestMetadata(Dialect.TENSORFLOW_GRPC), serving.SerializeToString()),
        (
            RequestMetadata(content_type="application/x-npy"),
            b"\x93NUMPY\x01\0" + len(head).to_bytes(2, "little") + head,
        ),
    ):
        with pytest.raises(InvalidInputs, match="no elements, and its other sizes are too large"):
            CodecCache(models.routine()).get_or_create(call).decode_request(body)


@pytest.mark.parametrize("where", ["request", "input"])
def test_requests_of_many_parameters_are_refused(where: str) -> None:
    """Wherever these are."""
    names = [str(number) for number in range(65537)]
    request = load_message_class("inference.ModelInferRequest")()
    part = request if where == "request" else request.inputs.add(name="x")
    for name in names:
        part.parameters[name].bool_param = True
    parameters = dict.fromkeys(names, True)
    one = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    asked = (
        {"inputs": [one], "parameters": parameters}
        if where == "request"
        else {"inputs": [{**one, "parameters": parameters}]}
    )

    for dialect, body in (
        (Dialect.INFERENCE_GRPC, request.SerializeToString()),
        (Dialect.INFERENCE, orjson.dumps(asked)),
    ):
        with pytest.raises(InvalidInputs, match="The request names 65537 parameters; it can name 65536"):
            CodecCache(models.routine()).get_or_create(RequestMetadata(dialect)).decode_request(body)


def many(dialect: Dialect, what: str) -> bytes:
    """A request with so many of them."""
    names = [str(number) for number in range(16385)]
    if dialect is Dialect.INFERENCE:
        whole = {"shape": [1], "datatype": "FP32", "data": [1]} if what == "inputs" else {}
        return orjson.dumps({"inputs": [], what: [{"name": name, **whole} for name in names]})
    if dialect is Dialect.INFERENCE_GRPC:
        request = load_message_class("inference.ModelInferRequest")()
        for name in names:
            getattr(request, what).add(name=name)
    else:
        request = load_message_class("tensorflow.serving.PredictRequest")()
        for name in names:
            if what == "inputs":
                request.inputs[name].dtype = 1
            else:
                request.output_filter.append(name)
    return bytes(request.SerializeToString())


def test_rows_can_be_written_to() -> None:
    """As those of JSON can: estimators may work in place."""
    rows = np.frombuffer(np.ones(3).tobytes(), np.float64).reshape(1, 3)
    assert not rows.flags.writeable

    batch, _ = tensors_to_batch(models.booster(), {"x": rows})

    assert isinstance(batch, np.ndarray)
    assert batch.flags.writeable


def test_features_may_come_each_by_its_name() -> None:
    tensors = {"b": np.array([1, 2]), "a": np.array([[0.5], [1.5]], np.float32)}

    batch, _ = tensors_to_batch(models.named("a", "b"), tensors)

    assert isinstance(batch, np.ndarray)
    assert batch.tolist() == [[0.5, 1], [1.5, 2]]
    assert refused(models.named("a", "b"), a=np.ones(1)).startswith("Input b is missing")
    assert refused(models.named("a", "b"), a=np.ones(1), b=objects(b"x")) == (
        "Input b takes numbers of shape [-1] or [-1, 1]; got BYTES of shape [1]."
    )


def test_features_with_names_may_come_together_too() -> None:
    rows = np.ones((2, 2))

    assert tensors_to_batch(models.named("a", "b"), {"input-0": rows})[0] is rows
    assert tensors_to_batch(models.named("a"), {"a": np.ones(2)})[0].shape == (2, 1)  # type: ignore[union-attr]


def test_columns_of_several_types_become_objects() -> None:
    tensors = {"rooms": np.array([[2.0], [3.0]], np.float32), "city": objects(b"Rom", "Köln".encode())}

    assert tensors_to_batch(models.mixed(), tensors)[0] == [
        {"rooms": 2.0, "city": "Rom"},
        {"rooms": 3.0, "city": "Köln"},
    ]


def test_columns_are_to_be_those_of_the_model() -> None:
    city, rooms = objects(b"Rom", b"Wien"), np.ones(2)

    assert (
        refused(models.mixed(), city=city) == "Input rooms is missing: the model takes city, rooms; got city."
    )
    assert "no input area" in refused(models.mixed(), city=city, rooms=rooms, area=rooms)
    assert "same number of rows: city has 2, rooms has 1" in refused(
        models.mixed(), city=city, rooms=rooms[:1]
    )
    assert "Input city takes BYTES" in refused(models.mixed(), city=rooms, rooms=rooms)
    assert "Input rooms takes numbers" in refused(models.mixed(), city=city, rooms=np.ones((2, 2)))


def test_columns_without_names_are_rows_in_order() -> None:
    model = models.mixed("column-0", "column-1")

    batch, _ = tensors_to_batch(model, {"column-1": np.ones(1), "column-0": objects(b"Rom")})

    assert batch == [["Rom", 1.0]]


def test_columns_of_one_type_may_come_together() -> None:
    columns = [TensorSpec("a", "BYTES", (-1,)), TensorSpec("b", "BYTES", (-1,))]
    model = models.of(
        "SCIKIT_LEARN",
        RowsFormat(),
        ModelSchema("sklearn", {DEFAULT_SIGNATURE: ModelSignature((*columns,), ())}),
    )

    assert tensors_to_batch(model, {"x": objects([b"x", b"y"])})[0] == [["x", "y"]]


def test_what_may_be_anything_is_taken_as_it_is() -> None:
    unknown = ModelSignature((TensorSpec("instances", "BYTES", None),), ())
    model = models.of("SCIKIT_LEARN", RowsFormat(), ModelSchema("sklearn", {DEFAULT_SIGNATURE: unknown}))

    assert tensors_to_batch(model, {"x": np.ones((1, 2))})[0] == [[1, 1]]
    assert tensors_to_batch(model, {"x": objects(b"a")})[0] == ["a"]


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_texts_are_one_per_row(shape: tuple[int, ...]) -> None:
    batch, _ = tensors_to_batch(models.texts(), {"predict": objects(b"yes", b"no").reshape(shape)})

    assert batch == ["yes", "no"]


def test_texts_are_not_numbers() -> None:
    assert refused(models.texts(), x=np.ones(2)) == (
        "Input x takes BYTES of shape [-1]; got FP64 of shape [2]."
    )


def test_a_routine_gets_rows_as_json_has_them() -> None:
    one, _ = tensors_to_batch(models.routine(), {"any": np.array([[1.5, 2.0]], np.float32)})
    two, _ = tensors_to_batch(models.routine(), {"a": np.array([[1], [2]]), "b": objects(b"x", b"\xff")})

    assert one == [[1.5, 2.0]]
    assert two == [{"a": [1], "b": "x"}, {"a": [2], "b": b"\xff"}]
    assert "single value" in refused(models.routine(), a=np.array(1))


def test_a_routine_is_told_the_signature_that_others_do_not_have() -> None:
    assert tensors_to_batch(models.routine(), {"x": np.ones(1)}, "say")[1] == {"signature_name": "say"}
    assert tensors_to_batch(models.booster(), {"x": np.ones((1, 3))}, "say")[1] == {}


# ---- answers


def test_named_outputs_keep_their_names() -> None:
    outputs = {"y": np.ones(2, np.float32)}

    assert batch_to_tensors(outputs) == outputs
    assert batch_to_tensors(WholeTensors(outputs)) == outputs


@pytest.mark.parametrize(
    ("predictions", "datatype", "values"),
    [
        (np.array([0.5], np.float32), "FP32", [0.5]),
        ([1, 2], "INT64", [1, 2]),
        ([[1, 2.5]], "FP64", [[1, 2.5]]),
        ([True], "BOOL", [True]),
        (np.array(["a", "bcd"]), "BYTES", [b"a", b"bcd"]),
        ([["a", "ö"]], "BYTES", [[b"a", "ö".encode()]]),
        ([b"a\0"], "BYTES", [b"a\0"]),
        ([{"a": 1}, None], "BYTES", [b'{"a":1}', b"null"]),
        ([[1], [2, 3]], "BYTES", [b"[1]", b"[2,3]"]),
        (["a", 1], "BYTES", [b'"a"', b"1"]),
        (np.array([1], np.longdouble), "FP64", [1]),
    ],
)
def test_predictions_without_a_name_are_tensors_too(predictions: Any, datatype: str, values: Any) -> None:
    (name, tensor), *more = batch_to_tensors(predictions).items()

    assert (name, more) == ("predictions", [])
    assert datatype_of(tensor.dtype) == datatype
    assert tensor.tolist() == values


def test_predictions_that_nothing_can_carry_are_an_error() -> None:
    with pytest.raises(InvalidOutputs, match="JSON"):
        batch_to_tensors([object()])
    with pytest.raises(InvalidOutputs, match="UTF-8"):
        batch_to_tensors(["\ud800"])


def test_types_have_one_name_each() -> None:
    for datatype in DATATYPES:
        dtype = dtype_of(datatype)
        assert dtype is not None
        assert datatype_of(dtype) == datatype
    assert dtype_of("FP8") is None
