"""Requests as some of Google's clients send them: verbs in a header, queries in a body, and packed bodies.

What comes out of it is an ordinary request, and everything that looks at requests comes after: routes,
access, limits and the audit log know the verb that is meant, and no other.
"""

from __future__ import annotations

from typing import Any, Protocol

from serving.errors import InvalidArgument, ServingError
from serving.gateway.api.request_io import MAX_BODY_BYTES
from serving.gateway.request_context import ensure_request_id
from serving.http_headers import (
    JSON_CONTENT_TYPE,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    body_too_large,
    check_body_length,
)
from serving.media_types import strip_parameters
from serving.protocols.errors import render_error
from serving.protocols.paths import detect_dialect
from serving.transport.content_encoding import BodyDecompressor, decompress_body, parse_content_encoding
from serving.transport.request_head import CONTENT_ENCODING, CONTENT_TYPE, METHOD_OVERRIDE

FORM = "application/x-www-form-urlencoded"
_POST = "POST"
_VERBS = frozenset({"GET", "PUT", "PATCH", "DELETE", _POST})
_ADAPTED = frozenset({CONTENT_ENCODING, METHOD_OVERRIDE})


class BodyMemory(Protocol):
    """What counts the bytes of bodies."""

    def reserve_bytes(self, size: int) -> None:
        """Count so many bytes. Raises ResourceExhausted if there are too many."""

    def release_bytes(self, size: int) -> None:
        """So many bytes are free."""


class RequestAdapterMiddleware:
    """An ASGI application around `app`. `memory` counts what is unpacked.

    A query that comes as a body may have `max_query` bytes, as it might in a head.
    """

    def __init__(self, app: Any, memory: BodyMemory, max_query: int) -> None:
        self._app = app
        self._memory = memory
        self._max_query = max_query

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is meant."""
        told = [(name, value) for name, value in scope["headers"] if name in _ADAPTED]
        if not told:
            await self._app(scope, receive, send)
            return
        encoding = parse_content_encoding(value for name, value in told if name == CONTENT_ENCODING)
        overrides = [value.decode("latin-1") for name, value in told if name == METHOD_OVERRIDE]
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
        """The request with the verb that it means. Raises InvalidArgument."""
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
        ensure_request_id(scope)  # both have the same
        scope = {**scope, "method": verb}
        if verb == "GET":
            scope["query_string"] = await self._read_query(scope, receive)
            receive = _without_body(receive)
        return scope, receive

    async def _read_query(self, scope: Scope, receive: Receive) -> bytes:
        """The query of a request that has it in its body."""
        check_body_length(scope, self._max_query)
        query = await _read_body(receive, self._max_query)
        given = next((value for name, value in scope["headers"] if name == CONTENT_TYPE), b"")
        if query and strip_parameters(given.decode("latin-1")) != FORM:
            raise InvalidArgument(f"A GET that is sent as POST has its query as body, of the type {FORM}.")
        if not query.isascii():
            raise InvalidArgument("The query in the body must be percent-encoded.")
        return b"&".join(part for part in (scope["query_string"], query) if part)


class _CompressedBody:
    """The body of a request, unpacked when it is first asked for, and counted from then on."""

    def __init__(self, scope: Scope, receive: Receive, encoding: str, memory: BodyMemory) -> None:
        self._scope = scope
        self._receive = receive
        self._encoding = encoding
        self._memory = memory
        self._held = 0
        self._is_read = False

    async def receive(self) -> Message:
        """As ASGI has it: all of the body, and after it what the client does."""
        if self._is_read:
            return await self._receive()
        self._is_read = True
        check_body_length(self._scope, MAX_BODY_BYTES)
        packed = await _read_body(self._receive, MAX_BODY_BYTES)
        body = packed and await decompress_body(
            BodyDecompressor(self._encoding, packed, MAX_BODY_BYTES), self._hold_bytes
        )
        return {"type": "http.request", "body": body, "more_body": False}

    def release(self) -> None:
        """Nobody needs it any more."""
        self._memory.release_bytes(self._held)

    def _hold_bytes(self, size: int) -> None:
        self._memory.reserve_bytes(size)
        self._held += size


async def _read_body(receive: Receive, limit: int) -> bytes:
    """A whole body; what there is of it when the client goes. Raises BodyTooLarge."""
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
    """A `receive` of a request without a body."""
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
