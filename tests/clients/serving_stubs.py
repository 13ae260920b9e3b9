"""Asks with the stubs of tensorflow-serving-api, as they are."""

from __future__ import annotations

from typing import Any

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from tests.clients.asking import Ask, Call, Told, array, run

DATATYPES = {tf.int64: "INT64", tf.float32: "FP32", tf.float64: "FP64", tf.string: "BYTES"}


def connect(url: str) -> tuple[Told, Call]:
    channel = grpc.insecure_channel(url)
    predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def call(ask: Ask) -> Told:
        request = predict_pb2.PredictRequest(output_filter=ask.get("outputs", ()))
        request.model_spec.name = ask["model"]
        if "version" in ask:
            request.model_spec.version.value = int(ask["version"])
        request.model_spec.signature_name = ask.get("parameters", {}).get("signature_name", "")
        for given in ask["inputs"]:
            request.inputs[given["name"]].CopyFrom(tf.make_tensor_proto(array(given)))
        answer = predictions.Predict(request, timeout=60)
        outputs = {name: _shown(tensor) for name, tensor in answer.outputs.items()}
        return {"outputs": outputs, "version": str(answer.model_spec.version.value)}

    about = {name: _about(channel, name) for name in ("forest", "booster", "saved", "routine")}
    return about, call


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
