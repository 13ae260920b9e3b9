"""The id of a request: the same in every log, and told to the client as `x-request-id`."""

from __future__ import annotations

import itertools
import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass

import msgspec

from serving.http_headers import Headers, Message, Scope, Send
from serving.transport.request_head import REQUEST_ID, TRACEPARENT, RequestHead

_CALLER_KEY = "pilotlight.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: `user:ann@example.com`, `serviceAccount:…`, `allUsers` for one without a token.

    "" while access control is off.
    """

    principal: str


UNKNOWN_CALLER = Caller("")
ANONYMOUS_CALLER = Caller("allUsers")


def get_caller(scope: Scope) -> Caller:
    """The caller of a request that was let in."""
    caller: Caller = scope.get(_CALLER_KEY, UNKNOWN_CALLER)
    return caller


def set_caller(scope: Scope, caller: Caller) -> None:
    """Keep the caller beside the request."""
    scope[_CALLER_KEY] = caller


class ChangeCause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call: its id in the audit log, the id of its request, and who made it.

    `principal` is "" without access control.
    """

    call: str
    request_id: str = ""
    principal: str = ""


# The cause of the changes that are made in this context; a call sets it for as long as it lasts.
CURRENT_CAUSE: ContextVar[ChangeCause | None] = ContextVar("pilotlight_cause", default=None)


REQUEST_ID_HEADER = REQUEST_ID

_REQUEST_ID_KEY = "pilotlight.request_id"
_WELL_FORMED = re.compile(rb"[A-Za-z0-9._-]{1,128}")
# Of all requests of this process, followed by their number.
_PREFIX, _numbers = secrets.token_hex(8).encode(), itertools.count()
# W3C Trace Context: version, trace id, parent id, flags; later versions may say more.
_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)


def identify_request(head: RequestHead) -> bytes:
    """The client's own `X-Request-Id` if it is well-formed, else its trace id, else one made here."""
    told = head.prediction_headers
    own, parent = told.get(REQUEST_ID_HEADER), told.get(TRACEPARENT)
    if own is not None and _WELL_FORMED.fullmatch(own):
        return own
    if parent is not None and (trace := _parse_trace_id(parent)):
        return trace.encode()
    return _new_request_id()


def set_request_id(scope: Scope, identity: bytes) -> None:
    """Keep it beside the request."""
    scope[_REQUEST_ID_KEY] = identity.decode()


def ensure_request_id(scope: Scope) -> str:
    """The id of a request, made now if it has none yet."""
    known: str | None = scope.get(_REQUEST_ID_KEY)
    if known is None:
        known = scope[_REQUEST_ID_KEY] = _read_client_id(scope["headers"]) or _new_request_id().decode()
    return known


def read_trace_id(scope: Scope) -> str:
    """The trace that the client says the request belongs to, 32 hex digits; "" if it says none."""
    for name, value in scope["headers"]:
        if name == TRACEPARENT:
            return _parse_trace_id(value)
    return ""


def request_id_header(scope: Scope) -> tuple[bytes, bytes]:
    """The header that tells the client."""
    return REQUEST_ID_HEADER, ensure_request_id(scope).encode()


def with_request_id_header(scope: Scope, send: Send) -> Send:
    """A `send` that adds the header to the answer."""

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], request_id_header(scope)]
        await send(message)

    return send_with_id


def _new_request_id() -> bytes:
    """It tells requests apart and guards nothing."""
    return b"%b%016x" % (_PREFIX, next(_numbers))


def _read_client_id(headers: Headers) -> str:
    trace = b""
    for name, value in headers:
        if name == REQUEST_ID_HEADER and _WELL_FORMED.fullmatch(value):
            return value.decode()
        if name == TRACEPARENT:
            trace = value
    return _parse_trace_id(trace) if trace else ""


def _parse_trace_id(traceparent: bytes) -> str:
    match = _TRACEPARENT.fullmatch(traceparent)
    return match[1].decode() if match else ""
