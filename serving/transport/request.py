"""A request and its response without ASGI, for predictions: their path must be fast.

Everything is a plain call on the event loop: no task, future or event per request. A handler that responds
later keeps the request and calls `respond`.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable
from typing import Any, Protocol

from serving.errors import ServingError
from serving.http_headers import BODY_LENGTH, CONTENT_TYPE, JSON_CONTENT_TYPE, Headers, Scope
from serving.protocols.errors import render_error
from serving.protocols.paths import detect_dialect
from serving.transport.request_head import RequestHead


class PredictionRequest(Protocol):
    """One request of any protocol; `serving.transport.request.HttpRequest` is one.

    `body` is complete when `on_request_complete` is called. `on_disconnect` is called once if the client goes
    away before the response. `state` is for the handler.
    """

    body: bytes
    on_disconnect: Callable[[], None] | None
    state: Any
    response_complete: bool

    @property
    def head(self) -> RequestHead: ...

    @property
    def left_at_deadline(self) -> bool:
        """Whether the client went away because its own deadline had passed."""

    @property
    def scope(self) -> Scope:
        """The head as an ASGI scope; the same object each time."""

    def respond(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Send a complete response; does nothing once the client is gone."""

    def respond_error(self, error: ServingError, headers: Headers = ()) -> None:
        """Send an error in the request's protocol; does nothing once the client is gone."""


class PredictionHandler(Protocol):
    """Answers prediction requests. Called on the event loop; must not block."""

    def on_request_head(self, request: PredictionRequest) -> None:
        """The head is complete; the request can be rejected already."""

    def on_request_complete(self, request: PredictionRequest) -> None:
        """The body is complete. Not called once the request is answered."""


PREDICT_SUFFIX = ":predict"

# Longer bodies are written separately; shorter ones are cheaper to join with their head.
_SEPARATE_WRITE_BYTES = 1 << 16

# Status line and headers up to the value of content-length, without and with the type of JSON.
_HEADS_WITHOUT_TYPE = {
    status.value: b"HTTP/1.1 %d %b\r\ncontent-length: " % (status, status.phrase.encode())
    for status in http.HTTPStatus
}
_HEADS_WITH_JSON_TYPE = {
    status: b"%b%b: %b\r\ncontent-length: "
    % (beginning.removesuffix(b"content-length: "), *JSON_CONTENT_TYPE)
    for status, beginning in _HEADS_WITHOUT_TYPE.items()
}


class RequestConnection(Protocol):
    """The connection of a request."""

    transport: asyncio.Transport

    def on_response_complete(self) -> None: ...


class HttpRequest:
    """One HTTP request and its response.

    `client` is its address. `body` is complete when `HttpPredictionHandler.on_request_complete` is called.
    `on_disconnect` is called once if the client goes away before the response. `state` is for the handler. A
    finished request refers to none of these, nor to its connection, so that no cycle is left for the
    collector.
    """

    __slots__ = (
        "_connection",
        "_scope",
        "body",
        "body_parts",
        "client",
        "head",
        "keep_alive",
        "more_body",
        "on_disconnect",
        "response_complete",
        "response_started",
        "state",
        "waiting_for_100_continue",
    )

    def __init__(
        self,
        head: RequestHead,
        connection: RequestConnection,
        *,
        client: tuple[str, int] | None = None,
        keep_alive: bool = True,
    ) -> None:
        self.head = head
        self.client = client
        self._scope: Scope | None = None
        self.body = b""
        self.on_disconnect: Callable[[], None] | None = None
        self.state: Any = None
        self._connection = connection
        # Attributes that the connection also reads of uvicorn's own cycles.
        self.keep_alive = keep_alive
        self.more_body = True
        self.response_started = self.response_complete = False
        self.waiting_for_100_continue = False
        self.body_parts: list[bytes] | None = None  # of a body that arrives in several

    @property
    def left_at_deadline(self) -> bool:
        """Always false: HTTP clients send a timeout, not a deadline."""
        return False

    @property
    def scope(self) -> Scope:
        """The head as an ASGI scope with the keys that predictions read; made on first use."""
        scope = self._scope
        if scope is None:
            head = self.head
            scope = self._scope = {
                "type": "http",
                "http_version": head.version,
                "method": head.method,
                "path": head.path,
                "headers": head.headers,
                "client": self.client,
                BODY_LENGTH: head.length,
            }
        return scope

    def respond(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Send the whole response; does nothing once the client is gone.

        The body is JSON unless the first header is `content-type`. `content-length` is added; the headers
        must be valid as they are.
        """
        if self.response_complete:
            return
        request_head = self.head
        if request_head.response_headers:
            headers = (*headers, *request_head.response_headers)
        lines, beginnings = b"", _HEADS_WITH_JSON_TYPE
        if headers:
            lines = b"".join([b"%b: %b\r\n" % header for header in headers])
            if headers[0][0] == CONTENT_TYPE:
                beginnings = _HEADS_WITHOUT_TYPE
        if not self.keep_alive:
            lines += b"connection: close\r\n"
        head = b"%b%d\r\n%b\r\n" % (beginnings[status], len(body), lines)
        if request_head.method == "HEAD":
            body = b""
        long = len(body) > _SEPARATE_WRITE_BYTES
        data = head if long else head + body
        # Nothing after this raises: before it, the request can still be answered with an error.
        connection = self._connection
        self._finish()
        transport = connection.transport
        if long:
            transport.writelines((data, body))
        else:
            transport.write(data)
        if not self.keep_alive:
            transport.close()
        connection.on_response_complete()

    def respond_error(self, error: ServingError, headers: Headers = ()) -> None:
        """Send an error in the form of the protocol of its path."""
        status, body, own = render_error(error, detect_dialect(self.head.path))
        self.respond(status, body, (*own, *headers))

    def handle_disconnect(self) -> None:
        """The client is gone."""
        if self.response_complete:
            return
        on_disconnect = self.on_disconnect
        self._finish()
        if on_disconnect is not None:
            on_disconnect()

    def _finish(self) -> None:
        self.response_started = self.response_complete = True
        self.body, self.body_parts = b"", None
        self.on_disconnect = self.state = None
        del self._connection


class HttpPredictionHandler(Protocol):
    """Answers HTTP prediction requests. Called on the event loop; must not block."""

    @property
    def max_body_bytes(self) -> int:
        """Longer bodies are not read."""

    def can_handle(self, method: str, path: str) -> bool:
        """Whether requests for this path are the handler's; all others go to the application."""

    def on_request_error(self, request: HttpRequest, error: ServingError) -> None:
        """Answer with an error found by the connection.

        If it is in the head, nothing else is called for the request; if in the body, it replaces
        `on_request_complete`.
        """

    def on_request_head(self, request: HttpRequest) -> None:
        """The head is complete. A response sent here need not wait for the body."""

    def on_request_complete(self, request: HttpRequest) -> None:
        """The body is complete and decompressed, or over the limit. Not called once answered."""
