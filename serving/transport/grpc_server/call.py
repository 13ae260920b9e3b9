"""A call over gRPC; to its handler it is what a request is over HTTP."""

from __future__ import annotations

import asyncio
import math
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from serving.errors import InvalidArgument, ServingError
from serving.http_headers import BODY_LENGTH, TIMEOUT, Headers, Scope
from serving.protocols import Dialect, Reply
from serving.protocols.errors import GRPC_STATUS, render_error
from serving.protocols.model_spec import ModelSpec, extract_model_spec
from serving.protocols.paths import PredictionPath
from serving.transport.grpc_server.rpc_methods import RpcMethod
from serving.transport.request_head import RequestHead

STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}

# The shortest timeout that is passed on: it must not be zero.
_MIN_SECONDS = 0.001
# Seconds that gRPC's clock and ours may differ by, so that a passed deadline is no disconnect.
_CLOCK_TOLERANCE = 0.01
# Messages of errors travel with the headers of the answer, of which clients take 8 KiB in all; what is not
# ASCII is three times as long there.
_MAX_MESSAGE_LENGTH = 2000
# Headers that are not sent as trailing metadata.
_HTTP_ONLY_HEADERS = frozenset({b"content-type", GRPC_STATUS, b"www-authenticate", b"allow"})


class GrpcRequestHead(RequestHead):
    """The metadata of a call, and the model that its message names.

    Its deadline becomes `X-Request-Timeout`. `prediction_path` raises InvalidArgument where the message
    cannot be parsed, names no model, or never came.
    """

    __slots__ = ("_body", "_rpc")

    def __init__(self, rpc: RpcMethod, headers: Headers, body: bytes, remaining: float | None) -> None:
        super().__init__("POST", rpc.path, headers, length=len(body), version="2")
        self._rpc = rpc
        self._body = body
        self.encoding = ""  # gRPC has its own way to pack messages
        if remaining is not None:
            self.prediction_headers = {
                **self.prediction_headers,
                TIMEOUT: _earlier_timeout(remaining, self.prediction_headers.get(TIMEOUT)),
            }

    @property
    def prediction_path(self) -> PredictionPath:
        spec = self.read_model_spec()
        return PredictionPath(
            self._rpc.dialect, self._rpc.verb, spec.model, version=spec.version, label=spec.label
        )

    def read_model_spec(self) -> ModelSpec:
        """Raises InvalidArgument as `prediction_path` does."""
        spec = extract_model_spec(self._rpc.request, self._body)
        if not spec.model:
            raise InvalidArgument(f"The call has no {self._rpc.request} that names a model.")
        return spec


class GrpcCall:
    """A call whose message has arrived, and its reply; see `serving.transport.request.PredictionRequest`.

    `body` is empty where no message came; `peer` is gRPC's name of the client.
    """

    __slots__ = (
        "_deadline", "_reply", "_scope", "body", "head", "left_at_deadline", "on_disconnect", "peer",
        "response_complete", "rpc", "state",
    )  # fmt: skip

    def __init__(self, rpc: RpcMethod, context: Any, body: bytes) -> None:
        self.rpc = rpc
        # All of gRPC's data is read now: a call that is over has no peer, and must not be touched.
        loop, remaining = asyncio.get_running_loop(), context.time_remaining()
        self.peer = context.peer()
        self._deadline = math.inf if remaining is None else loop.time() + remaining
        self._scope: Scope | None = None
        self._reply: asyncio.Future[Reply] = loop.create_future()
        self.head = GrpcRequestHead(rpc, headers_from_metadata(context), body, remaining)
        self.body = body
        self.on_disconnect: Callable[[], None] | None = None
        self.state: Any = None
        self.response_complete = self.left_at_deadline = False

    @property
    def scope(self) -> Scope:
        """The head as an ASGI scope."""
        scope = self._scope
        if scope is None:
            scope = self._scope = build_scope(self.head, parse_peer(self.peer))
        return scope

    def respond(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Take the whole reply; does nothing if there is one, or if the client has disconnected."""
        if self.response_complete:
            return
        self._clear_references()
        if not self._reply.done():  # it is cancelled a moment before the call is left
            self._reply.set_result(Reply(status, body, headers))

    def respond_error(self, error: ServingError, headers: Headers = ()) -> None:
        status, body, own = render_error(error, self.rpc.dialect)
        self.respond(status, body, (*own, *headers))

    def handle_disconnect(self) -> None:
        """Nobody waits for a reply any more: the client has disconnected, or its deadline has passed."""
        if self.response_complete:
            return
        self.left_at_deadline = asyncio.get_running_loop().time() >= self._deadline - _CLOCK_TOLERANCE
        on_gone = self.on_disconnect
        self._clear_references()
        if on_gone is not None:
            on_gone()

    def _clear_references(self) -> None:
        """Drop references to objects that refer to the call."""
        self.response_complete = True
        self.body = b""
        self.on_disconnect = self.state = None

    async def wait_for_reply(self) -> Reply:
        return await self._reply


async def finish_call(context: Any, reply: Reply) -> bytes:
    """Return the message of a reply; an error ends the call with a status instead.

    HTTP headers are sent as trailing metadata.
    """
    trailing = tuple(
        (name.decode(), value.decode("latin-1"))
        for name, value in reply.headers
        if name not in _HTTP_ONLY_HEADERS
    )
    if trailing:
        context.set_trailing_metadata(trailing)
    if reply.status != 200:
        number = dict(reply.headers).get(GRPC_STATUS, b"")
        code = STATUS_CODES.get(int(number) if number.isdigit() else -1, grpc.StatusCode.UNKNOWN)
        await context.abort(code, truncate_message(reply.body.decode(errors="replace")))
    return reply.body


def truncate_message(message: str) -> str:
    """Truncate an error message to what clients accept."""
    return message if len(message) <= _MAX_MESSAGE_LENGTH else f"{message[: _MAX_MESSAGE_LENGTH - 4]} ..."


def _earlier_timeout(remaining: float, given: bytes | None) -> bytes:
    """Return the seconds until the deadline, or those of the client's header if they are fewer."""
    seconds = max(remaining, _MIN_SECONDS)
    try:
        return b"%f" % (seconds if given is None else min(seconds, float(given)))
    except ValueError:
        return given or b""  # its reader rejects it


def headers_from_metadata(context: Any) -> Headers:
    return [
        (key.encode(), value.encode() if isinstance(value, str) else value)
        for key, value in context.invocation_metadata() or ()
    ]


def parse_peer(peer: str) -> tuple[str, int] | None:
    """Parse gRPC's name of a client: `ipv4:127.0.0.1:4711`, `ipv6:%5B::1%5D:4711`."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return (host.strip("[]"), int(port)) if kind.startswith("ipv") and port.isdigit() else None


def build_scope(head: RequestHead, client: tuple[str, int] | None) -> Scope:
    return {
        "type": "http",
        "http_version": head.version,
        "method": head.method,
        "path": head.path,
        "headers": head.headers,
        "client": client,
        BODY_LENGTH: head.length,
    }


T = TypeVar("T")

# Reads the next message of a call by its context, None if there is none. Raises ServingError.
MessageReader = Callable[[Any], Awaitable[bytes | None]]


def with_error_replies(answer: Callable[[Any], Awaitable[T]]) -> Callable[[Any, Any], Awaitable[T | bytes]]:
    """Make a handler of calls that replies with the ServingErrors which `answer` raises."""

    async def handle_call(_: Any, context: Any) -> T | bytes:
        try:
            return await answer(context)
        except ServingError as error:
            return await finish_call(context, render_error(error, Dialect.INFERENCE_GRPC))

    return handle_call
