"""Raw ASGI for the hot path: read a body, write an answer. Gateway and node share it."""

from __future__ import annotations

import http
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence, Set
from typing import Any

import orjson

from serving.errors import (
    BodyTooLarge,
    Cancelled,
    MethodNotAllowed,
    ServingError,
    Unauthenticated,
    http_status,
    to_wire,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json; charset=utf-8")
# Where the scope has the length of a long body, if the client told it.
LENGTH = "pilotlight.length"
_NONE: Mapping[bytes, bytes] = {}


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises BodyTooLarge past `limit` bytes and Cancelled when the client goes away."""
    check_length(scope, limit)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        body = await _read_rest(body, receive, limit)
    elif message["type"] == "http.disconnect":
        raise Cancelled("The client closed the connection.")
    if len(body) > limit:
        raise too_large(limit)
    return body


async def _read_rest(first: bytes, receive: Receive, limit: int) -> bytes:
    parts, size = [first], len(first)
    more = True
    while more:
        if size > limit:
            raise too_large(limit)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("The client closed the connection.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
    return b"".join(parts)


def check_length(scope: Scope, limit: int) -> None:
    """Raise BodyTooLarge for a body of which the client says itself that it is over the limit."""
    if scope.get(LENGTH, 0) > limit:
        raise too_large(limit)


def too_large(limit: int) -> BodyTooLarge:
    """The error for a body over the limit."""
    return BodyTooLarge(
        f"Request payload size exceeds the limit: {limit} bytes (setting max_body_bytes). "
        "Send fewer instances per request."
    )


async def send_json(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    """A complete JSON answer."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [JSON, (b"content-length", b"%d" % len(body)), *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ServingError, headers: Headers = ()) -> None:
    """An error in Google's structured form."""
    await send_json(send, http_status(error), orjson.dumps(to_wire(error)), (*error_headers(error), *headers))


def raw_answer(error: ServingError) -> bytes:
    """All bytes of the answer with an error, for a connection that is closed then."""
    body, status = orjson.dumps(to_wire(error)), http_status(error)
    length, close = (b"content-length", b"%d" % len(body)), (b"connection", b"close")
    lines = [b"HTTP/1.1 %d %b" % (status, http.HTTPStatus(status).phrase.encode())]
    lines += [b"%b: %b" % header for header in (JSON, length, close, *error_headers(error))]
    return b"\r\n".join([*lines, b"", body])


def error_headers(error: ServingError) -> Headers:
    """What is told besides: `Allow`, `WWW-Authenticate`, `Retry-After`, each where it helps."""
    if isinstance(error, MethodNotAllowed):
        return ((b"allow", error.allow.encode()),)
    if isinstance(error, Unauthenticated):
        return ((b"www-authenticate", b'Bearer realm="pilotlight"'),)
    if error.retry_after is None:
        return ()
    return ((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))),)


def header(scope: Scope, name: bytes) -> bytes | None:
    """The value of a request header; names are lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def headers(scope: Scope, names: Set[bytes]) -> Mapping[bytes, bytes]:
    """Those of the request's headers that are among `names`, in one pass; names are lower case."""
    found: dict[bytes, bytes] | None = None
    for name, value in scope["headers"]:
        if name in names:
            if found is None:  # most requests have none of them
                found = {}
            found[name] = value
    return _NONE if found is None else found
