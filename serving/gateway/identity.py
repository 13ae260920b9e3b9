"""The id of a request: the same in every log, and told to the client as `x-request-id`."""

from __future__ import annotations

import itertools
import re
import secrets

from serving.heads import REQUEST_ID, TRACEPARENT, RequestHead
from serving.wire import Headers, Message, Scope, Send

HEADER = REQUEST_ID

_KEY = "pilotlight.request_id"
_WELL_FORMED = re.compile(rb"[A-Za-z0-9._-]{1,128}")
# Of all requests of this process, followed by their number.
_PREFIX, _numbers = secrets.token_hex(8).encode(), itertools.count()
# W3C Trace Context: version, trace id, parent id, flags; later versions may say more.
_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)


def identify(head: RequestHead) -> bytes:
    """The client's own `X-Request-Id` if it is well-formed, else its trace id, else one made here."""
    told = head.prediction_headers
    own, parent = told.get(HEADER), told.get(TRACEPARENT)
    if own is not None and _WELL_FORMED.fullmatch(own):
        return own
    if parent is not None and (trace := _trace(parent)):
        return trace.encode()
    return _new()


def note_id(scope: Scope, identity: bytes) -> None:
    """Keep it beside the request."""
    scope[_KEY] = identity.decode()


def request_id(scope: Scope) -> str:
    """The id of a request, made now if it has none yet."""
    known: str | None = scope.get(_KEY)
    if known is None:
        known = scope[_KEY] = _given(scope["headers"]) or _new().decode()
    return known


def trace_id(scope: Scope) -> str:
    """The trace that the client says the request belongs to, 32 hex digits; "" if it says none."""
    for name, value in scope["headers"]:
        if name == TRACEPARENT:
            return _trace(value)
    return ""


def as_header(scope: Scope) -> tuple[bytes, bytes]:
    """The header that tells the client."""
    return HEADER, request_id(scope).encode()


def telling(scope: Scope, send: Send) -> Send:
    """A `send` that adds the header to the answer."""

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], as_header(scope)]
        await send(message)

    return send_with_id


def _new() -> bytes:
    """It tells requests apart and guards nothing."""
    return b"%b%016x" % (_PREFIX, next(_numbers))


def _given(headers: Headers) -> str:
    trace = b""
    for name, value in headers:
        if name == HEADER and _WELL_FORMED.fullmatch(value):
            return value.decode()
        if name == TRACEPARENT:
            trace = value
    return _trace(trace) if trace else ""


def _trace(traceparent: bytes) -> str:
    match = _TRACEPARENT.fullmatch(traceparent)
    return match[1].decode() if match else ""
