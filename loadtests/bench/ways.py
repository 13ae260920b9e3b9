"""The same rows in the words of each protocol that a server speaks, and the numbers of its answers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtests.bench.answers import flat
from serving.protocols.protos import message

Rows = NDArray[Any]

_MODEL = "m"
_JSON_LENGTH = "inference-header-content-length"
_NPY = "application/x-npy"
_DATATYPES = {"float32": "FP32", "float64": "FP64"}
_TYPES = {"float32": 1, "float64": 2}  # DT_FLOAT, DT_DOUBLE


@dataclass(frozen=True)
class Way:
    """How rows are asked for in one protocol.

    `target` is a path over HTTP, a method of a service over gRPC. `body` makes a request of the name of the
    model's input and rows; `headers` are those of a body; `read` has the numbers of an answer, flat.
    """

    name: str
    target: str
    body: Callable[[str, Rows], bytes]
    read: Callable[[bytes, Mapping[str, str]], list[float]]
    headers: Callable[[bytes], Mapping[str, str]] = field(default=lambda _: {})

    @property
    def grpc(self) -> bool:
        """Whether it goes over gRPC."""
        return not self.target.startswith("/v")


# ---- JSON


def _instances(_: str, rows: Rows) -> bytes:
    return _compact({"instances": _digits(rows)})


def _tensors(name: str, rows: Rows) -> bytes:
    return _compact({"inputs": [{**_described(name, rows), "data": _digits(rows.ravel())}]})


def _predictions(body: bytes, _: Mapping[str, str]) -> list[float]:
    return flat(json.loads(body)["predictions"])


def _outputs(body: bytes, _: Mapping[str, str]) -> list[float]:
    return flat(json.loads(body)["outputs"][0]["data"])


def _digits(rows: Rows) -> Any:
    """Numbers with as few digits as tell them apart from their neighbours."""
    return (
        json.loads("[" + ",".join(map(str, rows.ravel())) + "]")
        if rows.ndim == 1
        else [_digits(row) for row in rows]
    )


# ---- binary bodies over HTTP


def _npy(_: str, rows: Rows) -> bytes:
    file = io.BytesIO()
    np.save(file, rows)
    return file.getvalue()


def _npy_numbers(body: bytes, _: Mapping[str, str]) -> list[float]:
    return flat(np.load(io.BytesIO(body), allow_pickle=False).tolist())


def _framed(name: str, rows: Rows) -> bytes:
    head = {
        "inputs": [{**_described(name, rows), "parameters": {"binary_data_size": rows.nbytes}}],
        "parameters": {"binary_data_output": True},
    }
    return _compact(head) + rows.tobytes()


def _framed_headers(body: bytes) -> Mapping[str, str]:
    _, length = json.JSONDecoder().raw_decode(body[:4096].decode("latin-1"))
    return {"content-type": "application/octet-stream", _JSON_LENGTH: str(length)}


def _framed_numbers(body: bytes, headers: Mapping[str, str]) -> list[float]:
    length = int(headers[_JSON_LENGTH])
    (output,) = json.loads(body[:length])["outputs"]
    return _raw_numbers(output["datatype"], body[length:])


# ---- gRPC


def _predict_request(name: str, rows: Rows) -> bytes:
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = _MODEL
    tensor = request.inputs[name]
    tensor.dtype = _TYPES[rows.dtype.name]
    for size in rows.shape:
        tensor.tensor_shape.dim.add().size = size
    tensor.tensor_content = rows.tobytes()
    return bytes(request.SerializeToString())


def _predict_numbers(body: bytes, _: Mapping[str, str]) -> list[float]:
    answer = message("tensorflow.serving.PredictResponse").FromString(body)
    (tensor,) = answer.outputs.values()
    if tensor.tensor_content:
        kinds = {1: "FP32", 2: "FP64", 9: "INT64"}
        return _raw_numbers(kinds[tensor.dtype], tensor.tensor_content)
    return flat([*tensor.float_val, *tensor.double_val, *tensor.int64_val])


def _infer_request(name: str, rows: Rows) -> bytes:
    request = message("inference.ModelInferRequest")()
    request.model_name = _MODEL
    tensor = request.inputs.add()
    tensor.name, tensor.datatype = name, _DATATYPES[rows.dtype.name]
    tensor.shape.extend(rows.shape)
    request.raw_input_contents.append(rows.tobytes())
    return bytes(request.SerializeToString())


def _infer_numbers(body: bytes, _: Mapping[str, str]) -> list[float]:
    answer = message("inference.ModelInferResponse").FromString(body)
    return _raw_numbers(answer.outputs[0].datatype, answer.raw_output_contents[0])


# ---- all of them

_AI_PLATFORM = f"/v1/projects/p/models/{_MODEL}:predict"
_INFER = f"/v2/models/{_MODEL}/infer"

WAYS = {
    one.name: one
    for one in (
        Way("AI Platform JSON", _AI_PLATFORM, _instances, _predictions),
        Way(
            "AI Platform npy",
            _AI_PLATFORM,
            _npy,
            _npy_numbers,
            lambda _: {"content-type": _NPY, "accept": _NPY},
        ),
        Way("TensorFlow Serving REST", f"/v1/models/{_MODEL}:predict", _instances, _predictions),
        Way(
            "TensorFlow Serving gRPC",
            "tensorflow.serving.PredictionService/Predict",
            _predict_request,
            _predict_numbers,
        ),
        Way("V2 JSON", _INFER, _tensors, _outputs),
        Way("V2 binary", _INFER, _framed, _framed_numbers, _framed_headers),
        Way("V2 gRPC", "inference.GRPCInferenceService/ModelInfer", _infer_request, _infer_numbers),
    )
}


def write(bodies: Iterable[bytes], file: Path) -> None:
    """Bodies as the programs that make the load read them from a file named *.framed."""
    with file.open("wb") as out:
        for body in bodies:
            out.write(b"%d\n%b" % (len(body), body))


def read(file: Path) -> Iterator[bytes]:
    """The bodies that `write` has written."""
    with file.open("rb") as lines:
        while length := lines.readline():
            yield lines.read(int(length))


def _described(name: str, rows: Rows) -> dict[str, Any]:
    return {"name": name, "shape": list(rows.shape), "datatype": _DATATYPES[rows.dtype.name]}


def _raw_numbers(datatype: str, data: bytes) -> list[float]:
    kinds = {"FP32": "<f4", "FP64": "<f8", "INT64": "<i8", "INT32": "<i4"}
    return flat(np.frombuffer(data, kinds[datatype]).tolist())


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
