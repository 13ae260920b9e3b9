"""TensorFlow Serving's gRPC dialect: messages of its own package in and out, on a real model.

TensorFlow is imported by the fixtures only, so that collecting the tests does not import it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.errors import FailedPrecondition, InvalidArgument, InvalidInputs, InvalidOutputs, ServingError
from serving.node.codecs import ServedModel
from serving.node.codecs.classify_regress import extract_classifications, extract_regressions
from serving.node.codecs.tensorflow_grpc import create_codec
from serving.node.codecs.tensorproto import decode_tensors, encode_tensors
from serving.node.codecs.zero_copy import extract_contents
from serving.protocols import Dialect, RequestMetadata, protos
from serving.runtimes import LoadSpec
from serving.runtimes.json_codec import InstancesDecoder
from tests.serving.node.codecs import models

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


@pytest.fixture(scope="module")
def real() -> Any:
    """TensorFlow, and the messages of `tensorflow-serving-api`."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    names = ("predict", "classification", "regression", "inference", "prediction_log", "model_service")
    apis = [import_module(f"tensorflow_serving.apis.{name}_pb2") for name in (*names, "prediction_service")]
    predict, classify, regress, infer, *_ = apis
    return SimpleNamespace(tf=tf, predict=predict, classify=classify, regress=regress, infer=infer)


@pytest.fixture(scope="module")
def model(real: Any, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """One signature of each sort: rows, whole tensors, classes, numbers."""
    from serving.runtimes.tensorflow_runtime import runtime

    folder = tmp_path_factory.mktemp("model")
    save(real.tf, folder)
    loaded = runtime.load_model(LoadSpec(folder))
    return ServedModel(loaded, loaded.infer_schema(), InstancesDecoder())


def save(tf: Any, folder: Path) -> None:
    features = {
        "age": tf.io.FixedLenFeature([], tf.float32, default_value=0.0),
        "name": tf.io.FixedLenFeature([], tf.string, default_value=b"nobody"),
    }
    strings = tf.TensorSpec([None], tf.string, "inputs")

    def rows(x: Any) -> Any:
        return {"sum": tf.reduce_sum(x, 1), "twice": x * 2, "text": tf.strings.as_string(x[:, 0])}

    def whole(n: Any, s: Any) -> Any:
        return {"times": n * tf.size(s, out_type=tf.int64), "joined": tf.strings.reduce_join(s)}

    def classify(inputs: Any) -> Any:
        parsed = tf.io.parse_example(inputs, features)
        scores = tf.stack([parsed["age"], -parsed["age"]], 1)
        return {"classes": tf.stack([parsed["name"], parsed["name"] + b"!"], 1), "scores": scores}

    def regress(inputs: Any) -> Any:
        return {"outputs": tf.io.parse_example(inputs, features)["age"][:, None] * 10}

    module = tf.Module()
    bodies: dict[str, tuple[Callable[..., Any], list[Any]]] = {
        "serving_default": (rows, [tf.TensorSpec([None, 2], tf.float32, "x")]),
        "whole": (whole, [tf.TensorSpec([], tf.int64, "n"), tf.TensorSpec([None], tf.string, "s")]),
        "classify": (classify, [strings]),
        "regress": (regress, [strings]),
    }
    signatures = {name: tf.function(body, input_signature=specs) for name, (body, specs) in bodies.items()}
    tf.saved_model.save(module, str(folder), signatures=signatures)


def ask(model: ServedModel, verb: str, request: Any, version: str = "3") -> bytes:
    """The body of the answer."""
    made = create_codec(RequestMetadata(Dialect.TENSORFLOW_GRPC, verb, "m", version), model)
    asked = made.decode_request(request.SerializeToString())
    reply = made.encode_response(asked, model.runtime.predict(asked.instances, **asked.parameters))
    assert (reply.status, reply.headers) == (200, ((b"content-type", b"application/x-protobuf"),))
    return reply.body


def refused(model: ServedModel, verb: str, request: Any) -> str:
    """The error, as it is told."""
    made = create_codec(RequestMetadata(Dialect.TENSORFLOW_GRPC, verb, "m", "3"), model)
    with pytest.raises(ServingError) as caught:
        made.decode_request(request.SerializeToString())
    reply = made.encode_error(caught.value)
    code = {InvalidInputs: b"3", InvalidArgument: b"3", FailedPrecondition: b"9"}[type(caught.value)]
    assert reply.headers == ((b"grpc-status", code),)
    return reply.body.decode()


# ---- the messages are TensorFlow Serving's


def test_messages_are_those_of_the_package(real: Any) -> None:
    """Every field of ours has the name, the number and the type that it has there."""
    package = protos.load_descriptor_pool().FindFileByName("tensorflow_serving.proto")
    pool = real.predict.DESCRIPTOR.pool
    seen: set[str] = set()
    for name in package.message_types_by_name:
        same(protos.load_message_class(f"tensorflow.serving.{name}").DESCRIPTOR, pool, seen)
    assert {"tensorflow.TensorProto", "tensorflow.Feature", "tensorflow.TensorInfo"} <= seen
    for name in ("PredictionService", "ModelService"):
        ours = protos.load_descriptor_pool().FindServiceByName(f"tensorflow.serving.{name}")
        assert methods(ours) == methods(pool.FindServiceByName(f"tensorflow.serving.{name}"))


def same(ours: Any, pool: Any, seen: set[str]) -> None:
    seen.add(ours.full_name)
    theirs = pool.FindMessageTypeByName(ours.full_name)
    for field in ours.fields:
        assert traits(field) == traits(theirs.fields_by_name[field.name]), field.full_name
        if field.message_type is not None and field.message_type.full_name not in seen:
            same(field.message_type, pool, seen)
        if field.enum_type is not None:
            codes = pool.FindEnumTypeByName(field.enum_type.full_name).values_by_name
            for value in field.enum_type.values:
                assert codes[value.name].number == value.number


def traits(field: Any) -> tuple[Any, ...]:
    oneof = field.containing_oneof and field.containing_oneof.name
    return field.number, field.type, field.is_repeated, field.is_packed, oneof


def methods(service: Any) -> dict[str, tuple[str, str]]:
    return {one.name: (one.input_type.full_name, one.output_type.full_name) for one in service.methods}


TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16",
    "float32", "float64", "complex64", "complex128", "string",
)  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0, 2), (40, 50)])
def test_tensors_are_those_of_tensorflow(real: Any, name: str, shape: tuple[int, ...]) -> None:
    """What it writes is read, and what is written it reads, of every type."""
    tf = real.tf
    numbers = np.random.default_rng(3).integers(0, 2 if name == "bool" else 100, shape)
    array = np.asarray(numbers.astype("S3").astype(object) if name == "string" else numbers)
    array = array.astype(tf.as_dtype(name).as_numpy_dtype)
    request = predict_request(real)
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(array, dtype=name, shape=shape))

    slim, lifted = extract_contents(request.SerializeToString(), 2)
    got = decode_tensors(
        protos.load_message_class("tensorflow.serving.PredictRequest").FromString(slim).inputs, lifted
    )["x"]
    np.testing.assert_array_equal(got, array, strict=True)

    answer = real.predict.PredictResponse.FromString(b"".join(encode_tensors({"y": array}, 1)))
    np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["y"]), array, strict=True)
    assert tf.io.parse_tensor(answer.outputs["y"].SerializeToString(), name).shape == shape


# ---- Predict


def predict_request(real: Any, signature: str = "", *filtered: str, **inputs: Any) -> Any:
    request = real.predict.PredictRequest()
    request.model_spec.name = "m"
    request.model_spec.signature_name = signature
    request.output_filter.extend(filtered)
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(real.tf.make_tensor_proto(value))
    return request


def predicted(real: Any, model: ServedModel, request: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
    answer = real.predict.PredictResponse.FromString(ask(model, "predict", request))
    return answer, {name: real.tf.make_ndarray(tensor) for name, tensor in answer.outputs.items()}


def floats(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 3, 2000])
def test_tensors_are_predicted(real: Any, model: ServedModel, rows: int) -> None:
    """All outputs, as the graph has them; the answer says who gave it."""
    x = floats(rows, 2)
    answer, outputs = predicted(real, model, predict_request(real, x=x))

    assert sorted(outputs) == ["sum", "text", "twice"]
    np.testing.assert_array_equal(outputs["twice"], x * 2, strict=True)
    assert outputs["text"].shape == (rows,)
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 3, "serving_default")
    assert np.array(answer.outputs["sum"].float_val).shape == (rows,)


def test_lists_are_predicted(real: Any, model: ServedModel) -> None:
    """As clients in Go and Java send tensors, short ones and long ones."""
    for rows in (2, 1000):
        x = floats(rows, 2)
        request = predict_request(real)
        request.inputs["x"].dtype = real.tf.float32.as_datatype_enum
        request.inputs["x"].float_val.extend(x.reshape(-1).tolist())
        for size in x.shape:
            request.inputs["x"].tensor_shape.dim.add(size=size)
        _, outputs = predicted(real, model, request)
        np.testing.assert_array_equal(outputs["twice"], x * 2, strict=True)


def test_rows_share_calls_with_those_of_others(real: Any, model: ServedModel) -> None:
    """With JSON too: the instances are the same."""
    request = predict_request(real, "serving_default", x=floats(3, 2))
    asked = create_codec(RequestMetadata(Dialect.TENSORFLOW_GRPC), model).decode_request(
        request.SerializeToString()
    )

    assert isinstance(asked.instances, dict)
    assert asked.parameters == {}


def test_whole_tensors_are_predicted(real: Any, model: ServedModel) -> None:
    """A scalar, and outputs that are no rows."""
    answer, outputs = predicted(real, model, predict_request(real, "whole", n=np.int64(4), s=[b"a", b"\xff"]))

    assert {name: value.tolist() for name, value in outputs.items()} == {"times": 8, "joined": b"a\xff"}
    assert answer.model_spec.signature_name == "whole"


def test_outputs_are_filtered(real: Any, model: ServedModel) -> None:
    _, outputs = predicted(real, model, predict_request(real, "", "twice", x=floats(1, 2)))
    assert list(outputs) == ["twice"]


def test_versions_without_a_number_are_not_told(real: Any, model: ServedModel) -> None:
    body = ask(model, "predict", predict_request(real, x=floats(1, 2)), version="canary")
    assert not real.predict.PredictResponse.FromString(body).model_spec.HasField("version")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"signature": "other", "x": floats(1, 2)}, "No signature found for signature key other"),
        ({"y": floats(1, 2)}, "Input x is missing"),
        ({"x": floats(1, 3)}, r"Input x takes FP32 of shape \[-1, 2\]; got FP32 of shape \[1, 3\]"),
        ({"x": np.zeros((1, 2), np.float64)}, "got FP64"),
        (
            {"filtered": ["sun"], "x": floats(1, 2)},
            "output_filter names sun, which is no output; there are: ",
        ),
        ({"filtered": ["sum", "sum"], "x": floats(1, 2)}, "output_filter names an output twice"),
    ],
)
def test_what_is_wrong_with_tensors_is_told(real: Any, model: ServedModel, asked: Any, why: str) -> None:
    signature, filtered = asked.get("signature", ""), asked.get("filtered", ())
    inputs = {name: value for name, value in asked.items() if name in ("x", "y")}
    assert re.search(why, refused(model, "predict", predict_request(real, signature, *filtered, **inputs)))


@pytest.mark.parametrize("verb", ["predict", "classify", "regress", "multi-inference"])
def test_damaged_messages_are_refused(model: ServedModel, verb: str) -> None:
    class Damaged:
        def SerializeToString(self) -> bytes:  # noqa: N802
            return b"\x0a\xff" * 3000

    said = refused(model, verb, Damaged())
    assert re.fullmatch(r"The message cannot be read as tensorflow\.serving\.\w+Request: .*", said)


def test_other_models_are_asked_too(real: Any) -> None:
    """Rows of numbers, of any name and any type that loses nothing."""
    booster = models.booster(3)
    request = predict_request(real, "", **{"input-0": np.ones((2, 3), np.int32)})
    made = create_codec(RequestMetadata(Dialect.TENSORFLOW_GRPC, "predict", "m", "v"), booster)
    asked = made.decode_request(request.SerializeToString())
    answer = real.predict.PredictResponse.FromString(made.encode_response(asked, np.array([0.5, 1.5])).body)

    assert isinstance(asked.instances, np.ndarray)
    assert real.tf.make_ndarray(answer.outputs["predictions"]).tolist() == [0.5, 1.5]
    for verb in ("classify", "regress"):
        assert f"Only TensorFlow models can {verb}" in refused(booster, verb, examples(real, verb, "", [{}]))


def test_outputs_of_customs_are_checked_when_they_are_there(real: Any) -> None:
    """What a routine answers is not known before."""
    request = predict_request(real, "", "weather", x=[1.0])
    custom = models.routine()
    made = create_codec(RequestMetadata(Dialect.TENSORFLOW_GRPC, "predict", "m", "v"), custom)
    asked = made.decode_request(request.SerializeToString())
    with pytest.raises(InvalidInputs, match="names weather, which is no output; there are: predictions"):
        made.encode_response(asked, [1])


# ---- Classify, Regress, MultiInference


def example(real: Any, features: dict[str, Any]) -> Any:
    train = real.tf.train
    made = train.Example()
    for name, value in features.items():
        feature = made.features.feature[name]
        values = feature.bytes_list if isinstance(value, bytes) else feature.float_list
        values.value.append(value)
    return made


def fill(real: Any, given: Any, rows: list[dict[str, Any]], context: dict[str, Any] | None) -> None:
    if context is None:
        given.example_list.SetInParent()
        found = given.example_list
    else:
        found = given.example_list_with_context
        found.context.CopyFrom(example(real, context))
    found.examples.extend(example(real, row) for row in rows)


def examples(
    real: Any, verb: str, signature: str, rows: list[dict[str, Any]], context: dict[str, Any] | None = None
) -> Any:
    kinds = {"classify": real.classify.ClassificationRequest, "regress": real.regress.RegressionRequest}
    request = kinds[verb]()
    request.model_spec.name = "m"
    request.model_spec.signature_name = signature
    fill(real, request.input, rows, context)
    return request


ROWS: list[dict[str, Any]] = [{"age": 1.5, "name": b"ann"}, {"age": 2.5}]


def test_examples_are_classified(real: Any, model: ServedModel) -> None:
    """Labels with scores, for each example."""
    body = ask(model, "classify", examples(real, "classify", "classify", ROWS))
    answer = real.classify.ClassificationResponse.FromString(body)

    found = [[(one.label, one.score) for one in each.classes] for each in answer.result.classifications]
    assert found == [[("ann", 1.5), ("ann!", -1.5)], [("nobody", 2.5), ("nobody!", -2.5)]]
    assert (answer.model_spec.name, answer.model_spec.signature_name) == ("m", "classify")


def test_a_context_holds_for_all_examples(real: Any, model: ServedModel) -> None:
    """But for the features that they have themselves."""
    request = examples(real, "classify", "classify", ROWS, {"age": 9.0, "name": b"bob"})
    answer = real.classify.ClassificationResponse.FromString(ask(model, "classify", request))

    assert [each.classes[0].label for each in answer.result.classifications] == ["ann", "bob"]
    assert [each.classes[0].score for each in answer.result.classifications] == [1.5, 2.5]


def test_examples_are_regressed(real: Any, model: ServedModel) -> None:
    """A number for each."""
    body = ask(model, "regress", examples(real, "regress", "regress", ROWS))
    answer = real.regress.RegressionResponse.FromString(body)
    assert [one.value for one in answer.result.regressions] == [15, 25]


def multi(real: Any, *tasks: tuple[str, str], rows: Any = ROWS) -> Any:
    request = real.infer.MultiInferenceRequest()
    for method, signature in tasks:
        task = request.tasks.add(method_name=method)
        task.model_spec.name = "m"
        task.model_spec.signature_name = signature
    fill(real, request.input, rows, None)
    return request


CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"


def test_several_signatures_are_asked_at_once(real: Any, model: ServedModel) -> None:
    """The results are in the order of the tasks."""
    body = ask(model, "multi-inference", multi(real, (REGRESS, "regress"), (CLASSIFY, "classify")))
    first, second = real.infer.MultiInferenceResponse.FromString(body).results

    assert [one.value for one in first.regression_result.regressions] == [15, 25]
    assert [each.classes[0].label for each in second.classification_result.classifications] == [
        "ann",
        "nobody",
    ]
    assert [one.model_spec.signature_name for one in (first, second)] == ["regress", "classify"]
    assert {one.model_spec.version.value for one in (first, second)} == {3}


@pytest.mark.parametrize(
    ("signature", "rows", "why"),
    [
        ("classify", [], "Input is empty: there are no examples"),
        ("", ROWS, r"Signature serving_default cannot classify: .* its inputs are x \(FP32\)"),
        ("regress", ROWS, "its outputs would have to be classes, scores, or both; they are outputs"),
        ("other", ROWS, "No signature found for signature key other"),
    ],
)
def test_what_is_wrong_with_examples_is_told(
    real: Any, model: ServedModel, signature: str, rows: Any, why: str
) -> None:
    assert re.search(why, refused(model, "classify", examples(real, "classify", signature, rows)))


def test_only_one_number_can_be_regressed(real: Any, model: ServedModel) -> None:
    said = refused(model, "regress", examples(real, "regress", "classify", ROWS))
    assert "its one output would have to be outputs; its outputs are classes, scores" in said


@pytest.mark.parametrize(
    ("tasks", "why"),
    [
        ((), "The request has no tasks"),
        (((CLASSIFY, "classify"), (CLASSIFY, "classify")), "Two tasks have the same signature"),
        (
            (("tensorflow/serving/predict", ""),),
            "has the method_name 'tensorflow/serving/predict'; it can be",
        ),
        (((CLASSIFY, "classify"), (REGRESS, "whole")), "Signature whole cannot regress"),
    ],
)
def test_what_is_wrong_with_tasks_is_told(real: Any, model: ServedModel, tasks: Any, why: str) -> None:
    assert why in refused(model, "multi-inference", multi(real, *tasks))


def test_an_input_without_examples_is_refused(real: Any, model: ServedModel) -> None:
    request = real.classify.ClassificationRequest()
    request.model_spec.signature_name = "classify"
    assert "Input is empty" in refused(model, "classify", request)


def test_a_context_is_not_put_into_any_number_of_examples() -> None:
    """Whatever the model is, it is not made first."""
    request = protos.load_message_class("tensorflow.serving.ClassificationRequest")()
    given = request.input.example_list_with_context
    given.context.features.feature["a"].bytes_list.value.append(b"x" * (1 << 14))
    for _ in range(2000):
        given.examples.add().features.SetInParent()

    call = RequestMetadata(Dialect.TENSORFLOW_GRPC, "classify", "m")
    with pytest.raises(InvalidInputs, match="each of 2000 examples: it can add 16 MiB"):
        create_codec(call, models.routine()).decode_request(request.SerializeToString())


def test_classes_or_scores_may_be_missing() -> None:
    """As in TensorFlow Serving."""
    labels = np.array([[b"a", b"b"]], object)
    assert extract_classifications({"classes": labels}, 1) == [[(b"a", 0.0), (b"b", 0.0)]]
    assert extract_classifications({"scores": np.array([[0.5, 1]])}, 1) == [[(b"", 0.5), (b"", 1.0)]]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"scores": np.zeros(2)}, r"must be \[2, number of classes\]; they are: scores \[2\]"),
        ({"scores": np.zeros((1, 2))}, "must be"),
        ({"scores": np.zeros((2, 1)), "classes": np.zeros((2, 2), object)}, "must be"),
        ({"scores": np.zeros((2, 2), int)}, "must be of floats; it is of int64"),
        ({"classes": np.zeros((2, 2))}, "must be of texts; it is of float64"),
    ],
)
def test_classes_of_another_shape_are_refused(answer: Any, why: str) -> None:
    with pytest.raises(InvalidOutputs, match=why):
        extract_classifications(answer, 2)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (np.zeros((2, 2)), r"must be \[2\] or \[2, 1\]; they are: outputs \[2, 2\]"),
        (np.zeros(2, int), "must be of floats; it is of int64"),
    ],
)
def test_numbers_of_another_shape_are_refused(values: Any, why: str) -> None:
    with pytest.raises(InvalidOutputs, match=why):
        extract_regressions({"outputs": values}, 2)
