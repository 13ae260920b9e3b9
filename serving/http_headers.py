"""HTTP of gateway and node: header names, limits of bodies, and errors as responses."""

from __future__ import annotations

import http
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence, Set
from typing import Any

import orjson

from serving.errors import (
    BodyTooLarge,
    Internal,
    InvalidArgument,
    MethodNotAllowed,
    ServingError,
    Unauthenticated,
    UnsupportedEncoding,
    error_to_json,
    http_status,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

REQUEST_ID, TRACEPARENT = b"x-request-id", b"traceparent"
# Seconds that a request may take.
TIMEOUT = b"x-request-timeout"
# Asks a standalone node for a Server-Timing header.
WANTS_TIMING_HEADER = b"x-pilotlight-timing"
CONTENT_TYPE, ACCEPT, CONTENT_ENCODING = b"content-type", b"accept", b"content-encoding"
# Bytes of JSON in front of binary tensors.
JSON_BYTES = b"inference-header-content-length"
# The method that is meant, from clients that can only send POST.
METHOD_OVERRIDE = b"x-http-method-override"

JSON_CONTENT_TYPE = (CONTENT_TYPE, b"application/json; charset=utf-8")
# Key of the ASGI scope with the declared length of a body.
BODY_LENGTH = "pilotlight.length"
_NO_HEADERS: Mapping[bytes, bytes] = {}


def check_body_length(scope: Scope, limit: int) -> None:
    """Raise BodyTooLarge if the declared length exceeds the limit."""
    if scope.get(BODY_LENGTH, 0) > limit:
        raise body_too_large(limit)


def body_too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"Request payload size exceeds the limit: {limit} bytes (setting max_body_bytes). "
        "Send fewer instances per request."
    )


def answer_too_large(size: int, limit: int) -> Internal:
    return Internal(
        f"The answer has {size} bytes, over the limit of {limit} bytes (setting max_answer_bytes). "
        "Send fewer instances per request, or ask for fewer outputs."
    )


def encode_error_response(error: ServingError) -> bytes:
    """The complete response with an error, for a connection that closes after it."""
    body, status = orjson.dumps(error_to_json(error)), http_status(error)
    length, close = (b"content-length", b"%d" % len(body)), (b"connection", b"close")
    lines = [b"HTTP/1.1 %d %b" % (status, http.HTTPStatus(status).phrase.encode())]
    lines += [b"%b: %b" % header for header in (JSON_CONTENT_TYPE, length, close, *error_headers(error))]
    return b"\r\n".join([*lines, b"", body])


def error_headers(error: ServingError) -> Headers:
    """`Allow`, `Accept-Encoding`, `WWW-Authenticate` or `Retry-After`, as the error requires."""
    if isinstance(error, MethodNotAllowed):
        return ((b"allow", error.allow.encode()),)
    if isinstance(error, UnsupportedEncoding):
        return ((b"accept-encoding", ", ".join(error.known).encode()),)
    if isinstance(error, Unauthenticated):
        return ((b"www-authenticate", b'Bearer realm="pilotlight"'),)
    if error.retry_after is None:
        return ()
    return ((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))),)


def parse_timeout(value: bytes) -> float:
    """The seconds in an X-Request-Timeout header. Raises InvalidArgument."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1
    if not seconds > 0:
        raise InvalidArgument("The header X-Request-Timeout must be a number of seconds over 0.")
    return seconds


def find_header(scope: Scope, name: bytes) -> bytes | None:
    """The first value of a request header; `name` is in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def select_headers(scope: Scope, names: Set[bytes]) -> Mapping[bytes, bytes]:
    """The request's headers that are among `names` (in lower case), in one pass."""
    found: dict[bytes, bytes] | None = None
    for name, value in scope["headers"]:
        if name in names:
            if found is None:  # most requests have none of them
                found = {}
            found[name] = value
    return _NO_HEADERS if found is None else found
