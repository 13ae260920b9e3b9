"""The channel between gateway and node: many requests at a time over one unix-socket connection.

A frame is a head of fixed size and what follows it. The gateway sends requests, and withdraws those that
nobody waits for any more; the node sends answers, in the order in which they are ready. What is sent in one
turn of the event loop goes out in one write.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any, cast

Headers = Sequence[tuple[bytes, bytes]]

# From the gateway: kind, flags, number of the request, its slot on the board, the seconds it has, the length
# of what tells of its call (see `serving.protocols`), and that of all that follows: this, and the body.
REQUEST = struct.Struct("<BBIIdIQ")
ASK, CANCEL = 1, 2
# The request's call is to be its own; its answer is to say how long things took.
ALONE, TIMING = 1, 2

# From the node: number of the request, status, the length of its header lines, and that of all that follows:
# these lines, as they stand in the head of an HTTP answer, and the body.
ANSWER = struct.Struct("<IHIQ")

# Arriving frames share a buffer of so many bytes; one that does not fit gets memory of its own, at first at
# most so much: the rest is added as it comes, since who announces much may send little.
_SHARED = 64 << 10
_AT_FIRST = 16 << 20
# What is longer is written by itself, not copied to stand beside others.
_LONG = 64 << 10

Body = bytes | bytearray


class FrameError(Exception):
    """What came is no frame."""


class End(asyncio.BufferedProtocol):
    """One end of a channel: cuts what arrives into frames, and sends what it is given once per turn.

    `longest` is how many bytes may follow the head of a frame.
    """

    def __init__(self, head: struct.Struct, longest: int) -> None:
        self.transport: asyncio.Transport | None = None
        self._unpack, self._size = head.unpack_from, head.size
        self._longest = longest
        self._shared = bytearray(_SHARED)
        self._view = memoryview(self._shared)
        self._filled = 0  # bytes of the shared buffer that are not cut yet
        self._own: bytearray | None = None  # what follows the head of a long frame
        self._own_head: tuple[Any, ...] = ()
        self._own_filled = 0
        self._unsent: list[Body] = []
        self._long = False  # whether any of that is
        self._reading = False
        self._flushing = False

    # ---- for the two ends

    def frame(self, head: tuple[Any, ...], content: Body) -> None:
        """A frame has come. Raises FrameError if it cannot be one."""
        raise NotImplementedError

    def read(self) -> None:
        """All that came in one go has been cut into frames."""

    def closed(self) -> None:
        """There will be no more frames."""

    def send(self, head: bytes, content: Body = b"") -> None:
        """Send a frame, with all others of this turn of the event loop."""
        self._unsent += (head, content)
        if len(content) > _LONG:
            self._long = True
        if not (self._reading or self._flushing):
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send what is still unsent of this turn."""
        unsent, long = self._unsent, self._long
        self._unsent, self._long, self._flushing = [], False, False
        if self.transport is None:
            return
        if long:
            self.transport.writelines(unsent)
        else:
            self.transport.write(b"".join(unsent))

    def abort(self) -> None:
        """Close at once; what was not sent is dropped."""
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.abort()

    # ---- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take note of it."""
        # uvloop's transports are no subclass of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell."""
        self.transport = None
        self._unsent.clear()
        self.closed()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what comes next."""
        own = self._own
        if own is None:
            return self._view[self._filled :]
        if self._own_filled == len(own):
            own.extend(bytes(min(self._own_head[-1] - len(own), len(own))))
        return memoryview(own)[self._own_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Cut what came into frames; whoever sends what is none is not listened to any more."""
        self._reading = True
        try:
            if self._own is None:
                self._cut(self._filled + nbytes)
            else:
                self._go_on(self._own, nbytes)
            self.read()
        except FrameError:
            self.abort()
        finally:
            self._reading = False
        if self._unsent and not self._flushing:
            self.flush()

    def _cut(self, end: int) -> None:
        view, size, start = self._view, self._size, 0
        while end - start >= size:
            head = self._unpack(view, start)
            length = head[-1]
            body = start + size
            if body + length > end:
                if length > self._longest:
                    raise FrameError
                if size + length > _SHARED:
                    self._begin_own(head, view[body:end])
                    return
                break
            start = body + length
            self.frame(head, bytes(view[body:start]))
        # What is left is the beginning of a frame that fits.
        if start:
            self._shared[: end - start] = self._shared[start:end]
        self._filled = end - start

    def _begin_own(self, head: tuple[Any, ...], begin: memoryview) -> None:
        self._own_head = head
        self._own = bytearray(min(head[-1], _AT_FIRST))
        self._own[: len(begin)] = begin
        self._own_filled = len(begin)
        self._filled = 0

    def _go_on(self, own: bytearray, count: int) -> None:
        self._own_filled += count
        if self._own_filled == self._own_head[-1]:
            self._own = None
            self.frame(self._own_head, own)


def lines(headers: Headers) -> bytes:
    """Headers as they stand in the head of an HTTP answer."""
    return b"".join([b"%b: %b\r\n" % header for header in headers]) if headers else b""


def headers(lines: Body) -> Headers:
    """Header lines as names and values. Raises FrameError if they are none."""
    found = []
    for line in bytes(lines).split(b"\r\n")[:-1]:
        name, separator, value = line.partition(b": ")
        if not separator:
            raise FrameError
        found.append((name, value))
    return tuple(found)
