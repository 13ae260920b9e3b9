"""Middleware that turns requests of Google's client libraries into plain ones.

It applies X-HTTP-Method-Override, moves a query from the body to the URL and decompresses bodies. Everything
that looks at requests (routes, access, limits, the audit log) comes after it and sees the intended method.
"""

from __future__ import annotations

from typing import Any, Protocol

from serving.errors import InvalidArgument, ServingError
from serving.gateway.api.request_io import MAX_BODY_BYTES
from serving.gateway.request_context import ensure_request_id
from serving.http_headers import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    JSON_CONTENT_TYPE,
    METHOD_OVERRIDE,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    body_too_large,
    check_body_length,
    strip_parameters,
)
from serving.protocols.errors import render_error
from serving.protocols.paths import detect_dialect
from serving.transport.content_encoding import BodyDecompressor, decompress_body, parse_content_encoding

FORM = "application/x-www-form-urlencoded"
_POST = "POST"
_VERBS = frozenset({"GET", "PUT", "PATCH", "DELETE", _POST})
_ADAPTED = frozenset({CONTENT_ENCODING, METHOD_OVERRIDE})


class BodyMemory(Protocol):
    """Counts the bytes of bodies in memory."""

    def reserve_bytes(self, size: int) -> None:
        """Raises ResourceExhausted if there would be too many."""

    def release_bytes(self, size: int) -> None: ...


class RequestAdapterMiddleware:
    """An ASGI application around `app`; `memory` counts decompressed bodies.

    A query in a body may have `max_query` bytes, as many as it may have in a head.
    """

    def __init__(self, app: Any, memory: BodyMemory, max_query: int) -> None:
        self._app = app
        self._memory = memory
        self._max_query = max_query

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name in _ADAPTED]
        if not headers:
            await self._app(scope, receive, send)
            return
        encoding = parse_content_encoding(value for name, value in headers if name == CONTENT_ENCODING)
        overrides = [value.decode("latin-1") for name, value in headers if name == METHOD_OVERRIDE]
        body = _CompressedBody(scope, receive, encoding, self._memory)
        try:
            if encoding:
                receive = body.receive
            if overrides:
                scope, receive = await self._apply_method_override(scope, receive, overrides)
        except ServingError as error:
            await _send_error(scope, send, error)
        else:
            await self._app(scope, receive, send)
        finally:
            body.release()

    async def _apply_method_override(
        self, scope: Scope, receive: Receive, overrides: list[str]
    ) -> tuple[Scope, Receive]:
        """The request with its intended method. Raises InvalidArgument."""
        verb = overrides[0]
        if len(overrides) > 1 or verb not in _VERBS:
            raise InvalidArgument(
                f"The header X-HTTP-Method-Override must be one of {', '.join(sorted(_VERBS))}, given once."
            )
        if verb == scope["method"]:
            return scope, receive
        if scope["method"] != _POST:
            raise InvalidArgument(
                f"The header X-HTTP-Method-Override goes with POST alone, not with {scope['method']}."
            )
        ensure_request_id(scope)  # before the scope is copied: both get the same id
        scope = {**scope, "method": verb}
        if verb == "GET":
            scope["query_string"] = await self._read_query(scope, receive)
            receive = _without_body(receive)
        return scope, receive

    async def _read_query(self, scope: Scope, receive: Receive) -> bytes:
        check_body_length(scope, self._max_query)
        query = await _read_body(receive, self._max_query)
        given = next((value for name, value in scope["headers"] if name == CONTENT_TYPE), b"")
        if query and strip_parameters(given.decode("latin-1")) != FORM:
            raise InvalidArgument(f"A GET that is sent as POST has its query as body, of the type {FORM}.")
        if not query.isascii():
            raise InvalidArgument("The query in the body must be percent-encoded.")
        return b"&".join(part for part in (scope["query_string"], query) if part)


class _CompressedBody:
    """The body of a request: decompressed on the first `receive`, and counted until `release`."""

    def __init__(self, scope: Scope, receive: Receive, encoding: str, memory: BodyMemory) -> None:
        self._scope = scope
        self._receive = receive
        self._encoding = encoding
        self._memory = memory
        self._held_bytes = 0
        self._is_read = False

    async def receive(self) -> Message:
        """An ASGI receive: the whole body in one message, then the client's further messages."""
        if self._is_read:
            return await self._receive()
        self._is_read = True
        check_body_length(self._scope, MAX_BODY_BYTES)
        compressed = await _read_body(self._receive, MAX_BODY_BYTES)
        body = compressed and await decompress_body(
            BodyDecompressor(self._encoding, compressed, MAX_BODY_BYTES), self._hold_bytes
        )
        return {"type": "http.request", "body": body, "more_body": False}

    def release(self) -> None:
        self._memory.release_bytes(self._held_bytes)

    def _hold_bytes(self, size: int) -> None:
        self._memory.reserve_bytes(size)
        self._held_bytes += size


async def _read_body(receive: Receive, limit: int) -> bytes:
    """The whole body, or what arrived of it before the client disconnected. Raises BodyTooLarge."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise body_too_large(limit)
        more = message.get("more_body", False)
    return b"".join(parts)


def _without_body(receive: Receive) -> Receive:
    is_read = False

    async def receive_empty() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": b"", "more_body": False}

    return receive_empty


async def _send_error(scope: Scope, send: Send, error: ServingError) -> None:
    status, body, more = render_error(error, detect_dialect(scope["path"]))
    headers: Headers = (JSON_CONTENT_TYPE, (b"content-length", b"%d" % len(body)), *more)
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})
