"""The gateway's end of the channel to one node; see `serving.transport.framing`."""

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

# A node may always tell of an error in so many bytes.
_ERROR_BYTES = 1 << 20
_NUMBERS = 1 << 32


@dataclass(frozen=True, slots=True)
class NodeReply:
    """What a node answered: JSON, unless the first of the `headers` is its type; its length is not there."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class ConnectError(Exception):
    """No connection to the node could be made; nothing of the request reached it."""


class ConnectionLostError(Exception):
    """The node died or hung up before its answer was there."""


class ReplyCallback(Protocol):
    """Who waits for an answer; is told of one of these, once, unless it cancels."""

    def on_reply(self, reply: NodeReply) -> None:
        """The answer is there."""

    def on_reply_dropped(self, error: ServingError) -> None:
        """There is an answer, but no memory for it."""

    def on_connection_lost(self) -> None:
        """The node died or hung up before its answer was there."""


class ReceiveBudget:
    """Counts long answers that are being received from all nodes, each in full from its beginning on.

    They are at most `limit` in all; alone, one may have any length that an answer may have.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0

    def reserve(self, size: int) -> bool:
        """Count one more, if it fits."""
        fits = not self.reserved or self.reserved + size <= self.limit
        self.reserved += size if fits else 0
        return fits

    def release(self, size: int) -> None:
        """It is there, or will never be."""
        self.reserved -= size


class _NodeConnection(FrameProtocol):
    """An open connection with the requests that are under way on it."""

    def __init__(self, max_answer_bytes: int, budget: ReceiveBudget) -> None:
        super().__init__(RESPONSE_HEADER, max(max_answer_bytes, _ERROR_BYTES))
        self.callbacks: dict[int, ReplyCallback] = {}
        self.is_closing = False
        self._unwritten_releases: list[Callable[[], None]] = []
        self._budget = budget
        self._reserved_bytes = 0  # bytes of the long answer that is being received

    def accept_frame(self, head: tuple[Any, ...], size: int) -> bool:
        number = head[0]
        if number not in self.callbacks:  # nobody waits for it
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
        self._release_budget()
        asker = self.callbacks.pop(number, None)
        if asker is None:
            return  # it was cancelled when its answer was on its way
        asker.on_reply(NodeReply(status, parse_header_lines(front) if front else (), bytes(body)))

    def on_frames_read(self) -> None:
        if self.is_closing and not self.callbacks:
            self.abort()

    def cancel_request(self, number: int, on_freed: Callable[[], None]) -> None:
        sent = self.callbacks.pop(number, None) is not None and not self.withdraw(number)
        if sent:
            self.send(number, REQUEST_HEADER.pack(CANCEL_FRAME, 0, number, 0, 0.0, 0, 0))
        if sent and self.paused:
            self._unwritten_releases.append(on_freed)
        else:
            on_freed()
        self.on_frames_read()

    def on_drain(self) -> None:
        freed, self._unwritten_releases = self._unwritten_releases, []
        for free in freed:
            free()

    def on_close(self) -> None:
        self._release_budget()
        asking, self.callbacks = self.callbacks, {}
        for asker in asking.values():
            asker.on_connection_lost()

    def _release_budget(self) -> None:
        if self._reserved_bytes:
            self._budget.release(self._reserved_bytes)
            self._reserved_bytes = 0


class NodeClient:
    """The channel to one node, opened when it is needed and again when it was lost.

    It is closed by an answer that is announced to be longer than `max_answer_bytes`. Long answers count among
    those that are `received` from all nodes.
    """

    def __init__(self, address: str, max_answer_bytes: int, budget: ReceiveBudget) -> None:
        self.address = address
        self._max_answer_bytes = max_answer_bytes
        self._budget = budget
        self._connection: _NodeConnection | None = None
        self._connect_task: asyncio.Task[OSError | None] | None = None
        self._last_number = 0
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent; False as soon as the node has hung up."""
        channel = self._connection
        return channel is not None and channel.transport is not None and not channel.is_closing

    async def connect(self) -> None:
        """Open the channel, if it is not open; concurrent calls share one attempt. Raises ConnectError."""
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
            _, channel = await loop.create_unix_connection(
                lambda: _NodeConnection(self._max_answer_bytes, self._budget), self.address
            )
        except OSError as error:
            return error
        finally:
            self._connect_task = None
        if self._closed:
            channel.abort()
        else:
            self._connection = channel
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
        encoded_call: bytes = b"",
    ) -> int:
        """Send a request on the open channel; returns its number.

        `slot` is its place on the node's board, `timeout` the seconds it has; if it is `alone`, its call is
        shared with no other request, and with `timing` the answer says how long things took. `about` is its
        call as bytes; see `serving.protocols`. Raises ConnectionLostError if there has never been a channel.
        """
        channel = self._connection
        if channel is None:
            raise ConnectionLostError
        self._last_number = number = (self._last_number + 1) % _NUMBERS
        channel.callbacks[number] = callback
        flags = (NEVER_BATCH if never_batch else 0) | (WANTS_TIMING if wants_timing else 0)
        told = len(encoded_call)
        head = (
            REQUEST_HEADER.pack(PREDICT_FRAME, flags, number, slot, timeout, told, told + len(body))
            + encoded_call
        )
        channel.send(number, head, body)
        return number

    def ping(self, callback: ReplyCallback) -> None:
        """Ask the node, if there is a channel, whether it still reacts; the answer is empty."""
        channel = self._connection
        if channel is not None:
            self._last_number = number = (self._last_number + 1) % _NUMBERS
            channel.callbacks[number] = callback
            channel.send(number, REQUEST_HEADER.pack(PING_FRAME, 0, number, 0, 0.0, 0, 0))

    def cancel(self, number: int, on_freed: Callable[[], None]) -> None:
        """Nobody waits for this answer any more: the node drops the work if it has not begun.

        `freed` is called, maybe at once, when the channel holds nothing of the body: what is being written
        to a node that does not read stays until it does.
        """
        if self._connection is None:
            on_freed()
        else:
            self._connection.cancel_request(number, on_freed)

    def close(self) -> None:
        """Close the channel once the answers that are on their way have come."""
        self._closed = True
        channel = self._connection
        if channel is not None:
            channel.is_closing = True
            channel.on_frames_read()
