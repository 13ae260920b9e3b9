"""What a node asks itself before anybody else does: its own example, in every protocol.

Modules are imported on the first request that needs them, buffers are made, and Python makes a function fast
once it has been called some times: who came first would wait for all of it. The model has been warmed by
then; what is practised here is how requests are read and answered.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from serving.http_headers import ACCEPT, CONTENT_TYPE, JSON_BYTES, Headers
from serving.media_types import BINARY, NPY
from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec
from serving.node.codecs.raw_tensors import to_raw
from serving.node.predict import Predictor
from serving.node.request import NodeRequest
from serving.protocols import RequestMetadata
from serving.protocols.paths import parse_prediction_path
from serving.protocols.request_metadata import parse_request_metadata
from serving.runtimes import RowsFormat
from serving.runtimes.datatypes import BYTES, datatype_of, dtype_of
from serving.runtimes.instance_batch import Batch

EXAMPLE_MODEL = "model"
"""What the model is called in practice."""

_AI_PLATFORM = f"/v1/projects/local/models/{EXAMPLE_MODEL}:predict"
_TENSORFLOW = f"/v1/models/{EXAMPLE_MODEL}:predict"
_INFERENCE = f"/v2/models/{EXAMPLE_MODEL}/infer"


class ExampleRequest(NamedTuple):
    """A request: its call and its body; over HTTP its path, "" for gRPC, and its headers too."""

    call: RequestMetadata
    body: bytes
    path: str = ""
    headers: Headers = ()


class _DiscardedRequest(NodeRequest):
    """A request whose answer is of no interest."""

    __slots__ = ("_answered",)

    def __init__(self, answered: asyncio.Future[None]) -> None:
        super().__init__()
        self._answered = answered

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        if not self._answered.done():
            self._answered.set_result(None)


class StubRuntime:
    """A model to practise with in place of a user's, which may remember what it was asked."""

    framework = "CUSTOM"
    mergeable = False
    exact = True
    warnings: tuple[str, ...] = ()

    def input_format(self, _: Mapping[str, Any]) -> RowsFormat:
        """Plain values."""
        return RowsFormat()

    def predict(self, instances: Any, /, **_: Any) -> Batch:
        """A number each."""
        return [1.0] * len(instances)

    def make_synthetic_rows(self, _: int) -> None:
        """None."""

    def warmup_requests(self) -> tuple[()]:
        """None."""
        return ()

    def infer_schema(self, _: Sequence[Any] = ()) -> ModelSchema:
        """One input, one output."""
        rows, numbers = TensorSpec("instances", "FP64", (-1, 2)), TensorSpec("predictions", "FP64", (-1,))
        return ModelSchema(
            "custom",
            {DEFAULT_SIGNATURE: ModelSignature((rows,), (numbers,))},
            strict=False,
            example=[0.5, 1.5],
            answer=1.0,
        )


async def warm_up_predictor(
    predictor: Predictor, requests: Sequence[ExampleRequest], rounds: int, seconds: float
) -> None:
    """Ask all, so many times, for at most so many seconds; what is under way then is given up.

    What a request is answered makes no difference: an example may not do in every protocol.
    """
    if not requests:
        return
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            for _ in range(rounds):
                for question in requests:
                    answered: asyncio.Future[None] = loop.create_future()
                    request = _DiscardedRequest(answered)
                    predictor.predict(
                        request, question.body, seconds, idle_fast_path=True, call=question.call
                    )
                    if not request.is_finished:
                        predictor.start_now()
                        await answered
                await asyncio.sleep(0)  # whoever asks for its health meanwhile gets an answer
    except TimeoutError:
        predictor.cancel_request(request)


def make_http_examples(schema: ModelSchema) -> Iterator[ExampleRequest]:
    """The example of a schema in each protocol over HTTP that can tell of it; none where there is none."""
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
    told = describe_tensors(tensors)
    raw = [bytes(to_raw(name, array)) for name, array in tensors.items()]
    plain = [
        {**one, "data": [_decode_text(value) for value in array.ravel().tolist()]}
        for one, array in zip(told, tensors.values(), strict=True)
    ]
    yield _make_http_example(_INFERENCE, orjson.dumps({"inputs": plain}))
    sized = [
        {**one, "parameters": {"binary_data_size": len(data)}} for one, data in zip(told, raw, strict=True)
    ]
    head = orjson.dumps({"inputs": sized, "parameters": {"binary_data_output": True}})
    length = (JSON_BYTES, b"%d" % len(head))
    yield _make_http_example(_INFERENCE, head + b"".join(raw), ((CONTENT_TYPE, BINARY.encode()), length))


def _make_http_example(path: str, body: bytes, headers: Headers = ()) -> ExampleRequest:
    asked = parse_prediction_path(path)
    if asked is None:
        raise ValueError(f"{path} is the path of no prediction")
    return ExampleRequest(parse_request_metadata(asked, dict(headers), asked.version), body, path, headers)


def describe_tensors(tensors: Mapping[str, NDArray[Any]]) -> list[dict[str, Any]]:
    """Tensors as the Open Inference Protocol tells of them."""
    return [
        {"name": name, "shape": list(array.shape), "datatype": datatype_of(array.dtype)}
        for name, array in tensors.items()
    ]


def make_example_tensors(schema: ModelSchema) -> dict[str, NDArray[Any]]:
    """The example of a schema as tensors of one row by name; none if they cannot be told from it."""
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
        return {tensor.name: _make_row(tensor, value) for tensor, value in zip(inputs, values, strict=True)}
    except (TypeError, ValueError):
        return {}


def _make_row(tensor: TensorSpec, value: Any) -> NDArray[Any]:
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
