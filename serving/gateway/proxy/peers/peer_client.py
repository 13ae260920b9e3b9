"""The connection to one other server, on which all requests for it go at the same time.

It is opened ahead of requests, and watched: a peer that dies or stands still is not asked for long.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

from serving.errors import DeadlineExceeded
from serving.gateway.proxy.node_client import (
    LEAST_ANSWER_BYTES,
    AwaitedReply,
    ConnectionLostError,
    NodeConnection,
    NodeReply,
    ReceiveBudget,
    ReplyCallback,
)
from serving.gateway.proxy.peers.peer_protocol import (
    ACCEPTED,
    ANSWERED,
    CHALLENGE,
    DECLINED,
    HANDSHAKE_NUMBER,
    HELLO_FRAME,
    MOST_FRAME_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    PROOF_FRAME,
    QUESTION_FRAME,
    HandshakeKey,
    PeerTarget,
    decode_error,
    encode_hello,
)
from serving.http_headers import answer_too_large
from serving.transport.framing import PING_FRAME, PREDICT_FRAME, REQUEST_HEADER, Body, FrameError

logger = logging.getLogger(__name__)

# Seconds between two probes, and how many of them in a row may pass without a sign of life.
PROBE_SECONDS = 0.5
_MOST_SILENT_PROBES = 4
_CONNECT_SECONDS = 2.0
_MAX_NUMBER = (1 << 32) - 1


class ReceiveLimits(NamedTuple):
    """Of answers: bytes of one, and of all long ones together."""

    max_answer_bytes: int
    budget: ReceiveBudget


class PeerClient:
    """`on_change` is called when requests can be sent, and when they cannot any more.

    `attempts` counts the probes since it was connected last. `tls` is None on a machine's own loopback
    addresses.
    """

    def __init__(
        self,
        target: PeerTarget,
        secret: bytes,
        tls: ssl.SSLContext | None,
        limits: ReceiveLimits,
        on_change: Callable[[], None],
    ) -> None:
        self.target = target
        self.address = target.address
        self._key = HandshakeKey(secret, target.address)
        self._tls = tls
        self._limits = limits
        self._on_change = on_change
        self._connection: _PeerConnection | None = None
        self._connect_task: asyncio.Task[None] | None = None
        self._last_number = HANDSHAKE_NUMBER
        self._silent_probes = 0
        self._is_closed = False
        self.attempts = 0
        self._trouble = ""

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent; False as soon as the connection is lost."""
        connection = self._connection
        return connection is not None and connection.transport is not None and not connection.is_closing

    def probe(self) -> None:
        """Connect, or see that the peer still answers. Call it each PROBE_SECONDS."""
        if self._is_closed:
            return
        connection = self._connection
        if connection is None:
            self.attempts += 1
            if self._connect_task is None:
                self._connect_task = asyncio.create_task(self._connect(), name=f"peer {self.address.id}")
            return
        # Rounds, not seconds: if this server stood still, the peer is not to blame.
        self._silent_probes = 0 if connection.has_read else self._silent_probes + 1
        if self._silent_probes >= _MOST_SILENT_PROBES:
            self._note_trouble("it does not answer")
            connection.abort()
            return
        connection.has_read = False
        number = self._next_number()
        connection.send(number, REQUEST_HEADER.pack(PING_FRAME, 0, number, 0, 0.0, 0, 0))

    def send(self, callback: ReplyCallback, head: bytes, body: Body, timeout: float) -> int:
        """Send a request on the open connection; returns its number. Raises as `NodeClient.send` does."""
        connection = self._connection
        if connection is None:
            raise ConnectionLostError
        number = self._next_number()
        connection.callbacks[number] = callback
        size = len(head)
        front = REQUEST_HEADER.pack(PREDICT_FRAME, 0, number, 0, timeout, size, size + len(body))
        connection.send(number, front + head, body)
        return number

    async def ask(self, question: bytes, seconds: float) -> bytes | None:
        """The answer to a question; None if there is no connection, it is lost, or the peer cannot say.

        Raises the ServingError that the peer answers with, and DeadlineExceeded.
        """
        connection = self._connection
        if connection is None or not self.is_connected:
            return None
        number, asked = self._next_number(), AwaitedReply()
        connection.callbacks[number] = asked
        head = REQUEST_HEADER.pack(QUESTION_FRAME, 0, number, 0, seconds, 0, len(question))
        connection.send(number, head, question)
        try:
            async with asyncio.timeout(seconds):
                reply = await asked.reply
        except TimeoutError:
            raise DeadlineExceeded(
                f"The server at {self.address.host}:{self.address.port}, which was asked for this, has not "
                f"answered within {seconds:g} s."
            ) from None
        finally:
            # Nothing where it was answered.
            connection.cancel_request(number, _do_nothing)
        if reply is None or reply.status == DECLINED:
            return None
        if reply.status != ANSWERED:
            raise decode_error(reply.body)
        return reply.body

    def cancel(self, number: int, on_freed: Callable[[], None]) -> None:
        """As `NodeClient.cancel`."""
        if self._connection is None:
            on_freed()
        else:
            self._connection.cancel_request(number, on_freed)

    def close(self) -> None:
        """Close the connection once all pending replies have arrived."""
        self._is_closed = True
        if self._connect_task is not None:
            self._connect_task.cancel()
        connection = self._connection
        if connection is not None:
            connection.is_closing = True
            connection.on_frames_read()

    def _next_number(self) -> int:
        self._last_number = self._last_number % _MAX_NUMBER + 1
        return self._last_number

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        connection = _PeerConnection(self._limits, self._key, self.target.version, self._on_lost)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await loop.create_connection(
                    lambda: connection, self.address.host, self.address.port, ssl=self._tls
                )
                await connection.accepted
        except (OSError, TimeoutError, FrameError, ValueError) as error:  # ValueError: a host that is no name
            connection.abort()
            self._note_trouble(str(error) or "it does not answer")
        except asyncio.CancelledError:
            connection.abort()
            raise
        else:
            if connection.transport is not None:
                self._connection = connection
                self._silent_probes = self.attempts = 0
                self._note_trouble("")
                self._on_change()
        finally:
            self._connect_task = None

    def _on_lost(self, connection: _PeerConnection) -> None:
        if connection is self._connection:
            self._connection = None
            self._on_change()

    def _note_trouble(self, trouble: str) -> None:
        if trouble and not self._trouble:
            logger.warning("the server at %s:%d cannot be reached: %s", *self.address[1:], trouble)
        elif self._trouble and not trouble:
            logger.info("the server at %s:%d is reached again", *self.address[1:])
        self._trouble = trouble


def _do_nothing() -> None: ...


class _PeerConnection(NodeConnection):
    """`accepted` is done after the handshake; it fails with FrameError or ConnectionError."""

    def __init__(
        self,
        limits: ReceiveLimits,
        key: HandshakeKey,
        version: int,
        on_lost: Callable[[_PeerConnection], None],
    ) -> None:
        # One that is longer is skipped: the connection is that of all requests.
        super().__init__(MOST_FRAME_BYTES, limits.budget)
        self._max_answer_bytes = max(limits.max_answer_bytes, LEAST_ANSWER_BYTES)
        self._key = key
        self._version = version
        self._on_lost = on_lost
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_read = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._send_handshake(HELLO_FRAME, encode_hello(self._nonce, self._version))

    def connection_lost(self, error: Exception | None) -> None:
        # Nothing of what was not sent has been begun.
        for number in list(self._unsent):
            callback = self.callbacks.pop(number, None)
            if callback is not None:
                callback.on_reply(NodeReply(DECLINED, (), b""))
        super().connection_lost(error)

    def should_receive_frame(self, head: tuple[Any, ...], size: int) -> bool:
        if not self.accepted.done():
            raise FrameError
        if size <= self._max_answer_bytes:
            return super().should_receive_frame(head, size)
        callback = self.callbacks.pop(head[0], None)
        if callback is not None:
            callback.on_reply_dropped(answer_too_large(size, self._max_answer_bytes))
        return False

    def on_frame(self, head: tuple[Any, ...], front: bytes, body: Body) -> None:
        if head[0] == HANDSHAKE_NUMBER:
            self._on_handshake(head[1], bytes(body))
        else:
            super().on_frame(head, front, body)

    def buffer_updated(self, nbytes: int) -> None:
        # Only what arrives is a sign of life: `on_frames_read` is called for what is withdrawn, too.
        self.has_read = True
        super().buffer_updated(nbytes)

    def on_close(self) -> None:
        if not self.accepted.done():
            self.accepted.set_exception(ConnectionResetError("it closed the connection"))
            self.accepted.exception()  # it may be waited for by nobody
        self._on_lost(self)
        super().on_close()

    def _on_handshake(self, status: int, body: bytes) -> None:
        if self.accepted.done():
            raise FrameError
        if status == CHALLENGE:
            proof, nonce = body[:PROOF_BYTES], body[PROOF_BYTES:]
            if not self._key.is_proof(proof, b"server", self._nonce, self._version):
                self.accepted.set_exception(
                    FrameError("it is not the server that is meant, or of another database")
                )
                raise FrameError
            self._send_handshake(PROOF_FRAME, self._key.prove(b"client", nonce, self._version))
        elif status == ACCEPTED:
            self.accepted.set_result(None)
        else:
            raise FrameError

    def _send_handshake(self, kind: int, body: bytes) -> None:
        self.send(
            HANDSHAKE_NUMBER, REQUEST_HEADER.pack(kind, 0, HANDSHAKE_NUMBER, 0, 0.0, 0, len(body)), body
        )
