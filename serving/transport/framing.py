"""The channel between gateway and node: many requests at a time over one unix-socket connection.

A frame is a head of fixed size and what follows it: a few bytes in front, where there is need, and the body.
The gateway sends requests, withdraws those that nobody waits for any more, and asks whether the node still
reacts (a ping, whose answer is empty). The node sends answers, in the order in which they are ready.
What is sent in one turn of the event loop goes out in one write; while the other end does not read, frames
wait here, where they can be withdrawn.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, cast

Headers = Sequence[tuple[bytes, bytes]]

# From the gateway: kind, flags, number of the request, its slot on the board, the seconds it has, the length
# of what stands in front of its body and tells of its call (see `serving.protocols`), and that of both.
REQUEST_HEADER = struct.Struct("<BBIIdIQ")
PREDICT_FRAME, CANCEL_FRAME, PING_FRAME = 1, 2, 3
# The request's call is to be its own; its answer is to say how long things took.
NEVER_BATCH, WANTS_TIMING = 1, 2

# From the node: number of the request, status, the length of its header lines, which stand in front of the
# body as they do in an HTTP answer, and that of both.
RESPONSE_HEADER = struct.Struct("<IHIQ")

# Arriving frames share a buffer of so many bytes; one that does not fit gets memory of its own, at first at
# most so much: the rest is added as it comes, since who announces much may send little. What stands in front
# of a body has no more than this.
_SHARED_BUFFER_BYTES = 64 << 10
MAX_PREFIX_BYTES = _SHARED_BUFFER_BYTES // 2
_FIRST_ALLOCATION_BYTES = 16 << 20
# What is longer is written by itself, not copied to stand beside others.
_SEPARATE_WRITE_BYTES = 64 << 10

Body = bytes | bytearray


class FrameError(Exception):
    """What came is no frame."""


class FrameProtocol(asyncio.BufferedProtocol):
    """One end of a channel: cuts what arrives into frames, and sends what it is given once per turn.

    `head` ends with the bytes in front of the body and those of all that follows; `longest` is how many the
    body may have.
    """

    def __init__(self, head: struct.Struct, max_body_bytes: int) -> None:
        self.transport: asyncio.Transport | None = None
        self._unpack, self._size = head.unpack_from, head.size
        self._max_body_bytes = max_body_bytes
        self._shared = bytearray(_SHARED_BUFFER_BYTES)
        self._view = memoryview(self._shared)
        self._filled = 0  # bytes of the shared buffer that are not cut yet
        self._long_body: bytearray | None = None  # the body of a long frame
        self._long_head: tuple[Any, ...] = ()
        self._long_prefix = b""
        self._long_length = self._long_filled = 0
        self._bytes_to_skip = 0  # bytes of a frame that is not taken
        self._unsent: dict[int, tuple[bytes, Body]] = {}  # frames by their numbers
        self._has_long_unsent = False  # whether any of them is
        self._reading = False
        self._flushing = False
        self.paused = False  # the transport has more than it can write

    # ---- for the two ends

    def on_frame(self, head: tuple[Any, ...], front: bytes, body: Body) -> None:
        """A frame has come. Raises FrameError if it cannot be one."""
        raise NotImplementedError

    def accept_frame(self, head: tuple[Any, ...], size: int) -> bool:
        """Whether a long frame is to be taken, whose body begins; if not, what comes of it is dropped."""
        return True

    def on_frames_read(self) -> None:
        """All that came in one go has been cut into frames."""

    def on_close(self) -> None:
        """There will be no more frames."""

    def on_drain(self) -> None:
        """The transport has written most of what it was given."""

    def send(self, number: int, head: bytes, content: Body = b"") -> None:
        """Send a frame, with all others of this turn of the event loop. No other of its number waits here."""
        self._unsent[number] = (head, content)
        if len(content) > _SEPARATE_WRITE_BYTES:
            self._has_long_unsent = True
        if not (self._reading or self._flushing or self.paused):
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def withdraw(self, number: int) -> bool:
        """Do not send a frame after all; returns whether it was not too late for that."""
        return self._unsent.pop(number, None) is not None

    def flush(self) -> None:
        """Send what is still unsent of this turn, as far as the transport takes it."""
        self._flushing = False
        transport = self.transport
        if transport is None or self.paused or not self._unsent:
            return
        if self._has_long_unsent:
            self._send_one_by_one(transport)
        else:
            unsent, self._unsent = self._unsent, {}
            transport.write(b"".join(chain.from_iterable(unsent.values())))

    def _send_one_by_one(self, transport: asyncio.Transport) -> None:
        """Send no more than one frame that the transport cannot write at once."""
        unsent = self._unsent
        while unsent and not self.paused:
            transport.writelines(unsent.pop(next(iter(unsent))))
        self._has_long_unsent = bool(unsent)

    def close_when_sent(self) -> None:
        """Close once everything is sent, however long that takes."""
        transport = self.transport
        if transport is not None:
            unsent, self._unsent = self._unsent, {}
            transport.writelines(list(chain.from_iterable(unsent.values())))
            transport.close()

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
        self.on_drain()
        self.on_close()

    def pause_writing(self) -> None:
        """Hold back frames."""
        self.paused = True
        self._has_long_unsent = True  # what waits may be long together

    def resume_writing(self) -> None:
        """Go on."""
        self.paused = False
        self.on_drain()
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what comes next."""
        own = self._long_body
        if own is None:
            return self._view[self._filled :]  # of what is dropped nothing is kept there
        if self._long_filled == len(own):
            own.extend(bytes(min(self._long_length - len(own), len(own))))
        return memoryview(own)[self._long_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Cut what came into frames; whoever sends what is none is not listened to any more."""
        self._reading = True
        try:
            if self._long_body is not None:
                self._continue_long_frame(self._long_body, nbytes)
            elif self._bytes_to_skip:
                self._skip_bytes(nbytes)
            else:
                self._split_frames(self._filled + nbytes)
            self.on_frames_read()
        except FrameError:
            self.abort()
        finally:
            self._reading = False
        if self._unsent and not self._flushing:
            self.flush()

    def _split_frames(self, end: int) -> None:
        view, size, start = self._view, self._size, 0
        while end - start >= size:
            head = self._unpack(view, start)
            length, in_front = head[-1], head[-2]
            content = start + size
            if in_front and (in_front > length or in_front > MAX_PREFIX_BYTES):
                raise FrameError
            if content + length > end:
                if length - in_front > self._max_body_bytes:
                    raise FrameError
                body = content + in_front
                if size + length > _SHARED_BUFFER_BYTES and body <= end:
                    if self.accept_frame(head, length - in_front):
                        self._begin_long_frame(head, bytes(view[content:body]), view[body:end])
                    else:
                        self._filled, self._bytes_to_skip = 0, content + length - end
                    return
                break
            start = content + length
            if in_front:
                body = content + in_front
                self.on_frame(head, bytes(view[content:body]), bytes(view[body:start]))
            else:
                self.on_frame(head, b"", bytes(view[content:start]))
        # What is left is the beginning of a frame that fits, or has not begun with its body.
        if start:
            self._shared[: end - start] = self._shared[start:end]
        self._filled = end - start

    def _begin_long_frame(self, head: tuple[Any, ...], front: bytes, begin: memoryview) -> None:
        self._long_head, self._long_prefix = head, front
        self._long_length = head[-1] - head[-2]
        self._long_body = bytearray(min(self._long_length, _FIRST_ALLOCATION_BYTES))
        self._long_body[: len(begin)] = begin
        self._long_filled = len(begin)
        self._filled = 0

    def _skip_bytes(self, count: int) -> None:
        """More of a frame that is not taken has come, and maybe what follows it."""
        dropped = min(count, self._bytes_to_skip)
        self._bytes_to_skip -= dropped
        if count > dropped:
            self._shared[: count - dropped] = self._shared[dropped:count]
            self._split_frames(count - dropped)

    def _continue_long_frame(self, own: bytearray, count: int) -> None:
        self._long_filled += count
        if self._long_filled == self._long_length:
            self._long_body = None
            self.on_frame(self._long_head, self._long_prefix, own)


def encode_header_lines(headers: Headers) -> bytes:
    """Headers as they stand in the head of an HTTP answer."""
    return b"".join([b"%b: %b\r\n" % header for header in headers]) if headers else b""


def parse_header_lines(lines: bytes) -> Headers:
    """Header lines as names and values. Raises FrameError if they are none."""
    found = []
    for line in lines.split(b"\r\n")[:-1]:
        name, separator, value = line.partition(b": ")
        if not separator:
            raise FrameError
        found.append((name, value))
    return tuple(found)
