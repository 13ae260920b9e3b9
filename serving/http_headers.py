"""HTTP of gateway and node: header names, media types, limits of bodies, and errors as responses.

Content negotiation is that of RFC 9110, section 12.5.1.
"""

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
    NotAcceptable,
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
# Asks for a Server-Timing header, which answers that had to wait have anyway.
WANTS_TIMING_HEADER = b"x-pilotlight-timing"
# Of a server that shares its database: which state an answer was made of, or a request has seen.
REVISION = b"x-pilotlight-revision"
CONTENT_TYPE, ACCEPT, CONTENT_ENCODING = b"content-type", b"accept", b"content-encoding"
# Bytes of JSON in front of binary tensors.
JSON_BYTES = b"inference-header-content-length"
# The method that is meant, from clients that can only send POST.
METHOD_OVERRIDE = b"x-http-method-override"

JSON_CONTENT_TYPE = (CONTENT_TYPE, b"application/json; charset=utf-8")
# Key of the ASGI scope with the declared length of a body.
BODY_LENGTH = "pilotlight.length"
_NO_HEADERS: Mapping[bytes, bytes] = {}
JSON, NPY, BINARY = "application/json", "application/x-npy", "application/octet-stream"
PROTOBUF = "application/x-protobuf"
"""Of messages of gRPC, where they stand beside bodies of HTTP; nobody asks for it."""


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


def strip_parameters(media_type: str) -> str:
    """A media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


def negotiate_media_type(accept: str, offered: Sequence[str]) -> str:
    """The offered type with the highest quality in `Accept`, the first of equals.

    Raises NotAcceptable if none is accepted, InvalidArgument if the header is malformed.
    """
    if not accept.strip():
        return offered[0]
    ranges = [_parse_range(part) for part in accept.split(",") if part.strip()]
    weights = [_quality_of(media_type, ranges) for media_type in offered]
    best = max(weights)
    if best <= 0:
        raise NotAcceptable(
            f"The header Accept ({accept}) allows none of the forms an answer can have: {', '.join(offered)}."
        )
    return offered[weights.index(best)]


def _parse_range(text: str) -> tuple[str, float]:
    """A media range with its quality."""
    kind, *parameters = text.split(";")
    weight = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                weight = float(value)
            except ValueError:
                weight = -1
            if not 0 <= weight <= 1:
                raise InvalidArgument(f"The header Accept has q={value.strip()}; q is a number from 0 to 1.")
    return kind.strip().lower(), weight


def _quality_of(media_type: str, ranges: Sequence[tuple[str, float]]) -> float:
    """The quality of a type: an exact range counts before `type/*`, and that before `*/*`."""
    for wanted in (media_type, f"{media_type.partition('/')[0]}/*", "*/*"):
        weights = [weight for name, weight in ranges if name == wanted]
        if weights:
            return max(weights)
    return 0.0
