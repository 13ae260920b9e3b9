"""Predictions of a model by every protocol, as lists of what its own library would have returned."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.calls import call, grpc, load_message_class
from tests.server import Server

Rows = NDArray[Any]
Ask = Callable[[Server, str, Rows], list[Any]]

_KINDS = {"FP64": "<f8", "FP32": "<f4", "INT64": "<i8", "INT32": "<i4"}
_DT_DOUBLE, _DT_STRING = 2, 7


def is_tensor(rows: list[Any]) -> bool:
    """Whether rows have a form in protocols of tensors: one type of values."""
    return (
        len({type(value) is str for row in rows for value in (row if isinstance(row, list) else [row])}) == 1
    )


def by_ai_platform(server: Server, model: str, rows: list[Any]) -> list[Any]:
    """JSON; rows may have values of several types."""
    return _checked(server.predict(f"projects/local/models/{model}", rows).json, "predictions")


def by_serving_rest(server: Server, model: str, rows: list[Any]) -> list[Any]:
    """TensorFlow Serving's JSON, which takes the same."""
    return _checked(
        server.call("POST", f"models/{model}:predict", json={"instances": rows}).json, "predictions"
    )


def by_npy(server: Server, model: str, rows: Rows) -> list[Any]:
    """An array as numpy writes it, both ways."""
    file = io.BytesIO()
    np.save(file, rows)
    headers = {"content-type": "application/x-npy", "accept": "application/x-npy"}
    url = f"{server.url}/v1/projects/local/models/{model}:predict"
    response = server.http.post(url, content=file.getvalue(), headers=headers)
    assert response.status_code == 200, response.text
    found: list[Any] = np.load(io.BytesIO(response.content)).tolist()
    return found


def by_inference_json(server: Server, model: str, rows: Rows) -> list[Any]:
    """The Open Inference Protocol."""
    body = {"inputs": [{**_tensor(rows), "data": rows.ravel().tolist()}]}
    (output,) = _checked(server.call("POST", f"/v2/models/{model}/infer", json=body).json, "outputs")
    found: list[Any] = np.reshape(output["data"], output["shape"]).tolist()
    return found


def by_inference_binary(server: Server, model: str, rows: Rows) -> list[Any]:
    """The same, with tensors as bytes both ways."""
    data = _packed(rows)
    tensor = {**_tensor(rows), "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"}
    response = server.http.post(f"{server.url}/v2/models/{model}/infer", content=head + data, headers=headers)
    assert response.status_code == 200, response.text
    length = int(response.headers["inference-header-content-length"])
    (output,) = json.loads(response.content[:length])["outputs"]
    return _unpacked(response.content[length:], output["datatype"], output["shape"])


def by_inference_grpc(server: Server, model: str, rows: Rows) -> list[Any]:
    """The same over gRPC, with raw contents."""
    request = load_message_class("inference.ModelInferRequest")(
        model_name=model, raw_input_contents=[_packed(rows)]
    )
    request.inputs.add(**_tensor(rows))
    with grpc.insecure_channel(server.grpc) as channel:
        method = "inference.GRPCInferenceService/ModelInfer"
        reply = call(channel, method, "inference.ModelInferResponse", request, seconds=60)
    assert reply.message, reply
    (output,) = reply.message.outputs
    return _unpacked(reply.message.raw_output_contents[0], output.datatype, list(output.shape))


def by_serving_grpc(server: Server, model: str, rows: Rows) -> list[Any]:
    """TensorFlow Serving's Predict."""
    request = load_message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name = model
    tensor = request.inputs["input"]
    for size in rows.shape:
        tensor.tensor_shape.dim.add(size=size)
    if rows.dtype.kind == "U":
        tensor.dtype = _DT_STRING
        tensor.string_val.extend(text.encode() for text in rows.ravel().tolist())
    else:
        tensor.dtype = _DT_DOUBLE
        tensor.tensor_content = rows.tobytes()
    with grpc.insecure_channel(server.grpc) as channel:
        method = "tensorflow.serving.PredictionService/Predict"
        reply = call(channel, method, "tensorflow.serving.PredictResponse", request, seconds=60)
    assert reply.message, reply
    return _from_proto(reply.message.outputs["predictions"])


# Rows as JSON has them, and tensors.
ROWS: Mapping[str, Callable[[Server, str, list[Any]], list[Any]]] = {
    "AI Platform": by_ai_platform,
    "TensorFlow Serving, REST": by_serving_rest,
}
TENSORS: Mapping[str, Ask] = {
    "npy": by_npy,
    "Open Inference Protocol, JSON": by_inference_json,
    "Open Inference Protocol, bytes": by_inference_binary,
    "Open Inference Protocol, gRPC": by_inference_grpc,
    "TensorFlow Serving, gRPC": by_serving_grpc,
}


def _checked(body: dict[str, Any], name: str) -> list[Any]:
    assert name in body, body
    found: list[Any] = body[name]
    return found


def _tensor(rows: Rows) -> dict[str, Any]:
    kind = "BYTES" if rows.dtype.kind == "U" else "FP64"
    return {"name": "input", "datatype": kind, "shape": list(rows.shape)}


def _packed(rows: Rows) -> bytes:
    if rows.dtype.kind != "U":
        return rows.astype("<f8").tobytes()
    texts = [text.encode() for text in rows.ravel().tolist()]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def _unpacked(data: bytes, datatype: str, shape: list[int]) -> list[Any]:
    if datatype != "BYTES":
        numbers: list[Any] = np.frombuffer(data, _KINDS[datatype]).reshape(shape).tolist()
        return numbers
    found, place = [], 0
    while place < len(data):
        (length,) = struct.unpack_from("<I", data, place)
        found.append(data[place + 4 : place + 4 + length].decode())
        place += 4 + length
    texts: list[Any] = np.reshape(np.array(found, object), shape).tolist()
    return texts


def _from_proto(tensor: Any) -> list[Any]:
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.dtype == _DT_STRING:
        values: Any = np.array([text.decode() for text in tensor.string_val], object)
    elif tensor.tensor_content:
        values = np.frombuffer(tensor.tensor_content, {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}[tensor.dtype])
    else:
        values = np.array(
            next(
                list(found)
                for found in (tensor.double_val, tensor.float_val, tensor.int64_val, tensor.int_val)
                if found
            )
        )
    found: list[Any] = values.reshape(shape).tolist()
    return found
