"""`POST /batch`: several requests in one, each authorized, counted and answered like a request of its own."""

from __future__ import annotations

import asyncio
import logging
import secrets
import urllib.parse
from collections.abc import Callable
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import DeadlineExceeded, Internal, ResourceExhausted, ServingError
from serving.gateway.api.request_io import read_body
from serving.http_headers import (
    BODY_LENGTH,
    CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
)
from serving.protocols import Reply
from serving.protocols.errors import render_error
from serving.protocols.multipart_batch import (
    BatchPart,
    parse_batch,
    parse_boundary,
    render_answer,
    render_batch,
)
from serving.protocols.paths import detect_dialect
from serving.transport.content_encoding import BodyDecompressor, decompress_body
from serving.transport.request import PredictionHandler, PredictionRequest
from serving.transport.request_head import RequestHead

logger = logging.getLogger(__name__)

# Headers of the batch that apply to parts without them.
_INHERITED_HEADERS = (b"authorization", b"user-agent")


class AsgiApp(Protocol):
    """The application that answers all requests but predictions."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class BatchPredictionHandler(PredictionHandler, Protocol):
    """Answers predictions, and counts the bytes of bodies."""

    max_body_bytes: int

    def can_handle(self, method: str, path: str) -> bool: ...

    def on_request_error(self, exchange: PredictionRequest, error: ServingError) -> None: ...

    def reserve_bytes(self, size: int) -> None:
        """Raises ResourceExhausted."""

    def release_bytes(self, size: int) -> None: ...


class BatchRequestsApi:
    """Answers batches.

    A batch takes at most `seconds`, its responses `max_answer_bytes`, and those of all batches at the same
    time `unsent_bytes`: the parts that are left then are not executed, and their responses say so.
    """

    def __init__(
        self,
        app: AsgiApp,
        predictions: BatchPredictionHandler,
        *,
        seconds: float,
        max_answer_bytes: int,
        unsent_bytes: int,
    ) -> None:
        self._app = app
        self._predictions = predictions
        self._seconds = seconds
        self._max_answer_bytes = max_answer_bytes
        self._unsent_bytes = unsent_bytes
        self._unsent_bytes_held = 0  # bytes of responses, over all batches

    async def answer_batch(self, request: Request) -> Response:
        """`POST /batch`: one part after the other, in their order, until the client disconnects."""
        boundary = parse_boundary(request.headers.get("content-type", ""))
        parts = parse_batch(await read_body(request), boundary)
        deadline, size, answers = asyncio.get_running_loop().time() + self._seconds, 0, []
        try:
            for part in parts:
                if await request.is_disconnected():
                    break  # nobody reads the answers
                error = self._check_budget(size, deadline)
                reply = await self._answer_part(request, part) if error is None else _error_reply(part, error)
                answers.append(render_answer(part, reply.status, reply.headers, reply.body))
                size += len(answers[-1])
                self._unsent_bytes_held += len(answers[-1])
            separator = b"batch_" + secrets.token_hex(16).encode()
            content_type = f"multipart/mixed; boundary={separator.decode()}"
            return Response(render_batch(answers, separator), headers={"content-type": content_type})
        finally:
            self._unsent_bytes_held -= size

    def _check_budget(self, size: int, deadline: float) -> ServingError | None:
        """Return why the next part of a batch is not executed, if its responses have `size` bytes so far."""
        if asyncio.get_running_loop().time() >= deadline:
            return DeadlineExceeded(f"The batch has taken {self._seconds:g} s already.")
        if size > self._max_answer_bytes:
            most = self._max_answer_bytes
            return ResourceExhausted(
                f"The answers to the parts before have over {most} bytes (setting max_answer_bytes)."
            )
        if self._unsent_bytes_held > self._unsent_bytes:
            return ResourceExhausted(
                f"The answers of batches have over {self._unsent_bytes} bytes (setting unsent_bytes).",
                retry_after=1,
            )
        return None

    async def _answer_part(self, request: Request, part: BatchPart) -> Reply:
        own = {name for name, _ in part.headers}
        inherited = [
            (name, value)
            for name, value in request.scope["headers"]
            if name in _INHERITED_HEADERS and name not in own
        ]
        headers = [*part.headers, *inherited, (b"content-length", b"%d" % len(part.body))]
        path, _, query = part.target.partition(b"?")
        scope: Scope = {
            **{key: request.scope[key] for key in _CONNECTION_SCOPE_KEYS if key in request.scope},
            "method": part.method,
            "path": urllib.parse.unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "headers": headers,
            BODY_LENGTH: len(part.body),
        }
        try:
            if self._predictions.can_handle(part.method, scope["path"]):
                return await self._answer_prediction(scope, part.body)
            return await self._call_app(scope, part.body, request.receive)
        except Exception:
            logger.exception("part %d of a batch could not be answered", part.number)
            return _error_reply(part, Internal("Internal error encountered."))

    async def _call_app(self, scope: Scope, body: bytes, outer: Receive) -> Reply:
        status, headers, parts = 500, [], []
        is_read = False

        async def receive() -> Message:
            nonlocal is_read
            if is_read:
                return await outer()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers.extend(message["headers"])
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return Reply(status, b"".join(parts), headers)

    async def _answer_prediction(self, scope: Scope, body: bytes) -> Reply:
        predictions, prediction = self._predictions, _BatchedPrediction(scope, body)
        held = 0

        def hold_bytes(size: int) -> None:
            nonlocal held
            predictions.reserve_bytes(size)
            held += size

        try:
            predictions.on_request_head(prediction)
            if not prediction.response_complete:
                try:
                    if body and (encoding := prediction.head.encoding):
                        unpacking = BodyDecompressor(encoding, body, predictions.max_body_bytes)
                        prediction.body = await decompress_body(unpacking, hold_bytes)
                except ServingError as error:
                    predictions.on_request_error(prediction, error)
                else:
                    predictions.release_bytes(held)
                    held = 0
                    predictions.on_request_complete(prediction)
            return await prediction.reply
        finally:
            predictions.release_bytes(held)
            prediction.disconnect()


# Common to all parts: the connection.
_CONNECTION_SCOPE_KEYS = ("type", "asgi", "http_version", "server", "client", "scheme", "root_path", "state")


class _BatchedPrediction:
    """A prediction among the parts; see `serving.transport.request.PredictionRequest`."""

    __slots__ = (
        "body",
        "head",
        "is_past_deadline",
        "on_disconnect",
        "reply",
        "response_complete",
        "scope",
        "state",
    )

    def __init__(self, scope: Scope, body: bytes) -> None:
        self.scope = scope
        self.head = RequestHead(scope["method"], scope["path"], scope["headers"], length=len(body))
        self.body = body
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.on_disconnect: Callable[[], None] | None = None
        self.state: Any = None
        self.response_complete = self.is_past_deadline = False

    def respond(self, status: int, body: bytes, headers: Headers = ()) -> None:
        if not self.response_complete:
            self._clear_references()
            own = headers if headers and headers[0][0] == CONTENT_TYPE else (JSON_CONTENT_TYPE, *headers)
            self.reply.set_result(Reply(status, body, own))

    def respond_error(self, error: ServingError, headers: Headers = ()) -> None:
        status, body, own = render_error(error, detect_dialect(self.head.path))
        self.respond(status, body, (*own, *headers))

    def disconnect(self) -> None:
        if not self.response_complete:
            on_gone = self.on_disconnect
            self._clear_references()
            if on_gone is not None:
                on_gone()

    def _clear_references(self) -> None:
        self.response_complete = True
        self.body = b""
        self.on_disconnect = self.state = None


def _error_reply(part: BatchPart, error: ServingError) -> Reply:
    status, body, headers = render_error(error, detect_dialect(part.target.partition(b"?")[0].decode()))
    return Reply(
        status, body, headers if headers and headers[0][0] == CONTENT_TYPE else (JSON_CONTENT_TYPE, *headers)
    )
