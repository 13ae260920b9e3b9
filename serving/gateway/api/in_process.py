"""Calls of the gateway's own API without a connection, with the checks, limits and audit of all calls."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from serving.errors import ServingError
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
from serving.protocols.paths import detect_dialect
from serving.transport.content_encoding import BodyDecompressor, decompress_body
from serving.transport.request import PredictionHandler, PredictionRequest
from serving.transport.request_head import RequestHead

# Common to a call and the request that it is made for: the connection.
_CONNECTION_SCOPE_KEYS = ("type", "asgi", "http_version", "server", "client", "scheme", "root_path", "state")


class AsgiApp(Protocol):
    """The application that answers all requests but predictions."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class InProcessPredictionHandler(PredictionHandler, Protocol):
    """Answers predictions, and counts the bytes of bodies."""

    max_body_bytes: int

    def can_handle(self, method: str, path: str) -> bool: ...

    def on_request_error(self, exchange: PredictionRequest, error: ServingError) -> None: ...

    def reserve_bytes(self, size: int) -> None:
        """Raises ResourceExhausted."""

    def release_bytes(self, size: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ApiCall:
    """`target` is the path with its query, as on the wire."""

    method: str
    target: bytes
    headers: Headers
    body: bytes = b""


class InProcessApi:
    """The API as clients see it. `app` is the outermost application, below which all checks are."""

    def __init__(self, app: AsgiApp, predictions: InProcessPredictionHandler) -> None:
        self._app = app
        self._predictions = predictions

    async def call(self, outer: Scope, receive: Receive, call: ApiCall) -> Reply:
        """Answer a call that is made for the request with the scope `outer`, from whose connection it comes.

        `receive` tells when that request's client is gone. The call is cancelled with its caller.
        """
        path, _, query = call.target.partition(b"?")
        scope: Scope = {
            **{key: outer[key] for key in _CONNECTION_SCOPE_KEYS if key in outer},
            "method": call.method,
            "path": urllib.parse.unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "headers": [*call.headers, (b"content-length", b"%d" % len(call.body))],
            BODY_LENGTH: len(call.body),
        }
        if self._predictions.can_handle(call.method, scope["path"]):
            return await self._answer_prediction(scope, call.body)
        return await self._call_app(scope, call.body, receive)

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
        predictions, prediction = self._predictions, _InProcessPrediction(scope, body)
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
            prediction.handle_disconnect()


class _InProcessPrediction:
    """A prediction without a connection; see `serving.transport.request.PredictionRequest`."""

    __slots__ = (
        "body",
        "head",
        "left_at_deadline",
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
        self.response_complete = self.left_at_deadline = False

    def respond(self, status: int, body: bytes, headers: Headers = ()) -> None:
        if not self.response_complete:
            self._clear_references()
            own = headers if headers and headers[0][0] == CONTENT_TYPE else (JSON_CONTENT_TYPE, *headers)
            self.reply.set_result(Reply(status, body, own))

    def respond_error(self, error: ServingError, headers: Headers = ()) -> None:
        status, body, own = render_error(error, detect_dialect(self.head.path))
        self.respond(status, body, (*own, *headers))

    def handle_disconnect(self) -> None:
        if not self.response_complete:
            on_gone = self.on_disconnect
            self._clear_references()
            if on_gone is not None:
                on_gone()

    def _clear_references(self) -> None:
        self.response_complete = True
        self.body = b""
        self.on_disconnect = self.state = None
