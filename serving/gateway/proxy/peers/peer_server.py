"""Takes requests that other servers pass on, and has them answered here."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from serving.errors import Internal, ServingError, Unavailable
from serving.gateway.proxy.peers.peer_protocol import (
    ACCEPTED,
    ANSWER_SECONDS,
    ANSWERED,
    CHALLENGE,
    DECLINED,
    FAILED,
    HANDSHAKE_NUMBER,
    HELLO_FRAME,
    MOST_FRAME_BYTES,
    NONCE_BYTES,
    PONG,
    PROOF_FRAME,
    QUESTION_FRAME,
    UNNAMED_VERSION,
    HandshakeKey,
    HopHead,
    ProtocolVersions,
    decode_head,
    decode_hello,
    encode_error,
)
from serving.gateway.request_context import Caller, set_caller
from serving.http_headers import BODY_LENGTH, REQUEST_ID, TIMEOUT, Headers, Scope
from serving.protocols import Dialect
from serving.protocols.errors import render_error
from serving.protocols.paths import PredictionPath, detect_dialect
from serving.transport.acceptor import ConnectionAcceptor, ignore_shortage
from serving.transport.framing import (
    CANCEL_FRAME,
    MAX_PREFIX_BYTES,
    PING_FRAME,
    PREDICT_FRAME,
    REQUEST_HEADER,
    RESPONSE_HEADER,
    Body,
    FrameError,
    FrameProtocol,
    encode_header_lines,
)
from serving.transport.request_head import RequestHead

logger = logging.getLogger(__name__)

# Seconds for the handshake of TLS, then to prove that a connection is a peer's, and how many may be about
# to prove it.
_HANDSHAKE_SECONDS, _MOST_HANDSHAKES = 5.0, 64
_KEEPALIVE_SECONDS = 60
# Bytes of answers that wait for a server to read them before no more of its requests are read: its answers
# would fill the memory. And those that an answer takes besides its own.
_MOST_UNSENT_BYTES, _ANSWER_OVERHEAD = 64 << 20, 1024


class ForwardedRequestHead(RequestHead):
    """The head of a request that another server got."""

    __slots__ = ("_forwarded",)

    def __init__(self, forwarded: HopHead, length: int) -> None:
        # The first of a name counts.
        headers = (
            (REQUEST_ID, forwarded.request_id),
            (TIMEOUT, repr(forwarded.timeout).encode()),
            *forwarded.headers,
        )
        super().__init__(forwarded.method, forwarded.path, headers, length=length)
        self.encoding = ""  # the body was unpacked
        self._forwarded = forwarded

    @property
    def prediction_path(self) -> PredictionPath | None:
        return self._forwarded.prediction_path or super().prediction_path


class ForwardedCall:
    """A request from another server, and its reply; see `serving.transport.request.PredictionRequest`.

    `version_key` is the key of the version that the other server has it answered by.
    """

    __slots__ = (
        "_connection", "_forwarded", "_number", "_scope", "_started_at", "body", "head", "on_disconnect",
        "response_complete", "state",
    )  # fmt: skip

    def __init__(self, connection: _ServerConnection, number: int, forwarded: HopHead, body: bytes) -> None:
        self._connection = connection
        self._number = number
        self._forwarded = forwarded
        self._scope: Scope | None = None
        self._started_at = time.monotonic()
        self.head = ForwardedRequestHead(forwarded, len(body))
        self.body = body
        self.on_disconnect: Callable[[], None] | None = None
        self.state: Any = None
        self.response_complete = False

    @property
    def version_key(self) -> str:
        return self._forwarded.version

    @property
    def left_at_deadline(self) -> bool:
        return False

    @property
    def scope(self) -> Scope:
        """The head as an ASGI scope, with its caller as the other server knows it."""
        scope = self._scope
        if scope is None:
            head = self.head
            scope = self._scope = {
                "type": "http",
                "http_version": head.version,
                "method": head.method,
                "path": head.path,
                "headers": head.headers,
                "client": self._forwarded.client,
                BODY_LENGTH: head.length,
            }
            set_caller(scope, Caller(self._forwarded.principal))
        return scope

    def respond(self, status: int, body: bytes, headers: Headers = ()) -> None:
        if self.response_complete:
            return
        seconds = time.monotonic() - self._started_at
        front = encode_header_lines((*headers, (ANSWER_SECONDS, b"%.6f" % seconds)))
        if len(front) > MAX_PREFIX_BYTES:
            # It would end the connection, which is that of all requests.
            self.respond_error(Internal(f"The headers of the answer have {len(front)} bytes: too many."))
            return
        self._finish(status, front, body)

    def respond_error(self, error: ServingError, headers: Headers = ()) -> None:
        dialect = self._forwarded.dialect
        status, body, own = render_error(
            error, Dialect(dialect) if dialect else detect_dialect(self.head.path)
        )
        self.respond(status, body, (*own, *headers))

    def decline(self) -> None:
        """Leave the request to the other server: nothing was done for it."""
        if not self.response_complete:
            self._finish(DECLINED, b"", b"")

    def handle_disconnect(self) -> None:
        """The other server does not wait any more."""
        if self.response_complete:
            return
        on_gone = self.on_disconnect
        self._clear_references()
        if on_gone is not None:
            on_gone()

    def _finish(self, status: int, front: bytes, body: bytes) -> None:
        connection, number = self._connection, self._number
        self._clear_references()
        connection.reply(number, status, front, body)

    def _clear_references(self) -> None:
        self.response_complete = True
        self.body = b""
        self.on_disconnect = self.state = None
        self._connection.calls.pop(self._number, None)


class PeerQuestion:
    """A question of another server, and the task that answers it."""

    __slots__ = ("_connection", "_number", "_task")

    def __init__(
        self, connection: _ServerConnection, number: int, answering: Coroutine[Any, Any, bytes | None]
    ) -> None:
        self._connection = connection
        self._number = number
        self._task = asyncio.create_task(self._answer(answering), name="question of a peer")

    def handle_disconnect(self) -> None:
        """The other server does not wait any more."""
        self._connection.calls.pop(self._number, None)
        self._task.cancel()

    async def _answer(self, answering: Coroutine[Any, Any, bytes | None]) -> None:
        try:
            answer = await answering
        except ServingError as error:
            self._finish(FAILED, encode_error(error))
        except Exception:
            logger.exception("a question of another server could not be answered")
            self._finish(FAILED, encode_error(Internal("Internal error encountered.")))
        else:
            self._finish(DECLINED if answer is None else ANSWERED, answer or b"")

    def _finish(self, status: int, body: bytes) -> None:
        self._connection.calls.pop(self._number, None)
        self._connection.reply(self._number, status, b"", body)


# Answers a call, now or later.
CallHandler = Callable[[ForwardedCall], None]
# Answers a question: None where this server cannot say. Raises a ServingError.
QuestionHandler = Callable[[bytes], Coroutine[Any, Any, bytes | None]]


class PeerServer:
    """Listens for other servers from `start` on; leaves bodies over `max_body_bytes` to them."""

    def __init__(
        self,
        handler: CallHandler,
        answer_question: QuestionHandler,
        key: HandshakeKey,
        tls: ssl.SSLContext | None,
        max_body_bytes: int,
        *,
        versions: ProtocolVersions,
    ) -> None:
        self._handler = handler
        self.answer_question = answer_question
        self.key = key
        self._tls = tls
        self.max_body_bytes = max_body_bytes
        self.versions = versions
        self.is_draining = False
        self.connections: dict[_ServerConnection, None] = {}  # in the order in which they came
        self._idle = asyncio.Event()
        self._listener: socket.socket | None = None
        self._acceptor: ConnectionAcceptor | None = None
        self._tls_handshakes: dict[asyncio.Task[object], None] = {}  # in the order in which they came

    def start(self, listener: socket.socket) -> None:
        _keep_alive(listener)
        self._listener = listener
        self._acceptor = ConnectionAcceptor(
            listener,
            lambda: _ServerConnection(self),
            make_room=self._end_handshakes,
            on_shortage=ignore_shortage,
            begin_tls=None if self._tls is None else self._begin_tls,
        )
        self._acceptor.start()

    def begin_drain(self) -> None:
        """Take no more requests."""
        self.is_draining = True

    async def stop(self, seconds: float) -> None:
        """Close all connections once what is being answered is, within so many seconds."""
        self.begin_drain()
        self._close_listener()
        self._end_handshakes()
        if self._count_calls():
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), seconds)
            except TimeoutError:
                logger.warning("%d requests of other servers were not answered in time", self._count_calls())
        for connection in list(self.connections):
            connection.close_when_sent()

    def add_connection(self, connection: _ServerConnection) -> None:
        """End the oldest connection that is not proven where there are too many of them.

        A peer takes milliseconds for its proof: who says nothing must not keep it out.
        """
        self.connections[connection] = None
        self._end_unproven(_MOST_HANDSHAKES)

    def handle(self, call: ForwardedCall) -> None:
        if self.is_draining or len(call.body) > self.max_body_bytes:
            call.decline()
            return
        try:
            self._handler(call)
        except Exception:
            logger.exception("a request of another server could not be answered")
            call.respond_error(Unavailable("Internal error encountered."))

    def _close_listener(self) -> None:
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None and self._listener is not None:
            acceptor.close()
            self._listener.close()

    def _begin_tls(self, accepted: socket.socket) -> None:
        """As with proofs, the oldest handshake ends where there are too many: each takes a descriptor."""
        loop = asyncio.get_running_loop()
        opening = loop.connect_accepted_socket(
            lambda: _ServerConnection(self),
            accepted,
            ssl=self._tls,
            # Without it a connection that says nothing stays for a minute.
            ssl_handshake_timeout=_HANDSHAKE_SECONDS,
        )
        task: asyncio.Task[object] = loop.create_task(opening, name="handshake of a peer")
        self._tls_handshakes[task] = None
        task.add_done_callback(functools.partial(self._on_tls_ended, accepted))
        if len(self._tls_handshakes) > _MOST_HANDSHAKES:
            oldest = next(iter(self._tls_handshakes))
            del self._tls_handshakes[oldest]
            oldest.cancel()

    def _on_tls_ended(self, accepted: socket.socket, task: asyncio.Task[object]) -> None:
        self._tls_handshakes.pop(task, None)
        if task.cancelled() or task.exception() is not None:
            accepted.close()

    def _end_handshakes(self) -> None:
        for task in list(self._tls_handshakes):
            task.cancel()
        self._end_unproven(0)

    def _end_unproven(self, most: int) -> None:
        """End connections that are not proven, the oldest first, until there are only so many."""
        unproven = [one for one in self.connections if not one.is_accepted]
        for connection in unproven[: max(0, len(unproven) - most)]:
            del self.connections[connection]
            connection.abort()

    def on_call_ended(self) -> None:
        if self.is_draining and not self._count_calls():
            self._idle.set()

    def _count_calls(self) -> int:
        return sum(len(connection.calls) for connection in self.connections)


def _keep_alive(listener: socket.socket) -> None:
    """Have connections end whose other machine has lost its power: only a peer's own end is told."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # accepted sockets inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)


class _ServerConnection(FrameProtocol):
    """A connection of another server; `calls` are being answered."""

    def __init__(self, server: PeerServer) -> None:
        super().__init__(REQUEST_HEADER, MOST_FRAME_BYTES)
        self._server = server
        self.calls: dict[int, ForwardedCall | PeerQuestion] = {}
        self.is_accepted = False
        self._nonce = b""
        self._version = UNNAMED_VERSION
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0  # while the transport accepts no writes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.add_connection(self)
        self._timer = asyncio.get_running_loop().call_later(_HANDSHAKE_SECONDS, self._end_handshake)

    def should_receive_frame(self, head: tuple[Any, ...], size: int) -> bool:
        if not self.is_accepted:
            raise FrameError
        if size <= self._server.max_body_bytes:
            return True
        self.reply(head[2], DECLINED, b"", b"")
        return False

    def on_frame(self, head: tuple[Any, ...], prefix: bytes, body: Body) -> None:
        kind, number = head[0], head[2]
        if not self.is_accepted:
            self._on_handshake(kind, bytes(body))
        elif kind == PREDICT_FRAME:
            try:
                forwarded = decode_head(prefix)
            except msgspec.DecodeError:
                self.reply(number, DECLINED, b"", b"")
                return
            call = self.calls[number] = ForwardedCall(self, number, forwarded, bytes(body))
            self._server.handle(call)
        elif kind == QUESTION_FRAME:
            if self._server.is_draining:
                self.reply(number, DECLINED, b"", b"")
                return
            self.calls[number] = PeerQuestion(self, number, self._server.answer_question(bytes(body)))
        elif kind == CANCEL_FRAME:
            call_or_none = self.calls.get(number)
            if call_or_none is not None:
                call_or_none.handle_disconnect()
        elif kind == PING_FRAME:
            self.reply(number, PONG, b"", b"")
        else:
            self.reply(number, DECLINED, b"", b"")

    def on_close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._server.connections.pop(self, None)
        for call in list(self.calls.values()):
            call.handle_disconnect()
        self._server.on_call_ended()

    def reply(self, number: int, status: int, front: bytes, body: bytes) -> None:
        size = len(front)
        if self.transport is not None:
            self.send(number, RESPONSE_HEADER.pack(number, status, size, size + len(body)) + front, body)
            if self.paused:
                self._unsent_bytes += size + len(body) + _ANSWER_OVERHEAD
                if self._unsent_bytes > _MOST_UNSENT_BYTES:
                    self.transport.pause_reading()
        self._server.on_call_ended()

    def resume_writing(self) -> None:
        super().resume_writing()
        unsent = self._unsent.values()
        self._unsent_bytes = sum(len(head) + len(body) + _ANSWER_OVERHEAD for head, body in unsent)
        if self.transport is not None and self._unsent_bytes <= _MOST_UNSENT_BYTES:
            self.transport.resume_reading()

    def _on_handshake(self, kind: int, body: bytes) -> None:
        key = self._server.key
        if kind == HELLO_FRAME and not self._nonce:
            nonce, self._version = decode_hello(body)
            if not self._server.versions.oldest <= self._version <= self._server.versions.newest:
                # The row that it has read is that of another Pilotlight, which had this place before.
                raise FrameError
            self._nonce = secrets.token_bytes(NONCE_BYTES)
            proof = key.prove(b"server", nonce, self._version)
            self.reply(HANDSHAKE_NUMBER, CHALLENGE, b"", proof + self._nonce)
        elif kind == PROOF_FRAME and key.is_proof(body, b"client", self._nonce, self._version):
            self.is_accepted = True
            self.reply(HANDSHAKE_NUMBER, ACCEPTED, b"", b"")
        else:
            raise FrameError

    def _end_handshake(self) -> None:
        if not self.is_accepted:
            self.abort()
