"""The gateway's connection to one node; see `serving.transport.framing`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from serving.errors import ServingError, Unavailable
from serving.transport.framing import (
    CANCEL_FRAME,
    NEVER_BATCH,
    PING_FRAME,
    PREDICT_FRAME,
    REQUEST_HEADER,
    RESPONSE_HEADER,
    WANTS_TIMING,
    Body,
    FrameProtocol,
    parse_header_lines,
)

# The longest error that a node may always report.
LEAST_ANSWER_BYTES = 1 << 20
_FRAME_NUMBERS = 1 << 32


@dataclass(frozen=True, slots=True)
class NodeReply:
    """A node's reply. The body is JSON unless the first of `headers` is its content type."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class ConnectError(Exception):
    """No connection to the node could be opened; nothing of the request was sent."""


class ConnectionLostError(Exception):
    """The node died or closed the connection before it replied."""


class ReplyCallback(Protocol):
    """Receives the outcome of a request: exactly one method is called, once, unless it is cancelled."""

    def on_reply(self, reply: NodeReply) -> None: ...

    def on_reply_dropped(self, error: ServingError) -> None:
        """The node replied, but the reply exceeds the receive budget."""

    def on_connection_lost(self) -> None:
        """The node died or closed the connection before it replied."""


class AwaitedReply:
    """A callback whose `reply` can be waited for; it is None if the connection is lost."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[NodeReply | None] = asyncio.get_running_loop().create_future()

    def on_reply(self, reply: NodeReply) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)

    def on_reply_dropped(self, error: ServingError) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)

    def on_connection_lost(self) -> None:
        if not self.reply.done():
            self.reply.set_result(None)


class ReceiveBudget:
    """Bounds the bytes of the long replies that are being received from all nodes.

    Each counts in full from its first byte. A single reply may exceed `limit`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0

    def reserve(self, size: int) -> bool:
        """Count a reply; False if it does not fit."""
        fits = not self.reserved or self.reserved + size <= self.limit
        self.reserved += size if fits else 0
        return fits

    def release(self, size: int) -> None:
        self.reserved -= size


class NodeConnection(FrameProtocol):
    """An open connection and the requests in flight on it, by frame number."""

    def __init__(self, max_answer_bytes: int, budget: ReceiveBudget) -> None:
        super().__init__(RESPONSE_HEADER, max(max_answer_bytes, LEAST_ANSWER_BYTES))
        self.callbacks: dict[int, ReplyCallback] = {}
        self.is_closing = False
        self._unwritten_releases: list[Callable[[], None]] = []
        self._budget = budget
        self._reserved_bytes = 0  # of the long reply that is being received

    def should_receive_frame(self, head: tuple[Any, ...], size: int) -> bool:
        number = head[0]
        if number not in self.callbacks:  # it was cancelled
            return False
        if self._budget.reserve(size):
            self._reserved_bytes = size
            return True
        self.callbacks.pop(number).on_reply_dropped(
            Unavailable(
                "Too many bytes of answers are being received from nodes (setting unsent_bytes = "
                f"{self._budget.limit}), and this one has {size}.",
                retry_after=1,
            )
        )
        return False

    def on_frame(self, head: tuple[Any, ...], front: bytes, body: Body) -> None:
        number, status, _, _ = head
        if self._reserved_bytes:
            self._release_budget()
        callback = self.callbacks.pop(number, None)
        if callback is None:
            return  # cancelled while the reply was on its way
        callback.on_reply(NodeReply(status, parse_header_lines(front) if front else (), bytes(body)))

    def on_frames_read(self) -> None:
        if self.is_closing and not self.callbacks:
            self.abort()

    def cancel_request(self, number: int, on_freed: Callable[[], None]) -> None:
        was_sent = self.callbacks.pop(number, None) is not None and not self.withdraw(number)
        if was_sent:
            self.send(number, REQUEST_HEADER.pack(CANCEL_FRAME, 0, number, 0, 0.0, 0, 0))
        if was_sent and self.paused:
            self._unwritten_releases.append(on_freed)
        else:
            on_freed()
        self.on_frames_read()

    def on_writable(self) -> None:
        releases, self._unwritten_releases = self._unwritten_releases, []
        for release in releases:
            release()

    def on_close(self) -> None:
        self._release_budget()
        callbacks, self.callbacks = self.callbacks, {}
        for callback in callbacks.values():
            callback.on_connection_lost()

    def _release_budget(self) -> None:
        self._budget.release(self._reserved_bytes)
        self._reserved_bytes = 0


class NodeClient:
    """Sends requests to one node, over a connection that is opened on demand and reopened when it was lost.

    A reply whose header announces more than `max_answer_bytes` closes the connection.
    """

    def __init__(self, address: str, max_answer_bytes: int, budget: ReceiveBudget) -> None:
        self.address = address
        self._max_answer_bytes = max_answer_bytes
        self._budget = budget
        self._connection: NodeConnection | None = None
        self._connect_task: asyncio.Task[OSError | None] | None = None
        self._last_number = 0
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent; False as soon as the node has closed the connection."""
        connection = self._connection
        return connection is not None and connection.transport is not None and not connection.is_closing

    async def connect(self) -> None:
        """Open the connection unless it is open; concurrent calls share one attempt. Raises ConnectError."""
        if self.is_connected:
            return
        if self._connect_task is None:
            self._connect_task = asyncio.create_task(self._open_connection(), name=f"channel {self.address}")
        error = await asyncio.shield(self._connect_task)
        if not self.is_connected:
            raise ConnectError(str(error or "It hung up.")) from error

    async def _open_connection(self) -> OSError | None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(
                lambda: NodeConnection(self._max_answer_bytes, self._budget), self.address
            )
        except OSError as error:
            return error
        finally:
            self._connect_task = None
        if self._closed:
            connection.abort()
        else:
            self._connection = connection
        return None

    def send(
        self,
        callback: ReplyCallback,
        body: Body,
        *,
        slot: int,
        timeout: float,
        never_batch: bool,
        wants_timing: bool,
        encoded_metadata: bytes = b"",
    ) -> int:
        """Send a request on the open connection; returns its frame number.

        `slot` is the index of its mark in the node's shared memory, `timeout` is in seconds. With
        `wants_timing` the reply has a Server-Timing header. `encoded_metadata` is the request's metadata, see
        `serving.protocols.encode_metadata`. Raises ConnectionLostError if there was never a connection.
        """
        connection = self._connection
        if connection is None:
            raise ConnectionLostError
        self._last_number = number = (self._last_number + 1) % _FRAME_NUMBERS
        connection.callbacks[number] = callback
        flags = (NEVER_BATCH if never_batch else 0) | (WANTS_TIMING if wants_timing else 0)
        size = len(encoded_metadata)
        head = (
            REQUEST_HEADER.pack(PREDICT_FRAME, flags, number, slot, timeout, size, size + len(body))
            + encoded_metadata
        )
        connection.send(number, head, body)
        return number

    def ping(self, callback: ReplyCallback) -> None:
        """Send a ping if there is a connection; the node's reply to it is empty."""
        connection = self._connection
        if connection is not None:
            self._last_number = number = (self._last_number + 1) % _FRAME_NUMBERS
            connection.callbacks[number] = callback
            connection.send(number, REQUEST_HEADER.pack(PING_FRAME, 0, number, 0, 0.0, 0, 0))

    def cancel(self, number: int, on_freed: Callable[[], None]) -> None:
        """Cancel a request: its callback is not called, and the node drops it unless it has begun.

        `on_freed` is called, maybe at once, when the connection holds nothing of the body any more: what is
        being written to a node that does not read stays until it does.
        """
        if self._connection is None:
            on_freed()
        else:
            self._connection.cancel_request(number, on_freed)

    def close(self) -> None:
        """Close the connection once all pending replies have arrived."""
        self._closed = True
        connection = self._connection
        if connection is not None:
            connection.is_closing = True
            connection.on_frames_read()
