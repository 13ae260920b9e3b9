"""A request and its answer without ASGI: what a connection makes of predictions, where nothing may be slow.

Everything happens in calls, on the event loop: no task, no future and no event per request. Whoever answers
later keeps the exchange and calls `answer` when it is time.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable
from typing import Any, Protocol

from serving.errors import ServingError
from serving.http_headers import BODY_LENGTH, JSON_CONTENT_TYPE, Headers, Scope
from serving.protocols.errors import render_error
from serving.protocols.paths import detect_dialect
from serving.transport.request_head import RequestHead


class PredictionRequest(Protocol):
    """One request and its answer; `serving.transport.request.HttpRequest` is one.

    `body` is there once the request is whole. `on_gone` is called, once, if the client goes away before the
    answer; it is `late` if its time was out then. `state` is for who answers it.
    """

    body: bytes
    on_disconnect: Callable[[], None] | None
    state: Any
    response_complete: bool

    @property
    def head(self) -> RequestHead:
        """What it says before its body."""

    @property
    def is_past_deadline(self) -> bool:
        """Whether the client set a deadline, and left when that was past."""

    @property
    def scope(self) -> Scope:
        """Its head as ASGI has it, the same object each time, on which notes are kept."""

    def respond(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Send what a node answered, a refusal too; does nothing if the client is gone."""

    def respond_error(self, error: ServingError, headers: Headers = ()) -> None:
        """Answer with an error, in the form of its protocol; does nothing if the client is gone."""


class PredictionHandler(Protocol):
    """Answers conversations. Both are called on the event loop and must not block."""

    def on_request_head(self, exchange: PredictionRequest) -> None:
        """The head is there; what can be refused now is."""

    def on_request_complete(self, exchange: PredictionRequest) -> None:
        """The body is whole. Not called once the conversation is answered."""


PREDICT_SUFFIX = ":predict"
CONTENT_TYPE = JSON_CONTENT_TYPE[0]

# Bodies over this are handed to the socket as they are; shorter ones are cheaper to join with their head.
_SEPARATE_WRITE_BYTES = 1 << 16

# All that stands before the number of bytes of JSON, or of what tells its type itself.
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
    """The connection that an exchange is on."""

    transport: asyncio.Transport

    def on_response_complete(self) -> None:
        """The exchange is answered."""


class HttpRequest:
    """One request, and its answer.

    `client` is where it comes from; `body` is there once `Handler.on_request_complete` is called. `on_gone` is called,
    once, if the client goes away before the answer. `state` is the handler's own. Once it is over it refers
    to none of them, nor to its connection: nothing of it is left to the garbage collector.
    """

    __slots__ = (
        "_connection", "_scope", "body", "client", "head", "keep_alive", "more_body", "on_disconnect", "body_parts",
        "response_complete", "response_started", "state", "waiting_for_100_continue",
    )  # fmt: skip

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
        # For the connection, which asks uvicorn's own cycles the same.
        self.keep_alive = keep_alive
        self.more_body = True
        self.response_started = self.response_complete = False
        self.waiting_for_100_continue = False
        self.body_parts: list[bytes] | None = None  # of a body that comes in several

    @property
    def is_past_deadline(self) -> bool:
        """Over HTTP clients tell no deadline, but how many seconds they have."""
        return False

    @property
    def scope(self) -> Scope:
        """Its head as ASGI has it, as far as that is read of predictions; made when it is asked for."""
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
        """Send the whole answer; does nothing if the client is gone.

        It is JSON unless the first of the headers is its content type. Its length is added; the headers must
        be fit for the wire.
        """
        if self.response_complete:
            return
        asked = self.head
        lines = b""
        for header in (*headers, *asked.response_headers) if asked.response_headers else headers:
            lines += b"%b: %b\r\n" % header
        if not self.keep_alive:
            lines += b"connection: close\r\n"
        beginnings = (
            _HEADS_WITHOUT_TYPE if headers and headers[0][0] == CONTENT_TYPE else _HEADS_WITH_JSON_TYPE
        )
        head = b"%b%d\r\n%b\r\n" % (beginnings[status], len(body), lines)
        if asked.method == "HEAD":
            body = b""
        long = len(body) > _SEPARATE_WRITE_BYTES
        data = head if long else head + body
        # Whatever raises does so before this: then it can still be answered with an error.
        peer = self._connection
        self._finish()
        transport = peer.transport
        if long:
            transport.writelines((data, body))
        else:
            transport.write(data)
        if not self.keep_alive:
            transport.close()
        peer.on_response_complete()

    def respond_error(self, error: ServingError, headers: Headers = ()) -> None:
        """Answer with an error in the form of the protocol that its path is of."""
        status, body, own = render_error(error, detect_dialect(self.head.path))
        self.respond(status, body, (*own, *headers))

    def disconnect(self) -> None:
        """The client is gone: nobody is there to be answered."""
        if self.response_complete:
            return
        on_gone = self.on_disconnect
        self._finish()
        if on_gone is not None:
            on_gone()

    def _finish(self) -> None:
        self.response_started = self.response_complete = True
        self.body, self.body_parts = b"", None
        self.on_disconnect = self.state = None
        del self._connection


class HttpPredictionHandler(Protocol):
    """Answers exchanges. It is called on the event loop and must not block."""

    @property
    def max_body_bytes(self) -> int:
        """Bodies over this are not read."""

    def can_handle(self, method: str, path: str) -> bool:
        """Whether requests for a path are exchanges; all others are the application's."""

    def on_request_error(self, exchange: HttpRequest, error: ServingError) -> None:
        """Answer one with an error that its connection has found.

        In its head: then nobody is told of anything else. Or in its body, instead of `complete`.
        """

    def on_request_head(self, exchange: HttpRequest) -> None:
        """The head is there. Whoever answers it here need not wait for a body that is for nothing."""

    def on_request_complete(self, exchange: HttpRequest) -> None:
        """The body is whole and unpacked, or over the limit already. Not called once it is answered."""
