"""The context of a request: its id, its caller, and the cause of the changes that it makes.

The id is the same in every log, and the client gets it as `x-request-id`.
"""

from __future__ import annotations

import itertools
import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass

import msgspec

from serving.http_headers import REQUEST_ID, TRACEPARENT, Headers, Message, Scope, Send
from serving.transport.request_head import RequestHead

_CALLER_KEY = "pilotlight.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request.

    `principal`: `user:ann@example.com`, `serviceAccount:…`, `allUsers` for a request without a token, ""
    while access control is off.
    """

    principal: str


UNKNOWN_CALLER = Caller("")
ANONYMOUS_CALLER = Caller("allUsers")


def get_caller(scope: Scope) -> Caller:
    caller: Caller = scope.get(_CALLER_KEY, UNKNOWN_CALLER)
    return caller


def set_caller(scope: Scope, caller: Caller) -> None:
    scope[_CALLER_KEY] = caller


class ChangeCause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The API call behind a change; `call` is its id in the audit log."""

    call: str
    request_id: str = ""
    principal: str = ""


# The cause of the changes that are made in this context; set for the duration of an API call.
CURRENT_CAUSE: ContextVar[ChangeCause | None] = ContextVar("pilotlight_cause", default=None)

REQUEST_ID_HEADER = REQUEST_ID

_REQUEST_ID_KEY = "pilotlight.request_id"
_WELL_FORMED = re.compile(rb"[A-Za-z0-9._-]{1,128}")
# The prefix of all ids that this process makes; a counter follows it.
_PREFIX, _numbers = secrets.token_hex(8).encode(), itertools.count()
# W3C Trace Context: version, trace id, parent id, flags; later versions may add fields.
_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)


def choose_request_id(head: RequestHead) -> bytes:
    """The client's `X-Request-Id` if it is well-formed, else its trace id, else a new id."""
    headers = head.prediction_headers
    own, parent = headers.get(REQUEST_ID_HEADER), headers.get(TRACEPARENT)
    if own is not None and _WELL_FORMED.fullmatch(own):
        return own
    if parent is not None and (trace := _parse_trace_id(parent)):
        return trace.encode()
    return _new_request_id()


def set_request_id(scope: Scope, request_id: bytes) -> None:
    scope[_REQUEST_ID_KEY] = request_id.decode()


def ensure_request_id(scope: Scope) -> str:
    """The id of a request, made on the first call unless `set_request_id` was called."""
    known: str | None = scope.get(_REQUEST_ID_KEY)
    if known is None:
        known = scope[_REQUEST_ID_KEY] = _read_request_id(scope["headers"]) or _new_request_id().decode()
    return known


def read_trace_id(scope: Scope) -> str:
    """The trace id in the client's `traceparent`, 32 hex digits; "" if there is none."""
    for name, value in scope["headers"]:
        if name == TRACEPARENT:
            return _parse_trace_id(value)
    return ""


def request_id_header(scope: Scope) -> tuple[bytes, bytes]:
    return REQUEST_ID_HEADER, ensure_request_id(scope).encode()


def with_request_id_header(scope: Scope, send: Send) -> Send:
    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], request_id_header(scope)]
        await send(message)

    return send_with_id


def _new_request_id() -> bytes:
    """Unique, but no secret."""
    return b"%b%016x" % (_PREFIX, next(_numbers))


def _read_request_id(headers: Headers) -> str:
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
