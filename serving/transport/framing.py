"""Frames between gateway and node: many concurrent requests over one unix-socket connection.

A frame is a header of fixed size, an optional prefix of a few bytes, and the body. The gateway sends
requests, cancels those that nobody waits for, and pings the node (the response is empty). The node sends
responses as they become ready. Frames sent in one turn of the event loop go out in one write; while the peer
does not read, frames wait here, where they can be withdrawn.
"""

from __future__ import annotations

import asyncio
import struct
from itertools import chain
from typing import Any, cast

from serving.http_headers import Headers

# From the gateway: kind, flags, number of the request, its slot of the request marks, the seconds it has, the
# length of the prefix (how the model is called, see `serving.protocols`), and that of prefix and body.
REQUEST_HEADER = struct.Struct("<BBIIdIQ")
PREDICT_FRAME, CANCEL_FRAME, PING_FRAME = 1, 2, 3
# Flags of a request.
NEVER_BATCH, WANTS_TIMING = 1, 2

# From the node: number of the request, status, the length of the prefix (header lines as in an HTTP
# response), and that of prefix and body.
RESPONSE_HEADER = struct.Struct("<IHIQ")

# Arriving frames share a buffer of this size. The body of a longer frame gets memory of its own, at first at
# most _FIRST_ALLOCATION_BYTES, and more as it arrives: a peer may announce more than it sends.
_SHARED_BUFFER_BYTES = 64 << 10
MAX_PREFIX_BYTES = _SHARED_BUFFER_BYTES // 2
_FIRST_ALLOCATION_BYTES = 16 << 20
# Longer bodies are written by themselves, not copied next to others.
_SEPARATE_WRITE_BYTES = 64 << 10

Body = bytes | bytearray


class FrameError(Exception):
    """The bytes received are no valid frame."""


class FrameProtocol(asyncio.BufferedProtocol):
    """One end of the connection: splits input into frames and writes frames once per turn.

    The last two fields of `head` are the length of the prefix, and of prefix and body together. A body may
    have `max_body_bytes`.
    """

    def __init__(self, head: struct.Struct, max_body_bytes: int) -> None:
        self.transport: asyncio.Transport | None = None
        self._unpack, self._size = head.unpack_from, head.size
        self._max_body_bytes = max_body_bytes
        self._shared = bytearray(_SHARED_BUFFER_BYTES)
        self._view = memoryview(self._shared)
        self._filled = 0  # bytes in the shared buffer that are not split yet
        self._long_body: bytearray | None = None  # the body of a long frame
        self._long_head: tuple[Any, ...] = ()
        self._long_prefix = b""
        self._long_length = self._long_filled = 0
        self._bytes_to_skip = 0  # bytes left of a rejected frame
        self._unsent: dict[int, tuple[bytes, Body]] = {}  # by the frame's number
        self._has_long_unsent = False
        self._reading = False
        self._flushing = False
        self.paused = False  # the transport accepts no writes

    # ---- callbacks for subclasses

    def on_frame(self, head: tuple[Any, ...], prefix: bytes, body: Body) -> None:
        """Handle a frame. Raises FrameError for an invalid one."""
        raise NotImplementedError

    def should_receive_frame(self, head: tuple[Any, ...], size: int) -> bool:
        """Whether to receive a long frame whose body begins; otherwise its bytes are skipped."""
        return True

    def on_frames_read(self) -> None:
        """All frames of one read have been handled."""

    def on_close(self) -> None:
        """The connection is closed."""

    def on_writable(self) -> None:
        """The transport accepts writes again."""

    def send(self, number: int, head: bytes, content: Body = b"") -> None:
        """Send a frame at the end of this turn. No unsent frame may have the same number."""
        self._unsent[number] = (head, content)
        if len(content) > _SEPARATE_WRITE_BYTES:
            self._has_long_unsent = True
        if not (self._reading or self._flushing or self.paused):
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def withdraw(self, number: int) -> bool:
        """Remove an unsent frame; returns whether it was still there."""
        return self._unsent.pop(number, None) is not None

    def flush(self) -> None:
        """Write unsent frames as far as the transport accepts them."""
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
        """Write frames until the transport pauses."""
        unsent = self._unsent
        while unsent and not self.paused:
            transport.writelines(unsent.pop(next(iter(unsent))))
        self._has_long_unsent = bool(unsent)

    def close_when_sent(self) -> None:
        """Close once everything is written, without a time limit."""
        transport = self.transport
        if transport is not None:
            unsent, self._unsent = self._unsent, {}
            transport.writelines(list(chain.from_iterable(unsent.values())))
            transport.close()

    def abort(self) -> None:
        """Close at once; unsent frames are lost."""
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.abort()

    # ---- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._unsent.clear()
        self.on_writable()
        self.on_close()

    def pause_writing(self) -> None:
        self.paused = True
        self._has_long_unsent = True  # the unsent frames may be long together

    def resume_writing(self) -> None:
        self.paused = False
        self.on_writable()
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        long_body = self._long_body
        if long_body is None:
            return self._view[self._filled :]  # skipped bytes are overwritten
        if self._long_filled == len(long_body):
            long_body.extend(bytes(min(self._long_length - len(long_body), len(long_body))))
        return memoryview(long_body)[self._long_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Split the input into frames; an invalid one closes the connection."""
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
            length, prefix_length = head[-1], head[-2]
            content = start + size
            if prefix_length and (prefix_length > length or prefix_length > MAX_PREFIX_BYTES):
                raise FrameError
            if content + length > end:
                if length - prefix_length > self._max_body_bytes:
                    raise FrameError
                body = content + prefix_length
                if size + length > _SHARED_BUFFER_BYTES and body <= end:
                    if self.should_receive_frame(head, length - prefix_length):
                        self._begin_long_frame(head, bytes(view[content:body]), view[body:end])
                    else:
                        self._filled, self._bytes_to_skip = 0, content + length - end
                    return
                break
            start = content + length
            if prefix_length:
                body = content + prefix_length
                self.on_frame(head, bytes(view[content:body]), bytes(view[body:start]))
            else:
                self.on_frame(head, b"", bytes(view[content:start]))
        # The rest is the start of a frame that fits, or of one whose body has not begun.
        if start:
            self._shared[: end - start] = self._shared[start:end]
        self._filled = end - start

    def _begin_long_frame(self, head: tuple[Any, ...], prefix: bytes, begin: memoryview) -> None:
        self._long_head, self._long_prefix = head, prefix
        self._long_length = head[-1] - head[-2]
        self._long_body = bytearray(min(self._long_length, _FIRST_ALLOCATION_BYTES))
        self._long_body[: len(begin)] = begin
        self._long_filled = len(begin)
        self._filled = 0

    def _skip_bytes(self, count: int) -> None:
        """Skip the rest of a rejected frame; what follows it is the next frame."""
        dropped = min(count, self._bytes_to_skip)
        self._bytes_to_skip -= dropped
        if count > dropped:
            self._shared[: count - dropped] = self._shared[dropped:count]
            self._split_frames(count - dropped)

    def _continue_long_frame(self, long_body: bytearray, count: int) -> None:
        self._long_filled += count
        if self._long_filled == self._long_length:
            self._long_body = None
            self.on_frame(self._long_head, self._long_prefix, long_body)


def encode_header_lines(headers: Headers) -> bytes:
    """Headers as HTTP/1.1 header lines."""
    return b"".join([b"%b: %b\r\n" % header for header in headers]) if headers else b""


def parse_header_lines(lines: bytes) -> Headers:
    """Names and values of header lines. Raises FrameError."""
    found = []
    for line in lines.split(b"\r\n")[:-1]:
        name, separator, value = line.partition(b": ")
        if not separator:
            raise FrameError
        found.append((name, value))
    return tuple(found)
