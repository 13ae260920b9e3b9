"""The gateway's end of the channel to one node; see `serving.frames`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from serving.errors import ServingError, Unavailable
from serving.frames import (
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
class Answer:
    """What a node answered: JSON, unless the first of the `headers` is its type; its length is not there."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class ConnectError(Exception):
    """No connection to the node could be made; nothing of the request reached it."""


class ConnectionLostError(Exception):
    """The node died or hung up before its answer was there."""


class Asker(Protocol):
    """Who waits for an answer; is told of one of these, once, unless it cancels."""

    def answered(self, answer: Answer) -> None:
        """The answer is there."""

    def refused(self, error: ServingError) -> None:
        """There is an answer, but no memory for it."""

    def lost(self) -> None:
        """The node died or hung up before its answer was there."""


class ReceivedBytes:
    """Counts long answers that are being received from all nodes, each in full from its beginning on.

    They are at most `limit` in all; alone, one may have any length that an answer may have.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int) -> bool:
        """Count one more, if it fits."""
        fits = not self.held or self.held + size <= self.limit
        self.held += size if fits else 0
        return fits

    def give(self, size: int) -> None:
        """It is there, or will never be."""
        self.held -= size


class _Channel(FrameProtocol):
    """An open connection with the requests that are under way on it."""

    def __init__(self, max_answer_bytes: int, received: ReceivedBytes) -> None:
        super().__init__(RESPONSE_HEADER, max(max_answer_bytes, _ERROR_BYTES))
        self.asking: dict[int, Asker] = {}
        self.ending = False
        self._being_written: list[Callable[[], None]] = []
        self._received = received
        self._receiving = 0  # bytes of the long answer that is being received

    def accept_frame(self, head: tuple[Any, ...], size: int) -> bool:
        number = head[0]
        if number not in self.asking:  # nobody waits for it
            return False
        if self._received.take(size):
            self._receiving = size
            return True
        self.asking.pop(number).refused(
            Unavailable(
                "Too many bytes of answers are being received from nodes (setting unsent_bytes = "
                f"{self._received.limit}), and this one has {size}.",
                retry_after=1,
            )
        )
        return False

    def on_frame(self, head: tuple[Any, ...], front: bytes, body: Body) -> None:
        number, status, _, _ = head
        self._give_back()
        asker = self.asking.pop(number, None)
        if asker is None:
            return  # it was cancelled when its answer was on its way
        asker.answered(Answer(status, parse_header_lines(front) if front else (), bytes(body)))

    def on_frames_read(self) -> None:
        if self.ending and not self.asking:
            self.abort()

    def cancel(self, number: int, freed: Callable[[], None]) -> None:
        sent = self.asking.pop(number, None) is not None and not self.withdraw(number)
        if sent:
            self.send(number, REQUEST_HEADER.pack(CANCEL_FRAME, 0, number, 0, 0.0, 0, 0))
        if sent and self.paused:
            self._being_written.append(freed)
        else:
            freed()
        self.on_frames_read()

    def on_drain(self) -> None:
        freed, self._being_written = self._being_written, []
        for free in freed:
            free()

    def on_close(self) -> None:
        self._give_back()
        asking, self.asking = self.asking, {}
        for asker in asking.values():
            asker.lost()

    def _give_back(self) -> None:
        if self._receiving:
            self._received.give(self._receiving)
            self._receiving = 0


class Upstream:
    """The channel to one node, opened when it is needed and again when it was lost.

    It is closed by an answer that is announced to be longer than `max_answer_bytes`. Long answers count among
    those that are `received` from all nodes.
    """

    def __init__(self, address: str, max_answer_bytes: int, received: ReceivedBytes) -> None:
        self.address = address
        self._max_answer_bytes = max_answer_bytes
        self._received = received
        self._channel: _Channel | None = None
        self._opening: asyncio.Task[OSError | None] | None = None
        self._number = 0
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether a request can be sent; False as soon as the node has hung up."""
        channel = self._channel
        return channel is not None and channel.transport is not None and not channel.ending

    async def connect(self) -> None:
        """Open the channel, if it is not open; concurrent calls share one attempt. Raises ConnectError."""
        if self.connected:
            return
        if self._opening is None:
            self._opening = asyncio.create_task(self._open_connection(), name=f"channel {self.address}")
        error = await asyncio.shield(self._opening)
        if not self.connected:
            raise ConnectError(str(error or "It hung up.")) from error

    async def _open_connection(self) -> OSError | None:
        loop = asyncio.get_running_loop()
        try:
            _, channel = await loop.create_unix_connection(
                lambda: _Channel(self._max_answer_bytes, self._received), self.address
            )
        except OSError as error:
            return error
        finally:
            self._opening = None
        if self._closed:
            channel.abort()
        else:
            self._channel = channel
        return None

    def send(
        self,
        asker: Asker,
        body: Body,
        *,
        slot: int,
        timeout: float,
        never_batch: bool,
        timing: bool,
        about: bytes = b"",
    ) -> int:
        """Send a request on the open channel; returns its number.

        `slot` is its place on the node's board, `timeout` the seconds it has; if it is `alone`, its call is
        shared with no other request, and with `timing` the answer says how long things took. `about` is its
        call as bytes; see `serving.protocols`. Raises ConnectionLostError if there has never been a channel.
        """
        channel = self._channel
        if channel is None:
            raise ConnectionLostError
        self._number = number = (self._number + 1) % _NUMBERS
        channel.asking[number] = asker
        flags = (NEVER_BATCH if never_batch else 0) | (WANTS_TIMING if timing else 0)
        told = len(about)
        head = (
            REQUEST_HEADER.pack(PREDICT_FRAME, flags, number, slot, timeout, told, told + len(body)) + about
        )
        channel.send(number, head, body)
        return number

    def ping(self, asker: Asker) -> None:
        """Ask the node, if there is a channel, whether it still reacts; the answer is empty."""
        channel = self._channel
        if channel is not None:
            self._number = number = (self._number + 1) % _NUMBERS
            channel.asking[number] = asker
            channel.send(number, REQUEST_HEADER.pack(PING_FRAME, 0, number, 0, 0.0, 0, 0))

    def cancel(self, number: int, freed: Callable[[], None]) -> None:
        """Nobody waits for this answer any more: the node drops the work if it has not begun.

        `freed` is called, maybe at once, when the channel holds nothing of the body: what is being written
        to a node that does not read stays until it does.
        """
        if self._channel is None:
            freed()
        else:
            self._channel.cancel(number, freed)

    def close(self) -> None:
        """Close the channel once the answers that are on their way have come."""
        self._closed = True
        channel = self._channel
        if channel is not None:
            channel.ending = True
            channel.on_frames_read()
