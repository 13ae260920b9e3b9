"""Asks a model of a running server for one row at a time, by each protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from serving.protocols.protos import load_message_class
from tests.calls import call
from tests.server import Server

Row = NDArray[Any]
Outputs = Mapping[str, Any]

_DATATYPES = {"float32": "FP32", "float64": "FP64"}
_TENSORFLOW_TYPES = {"float32": 1, "float64": 2}
_DTYPES = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64}
_TENSORFLOW_DTYPES = {1: np.float32, 2: np.float64, 9: np.int64}


@dataclass(frozen=True)
class AskedModel:
    """A model of the default project, its only input, and its outputs."""

    server: Server
    channel: grpc.Channel
    name: str
    input: str
    outputs: tuple[str, ...]


def ask_ai_platform(model: AskedModel, row: Row) -> Outputs:
    reply = model.server.predict(f"projects/local/models/{model.name}", [row.tolist()])
    assert reply.status == 200, reply.json
    return _name_only(model, reply.json["predictions"][0])


def ask_tensorflow_rows(model: AskedModel, row: Row) -> Outputs:
    return _name_only(model, _post_to_tensorflow(model, {"instances": [row.tolist()]})["predictions"][0])


def ask_tensorflow_columns(model: AskedModel, row: Row) -> Outputs:
    outputs = _post_to_tensorflow(model, {"inputs": [row.tolist()]})["outputs"]
    return {name: values[0] for name, values in _name_only(model, outputs).items()}


def ask_inference_json(model: AskedModel, row: Row) -> Outputs:
    asked = {**_describe_input(model, row), "data": row.tolist()}
    reply = model.server.call("POST", f"/v2/models/{model.name}/infer", json={"inputs": [asked]})
    assert reply.status == 200, reply.json
    return {one["name"]: np.reshape(one["data"], one["shape"])[0] for one in reply.json["outputs"]}


def ask_inference_bytes(model: AskedModel, row: Row) -> Outputs:
    asked = {**_describe_input(model, row), "parameters": {"binary_data_size": row.nbytes}}
    text = json.dumps({"inputs": [asked], "parameters": {"binary_data_output": True}}).encode()
    response = model.server.http.post(
        f"{model.server.url}/v2/models/{model.name}/infer",
        content=text + row.tobytes(),
        headers={"Inference-Header-Content-Length": str(len(text))},
    )
    assert response.status_code == 200, response.text
    end = int(response.headers["Inference-Header-Content-Length"])
    described, rest = json.loads(response.content[:end])["outputs"], response.content[end:]
    outputs = {}
    for one in described:
        size = one["parameters"]["binary_data_size"]
        outputs[one["name"]] = _read(rest[:size], _DTYPES[one["datatype"]], one["shape"])
        rest = rest[size:]
    return outputs


def ask_inference_grpc(model: AskedModel, row: Row) -> Outputs:
    request = load_message_class("inference.ModelInferRequest")(model_name=model.name)
    request.inputs.add(**_describe_input(model, row))
    request.raw_input_contents.append(row.tobytes())
    reply = call(
        model.channel, "inference.GRPCInferenceService/ModelInfer", "inference.ModelInferResponse", request
    )
    assert reply.code == "OK", reply.text
    described, raws = reply.message.outputs, reply.message.raw_output_contents
    return {
        one.name: _read(raw, _DTYPES[one.datatype], one.shape)
        for one, raw in zip(described, raws, strict=True)
    }


def ask_tensorflow_grpc(model: AskedModel, row: Row) -> Outputs:
    request = load_message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name = model.name
    tensor = request.inputs[model.input]
    tensor.dtype = _TENSORFLOW_TYPES[row.dtype.name]
    for size in (1, len(row)):
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = row.tobytes()
    reply = call(
        model.channel,
        "tensorflow.serving.PredictionService/Predict",
        "tensorflow.serving.PredictResponse",
        request,
    )
    assert reply.code == "OK", reply.text
    return {name: _read_tensor(found) for name, found in reply.message.outputs.items()}


PROTOCOLS: Mapping[str, Callable[[AskedModel, Row], Outputs]] = {
    "AI Platform": ask_ai_platform,
    "TensorFlow Serving's rows": ask_tensorflow_rows,
    "TensorFlow Serving's columns": ask_tensorflow_columns,
    "TensorFlow Serving's gRPC": ask_tensorflow_grpc,
    "Open Inference Protocol": ask_inference_json,
    "Open Inference Protocol with bytes": ask_inference_bytes,
    "Open Inference Protocol's gRPC": ask_inference_grpc,
}


def _post_to_tensorflow(model: AskedModel, body: Mapping[str, Any]) -> Any:
    reply = model.server.call("POST", f"/v1/models/{model.name}:predict", json=body)
    assert reply.status == 200, reply.json
    return reply.json


def _name_only(model: AskedModel, outputs: Any) -> Outputs:
    """Named outputs; one that is the only one may be answered without its name."""
    return outputs if isinstance(outputs, dict) else {model.outputs[0]: outputs}


def _describe_input(model: AskedModel, row: Row) -> dict[str, Any]:
    return {"name": model.input, "shape": [1, len(row)], "datatype": _DATATYPES[row.dtype.name]}


def _read(data: bytes, dtype: Any, shape: Any) -> Any:
    return np.frombuffer(data, dtype).reshape(list(shape))[0]


def _read_tensor(tensor: Any) -> Any:
    dtype = _TENSORFLOW_DTYPES[tensor.dtype]
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_content:
        return _read(tensor.tensor_content, dtype, shape)
    values = tensor.float_val or tensor.double_val or tensor.int64_val
    return np.array(values, dtype).reshape(shape)[0]
