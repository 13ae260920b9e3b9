"""Warm-up requests in every protocol, sent before the node is ready.

The first requests would wait for imports, buffers, and functions that CPython has not specialised yet. The
model itself is warm by then; this warms up how requests are decoded and answers are encoded.
"""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from serving.frameworks import find_user_code_framework
from serving.http_headers import ACCEPT, BINARY, CONTENT_TYPE, JSON_BYTES, NPY, Headers
from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec
from serving.node.codecs.raw_tensors import to_raw
from serving.node.predict import NodePredictor
from serving.node.request import NodeRequest
from serving.protocols import RequestMetadata
from serving.protocols.paths import parse_prediction_path
from serving.protocols.request_metadata import parse_request_metadata
from serving.runtimes import RowsFormat
from serving.runtimes.datatypes import BYTES, datatype_of, dtype_of
from serving.runtimes.instance_batch import Batch

EXAMPLE_MODEL = "model"
"""The model's name in warm-up requests."""

_AI_PLATFORM = f"/v1/projects/local/models/{EXAMPLE_MODEL}:predict"
_TENSORFLOW = f"/v1/models/{EXAMPLE_MODEL}:predict"
_INFERENCE = f"/v2/models/{EXAMPLE_MODEL}/infer"
_READ_BYTES = 1 << 16
_HEAD_END, _CONTENT_LENGTH = b"\r\n\r\n", b"content-length:"


class ExampleRequest(NamedTuple):
    """A request: its call and its body; over HTTP its path (for gRPC "") and its headers."""

    call: RequestMetadata
    body: bytes
    path: str = ""
    headers: Headers = ()


class _DiscardedRequest(NodeRequest):
    """A request whose answer is discarded."""

    __slots__ = ("_answered",)

    def __init__(self, answered: asyncio.Future[None]) -> None:
        super().__init__()
        self._answered = answered

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        if not self._answered.done():
            self._answered.set_result(None)


class StubRuntime:
    """Takes the place of user code in the warm-up, which may keep state."""

    framework = find_user_code_framework()
    mergeable = False
    exact = True
    warnings: tuple[str, ...] = ()

    def input_format(self, _: Mapping[str, Any]) -> RowsFormat:
        return RowsFormat()

    def predict(self, instances: Any, /, **_: Any) -> Batch:
        return [1.0] * len(instances)

    def make_synthetic_rows(self, _: int) -> None:
        return None

    def warmup_requests(self) -> tuple[()]:
        return ()

    def infer_schema(self, _: Sequence[Any] = ()) -> ModelSchema:
        rows, numbers = TensorSpec("instances", "FP64", (-1, 2)), TensorSpec("predictions", "FP64", (-1,))
        return ModelSchema(
            self.framework.platform,
            {DEFAULT_SIGNATURE: ModelSignature((rows,), (numbers,))},
            strict=False,
            example=[0.5, 1.5],
            answer=1.0,
        )


async def warm_up_predictor(
    predictor: NodePredictor, requests: Sequence[ExampleRequest], rounds: int, seconds: float
) -> None:
    """Predict all requests so many times, for at most so many seconds; then the current one is cancelled.

    Errors are ignored: not every example can be expressed in every protocol.
    """
    if not requests:
        return
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            for _ in range(rounds):
                for example in requests:
                    answered: asyncio.Future[None] = loop.create_future()
                    request = _DiscardedRequest(answered)
                    predictor.predict(request, example.body, seconds, idle_fast_path=True, call=example.call)
                    if not request.is_finished:
                        predictor.start_now()
                        await answered
                await asyncio.sleep(0)  # health checks are answered meanwhile
    except TimeoutError:
        predictor.cancel_request(request)


def make_http_examples(schema: ModelSchema) -> Iterator[ExampleRequest]:
    """The example of a schema in each protocol over HTTP that can express it; nothing if it has none."""
    if schema.example is None:
        return
    instances = orjson.dumps({"instances": [schema.example]})
    yield _make_http_example(_AI_PLATFORM, instances)
    yield _make_http_example(_TENSORFLOW, instances)
    tensors = make_example_tensors(schema)
    if not tensors:
        return
    if len(tensors) == 1 and (array := next(iter(tensors.values()))).dtype != object:
        npy = ((CONTENT_TYPE, NPY.encode()), (ACCEPT, NPY.encode()))
        yield _make_http_example(_AI_PLATFORM, _encode_npy(array), npy)
    yield from _make_inference_examples(tensors)


def _make_inference_examples(tensors: Mapping[str, NDArray[Any]]) -> Iterator[ExampleRequest]:
    """Those of the Open Inference Protocol, without binary tensors and with them."""
    headers = describe_tensors(tensors)
    raw = [bytes(to_raw(name, array)) for name, array in tensors.items()]
    plain = [
        {**one, "data": [_decode_text(value) for value in array.ravel().tolist()]}
        for one, array in zip(headers, tensors.values(), strict=True)
    ]
    yield _make_http_example(_INFERENCE, orjson.dumps({"inputs": plain}))
    sized = [
        {**one, "parameters": {"binary_data_size": len(data)}} for one, data in zip(headers, raw, strict=True)
    ]
    head = orjson.dumps({"inputs": sized, "parameters": {"binary_data_output": True}})
    length = (JSON_BYTES, b"%d" % len(head))
    yield _make_http_example(_INFERENCE, head + b"".join(raw), ((CONTENT_TYPE, BINARY.encode()), length))


def _make_http_example(path: str, body: bytes, headers: Headers = ()) -> ExampleRequest:
    parsed = parse_prediction_path(path)
    if parsed is None:
        raise ValueError(f"{path} is not a prediction path")
    return ExampleRequest(parse_request_metadata(parsed, dict(headers), parsed.version), body, path, headers)


def describe_tensors(tensors: Mapping[str, NDArray[Any]]) -> list[dict[str, Any]]:
    """Name, shape and datatype of tensors, as in the Open Inference Protocol."""
    return [
        {"name": name, "shape": list(array.shape), "datatype": datatype_of(array.dtype)}
        for name, array in tensors.items()
    ]


def make_example_tensors(schema: ModelSchema) -> dict[str, NDArray[Any]]:
    """The example of a schema as tensors of one row by name; {} if it does not match the inputs."""
    inputs, example = schema.signatures[schema.default].inputs, schema.example
    names = [tensor.name for tensor in inputs]
    match example:
        case dict() if example.keys() >= set(names):
            values = [example[name] for name in names]
        case list() if len(example) == len(names) > 1:
            values = example
        case _ if len(names) == 1:
            values = [example]
        case _:
            return {}
    try:
        return {
            tensor.name: _convert_to_row(tensor, value) for tensor, value in zip(inputs, values, strict=True)
        }
    except (TypeError, ValueError):
        return {}


def _convert_to_row(tensor: TensorSpec, value: Any) -> NDArray[Any]:
    """Raises TypeError and ValueError for a value that is not of the tensor's type."""
    if tensor.datatype == BYTES:
        texts = [value.encode() if isinstance(value, str) else orjson.dumps(value)]
        row = np.array(texts, object)
    else:
        row = np.array([value], dtype_of(tensor.datatype))
    sizes = tensor.shape or ()
    return row.reshape((1,) * len(sizes)) if row.size == 1 and sizes else row


def _decode_text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _encode_npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


async def warm_up_connection(
    connection: socket.socket, requests: Sequence[ExampleRequest], rounds: int, seconds: float
) -> None:
    """Send all requests so many times, for at most so many seconds.

    Every other round sends new header values, so that the head cache misses.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            for round_number in range(rounds):
                for example in requests:
                    await loop.sock_sendall(
                        connection, _encode_request(example, round_number // 2 * (round_number % 2))
                    )
                    await _read_response(connection)
    except (TimeoutError, ConnectionError):  # a failed warm-up changes nothing
        return


def _encode_request(example: ExampleRequest, turn: int) -> bytes:
    headers = b"".join(b"%b: %b\r\n" % header for header in example.headers)
    length = len(example.body)
    return b"POST %b HTTP/1.1\r\nhost: localhost\r\nturn: %d\r\n%bcontent-length: %d\r\n\r\n%b" % (
        example.path.encode(),
        turn,
        headers,
        length,
        example.body,
    )


async def _read_response(connection: socket.socket) -> None:
    """Read one response. Raises ConnectionError when there is none."""
    loop = asyncio.get_running_loop()
    received, whole = b"", None
    while whole is None or len(received) < whole:
        data = await loop.sock_recv(connection, _READ_BYTES)
        if not data:
            raise ConnectionError
        received += data
        end = received.find(_HEAD_END)
        if whole is None and end >= 0:
            length = received[:end].lower().partition(_CONTENT_LENGTH)[2].partition(b"\r\n")[0]
            whole = end + len(_HEAD_END) + int(length or 0)
