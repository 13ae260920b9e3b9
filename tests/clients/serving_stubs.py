"""Asks with the stubs of tensorflow-serving-api, as they are."""

from __future__ import annotations

from typing import Any

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from tests.clients.asking import Ask, Call, Told, array, run

DATATYPES = {tf.int64: "INT64", tf.float32: "FP32", tf.float64: "FP64", tf.string: "BYTES"}


# Requests about examples, by the method that answers them.
EXAMPLES = {
    "Classify": classification_pb2.ClassificationRequest,
    "Regress": regression_pb2.RegressionRequest,
    "MultiInference": inference_pb2.MultiInferenceRequest,
}


def connect(url: str) -> tuple[Told, Call]:
    """An ask may have `method`, one of `EXAMPLES`: then it has examples, with `context` or without."""
    channel = grpc.insecure_channel(url)
    predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def call(ask: Ask) -> Told:
        return (_infer if "method" in ask else _predict)(predictions, ask)

    about = {name: _about(channel, name) for name in ("forest", "booster", "saved", "routine")}
    return {**about, "reload": _reload(channel)}, call


def _predict(predictions: Any, ask: Ask) -> Told:
    request = predict_pb2.PredictRequest(output_filter=ask.get("outputs", ()))
    _address(request.model_spec, ask, ask.get("parameters", {}).get("signature_name", ""))
    for given in ask["inputs"]:
        request.inputs[given["name"]].CopyFrom(tf.make_tensor_proto(array(given)))
    answer = predictions.Predict(request, timeout=60)
    outputs = {name: _shown(tensor) for name, tensor in answer.outputs.items()}
    return {"outputs": outputs, "version": str(answer.model_spec.version.value)}


def _infer(predictions: Any, ask: Ask) -> Told:
    """What is answered to examples; the signatures have the names of the methods."""
    method = ask["method"]
    request = EXAMPLES[method]()
    if method == "MultiInference":
        for name in ("regress", "classify"):
            task = request.tasks.add(method_name=f"tensorflow/serving/{name}")
            _address(task.model_spec, ask, name)
    else:
        _address(request.model_spec, ask, method.lower())
    if "context" in ask:
        request.input.example_list_with_context.context.CopyFrom(_example(ask["context"]))
        request.input.example_list_with_context.examples.extend(map(_example, ask["examples"]))
    else:
        request.input.example_list.examples.extend(map(_example, ask["examples"]))
    answer = getattr(predictions, method)(request, timeout=60)
    if method == "Classify":
        return {"classes": _classes(answer.result), "version": str(answer.model_spec.version.value)}
    if method == "Regress":
        return {"values": _values(answer.result), "version": str(answer.model_spec.version.value)}
    values, classes = answer.results
    return {
        "values": _values(values.regression_result),
        "classes": _classes(classes.classification_result),
        "version": str(values.model_spec.version.value),
    }


def _address(spec: Any, ask: Ask, signature: str) -> None:
    spec.name = ask["model"]
    if "version" in ask:
        spec.version.value = int(ask["version"])
    spec.signature_name = signature


def _example(numbers: dict[str, float]) -> Any:
    features = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        for name, value in numbers.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def _classes(result: Any) -> list[Any]:
    return [[[one.label, one.score] for one in classified.classes] for classified in result.classifications]


def _values(result: Any) -> list[float]:
    return [one.value for one in result.regressions]


def _reload(channel: grpc.Channel) -> str:
    """The code of the error that a new configuration is refused with."""
    request = model_management_pb2.ReloadConfigRequest()
    try:
        model_service_pb2_grpc.ModelServiceStub(channel).HandleReloadConfigRequest(request, timeout=60)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def _about(channel: grpc.Channel, model: str) -> dict[str, Any]:
    """The states of a model's versions, and the inputs of each signature."""
    wanted = get_model_status_pb2.GetModelStatusRequest()
    wanted.model_spec.name = model
    states = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(wanted, timeout=60)
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = model
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    told = stub.GetModelMetadata(request, timeout=60)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    told.metadata["signature_def"].Unpack(signatures)
    return {
        "states": [[one.version, one.State.Name(one.state)] for one in states.model_version_status],
        "signatures": {name: sorted(one.inputs) for name, one in signatures.signature_def.items()},
    }


def _shown(tensor: Any) -> list[Any]:
    values = tf.make_ndarray(tensor).tolist()
    if tensor.dtype == tf.string.as_datatype_enum:
        values = [value.decode() for value in values]
    return [DATATYPES[tf.as_dtype(tensor.dtype)], values]


run(connect, grpc.RpcError)
