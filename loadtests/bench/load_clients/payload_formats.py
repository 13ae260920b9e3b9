"""The same rows encoded in each protocol that a server speaks, and its answers decoded."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtests.bench.load_clients.answers import flatten_numbers
from serving.protocols.protos import load_message_class

Rows = NDArray[Any]

_MODEL = "m"
_JSON_LENGTH = "inference-header-content-length"
_NPY = "application/x-npy"
_DATATYPES = {"float32": "FP32", "float64": "FP64"}
_TYPES = {"float32": 1, "float64": 2}  # DT_FLOAT, DT_DOUBLE


@dataclass(frozen=True)
class PayloadFormat:
    """The request and answer bodies of one protocol.

    `target` is a path over HTTP, a method of a service over gRPC. `encode` makes a request body from the name
    of the model's input and rows; `headers_of` gives the headers of a body; `decode` returns the numbers of
    an answer, flat.
    """

    name: str
    target: str
    encode: Callable[[str, Rows], bytes]
    decode: Callable[[bytes, Mapping[str, str]], list[float]]
    headers_of: Callable[[bytes], Mapping[str, str]] = field(default=lambda _: {})

    @property
    def is_grpc(self) -> bool:
        return not self.target.startswith("/v")


# ---- JSON


def _encode_instances(_: str, rows: Rows) -> bytes:
    return _dump_compact({"instances": _shortest_digits(rows)})


def _encode_tensors(name: str, rows: Rows) -> bytes:
    return _dump_compact(
        {"inputs": [{**_describe_tensor(name, rows), "data": _shortest_digits(rows.ravel())}]}
    )


def _decode_predictions(body: bytes, _: Mapping[str, str]) -> list[float]:
    return flatten_numbers(json.loads(body)["predictions"])


def _decode_outputs(body: bytes, _: Mapping[str, str]) -> list[float]:
    return flatten_numbers(json.loads(body)["outputs"][0]["data"])


def _shortest_digits(rows: Rows) -> Any:
    """Numbers with the fewest digits that identify them."""
    return (
        json.loads("[" + ",".join(map(str, rows.ravel())) + "]")
        if rows.ndim == 1
        else [_shortest_digits(row) for row in rows]
    )


# ---- binary bodies over HTTP


def _encode_npy(_: str, rows: Rows) -> bytes:
    file = io.BytesIO()
    np.save(file, rows)
    return file.getvalue()


def _decode_npy(body: bytes, _: Mapping[str, str]) -> list[float]:
    return flatten_numbers(np.load(io.BytesIO(body), allow_pickle=False).tolist())


def _encode_v2_binary(name: str, rows: Rows) -> bytes:
    head = {
        "inputs": [{**_describe_tensor(name, rows), "parameters": {"binary_data_size": rows.nbytes}}],
        "parameters": {"binary_data_output": True},
    }
    return _dump_compact(head) + rows.tobytes()


def _build_v2_headers(body: bytes) -> Mapping[str, str]:
    _, length = json.JSONDecoder().raw_decode(body[:4096].decode("latin-1"))
    return {"content-type": "application/octet-stream", _JSON_LENGTH: str(length)}


def _decode_v2_binary(body: bytes, headers: Mapping[str, str]) -> list[float]:
    length = int(headers[_JSON_LENGTH])
    (output,) = json.loads(body[:length])["outputs"]
    return _decode_raw(output["datatype"], body[length:])


# ---- gRPC


def _encode_predict_request(name: str, rows: Rows) -> bytes:
    request = load_message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name = _MODEL
    tensor = request.inputs[name]
    tensor.dtype = _TYPES[rows.dtype.name]
    for size in rows.shape:
        tensor.tensor_shape.dim.add().size = size
    tensor.tensor_content = rows.tobytes()
    return bytes(request.SerializeToString())


def _decode_predict_response(body: bytes, _: Mapping[str, str]) -> list[float]:
    answer = load_message_class("tensorflow.serving.PredictResponse").FromString(body)
    (tensor,) = answer.outputs.values()
    if tensor.tensor_content:
        kinds = {1: "FP32", 2: "FP64", 9: "INT64"}
        return _decode_raw(kinds[tensor.dtype], tensor.tensor_content)
    return flatten_numbers([*tensor.float_val, *tensor.double_val, *tensor.int64_val])


def _encode_infer_request(name: str, rows: Rows) -> bytes:
    request = load_message_class("inference.ModelInferRequest")()
    request.model_name = _MODEL
    tensor = request.inputs.add()
    tensor.name, tensor.datatype = name, _DATATYPES[rows.dtype.name]
    tensor.shape.extend(rows.shape)
    request.raw_input_contents.append(rows.tobytes())
    return bytes(request.SerializeToString())


def _decode_infer_response(body: bytes, _: Mapping[str, str]) -> list[float]:
    answer = load_message_class("inference.ModelInferResponse").FromString(body)
    return _decode_raw(answer.outputs[0].datatype, answer.raw_output_contents[0])


# ---- all of them

_AI_PLATFORM = f"/v1/projects/p/models/{_MODEL}:predict"
_INFER = f"/v2/models/{_MODEL}/infer"

PAYLOAD_FORMATS = {
    one.name: one
    for one in (
        PayloadFormat("AI Platform JSON", _AI_PLATFORM, _encode_instances, _decode_predictions),
        PayloadFormat(
            "AI Platform npy",
            _AI_PLATFORM,
            _encode_npy,
            _decode_npy,
            lambda _: {"content-type": _NPY, "accept": _NPY},
        ),
        PayloadFormat(
            "TensorFlow Serving REST", f"/v1/models/{_MODEL}:predict", _encode_instances, _decode_predictions
        ),
        PayloadFormat(
            "TensorFlow Serving gRPC",
            "tensorflow.serving.PredictionService/Predict",
            _encode_predict_request,
            _decode_predict_response,
        ),
        PayloadFormat("V2 JSON", _INFER, _encode_tensors, _decode_outputs),
        PayloadFormat("V2 binary", _INFER, _encode_v2_binary, _decode_v2_binary, _build_v2_headers),
        PayloadFormat(
            "V2 gRPC",
            "inference.GRPCInferenceService/ModelInfer",
            _encode_infer_request,
            _decode_infer_response,
        ),
    )
}


def write_framed(bodies: Iterable[bytes], file: Path) -> None:
    """Write bodies in the format that load programs read from a file named *.framed."""
    with file.open("wb") as out:
        for body in bodies:
            out.write(b"%d\n%b" % (len(body), body))


def read_framed(file: Path) -> Iterator[bytes]:
    """The bodies that `write_framed` has written."""
    with file.open("rb") as lines:
        while length := lines.readline():
            yield lines.read(int(length))


def _describe_tensor(name: str, rows: Rows) -> dict[str, Any]:
    return {"name": name, "shape": list(rows.shape), "datatype": _DATATYPES[rows.dtype.name]}


def _decode_raw(datatype: str, data: bytes) -> list[float]:
    kinds = {"FP32": "<f4", "FP64": "<f8", "INT64": "<i8", "INT32": "<i4"}
    return flatten_numbers(np.frombuffer(data, kinds[datatype]).tolist())


def _dump_compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
