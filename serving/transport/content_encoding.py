"""Request bodies in gzip or deflate, decompressed in steps up to a limit.

A step takes about a millisecond at most, so that an event loop can do other work in between. Decompression
stops as soon as the limit is exceeded.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Iterable

from serving.errors import InvalidArgument, UnsupportedEncoding
from serving.http_headers import body_too_large

GZIP, DEFLATE = "gzip", "deflate"
ENCODINGS = (GZIP, DEFLATE)
_IDENTITY = frozenset({"", "identity"})
_ALIASES = {"x-gzip": GZIP}

# Bytes that a step may read or produce, and that zlib gets at once.
_STEP, _PIECE = 1 << 18, 1 << 16
# A gzip body may have several members; clients do not send many.
_MAX_MEMBERS = 256
# zlib's codes of the formats (wbits).
_GZIP_BITS, _ZLIB_BITS, _RAW_BITS = 31, 15, -15


def parse_content_encoding(values: Iterable[bytes]) -> str:
    """The value of `Content-Encoding` headers without aliases; "" for an uncompressed body."""
    said = [part.strip().lower() for value in values for part in value.decode("latin-1").split(",")]
    applied = [_ALIASES.get(one, one) for one in said if one not in _IDENTITY]
    return ", ".join(applied)


def check_encoding(encoding: str) -> None:
    """Raise UnsupportedEncoding for an unknown encoding."""
    if encoding not in ENCODINGS:
        raise UnsupportedEncoding(
            f"The body has the encoding {encoding[:100]!r}, which is not known here. Send it with "
            f"Content-Encoding {' or '.join(ENCODINGS)}, or without.",
            known=ENCODINGS,
        )


class BodyDecompressor:
    """Decompresses one body: call `step` until it returns true, then read `body`; `size` is its length.

    Raises UnsupportedEncoding for an encoding that is not in `ENCODINGS`.
    """

    def __init__(self, encoding: str, packed: bytes, limit: int) -> None:
        check_encoding(encoding)
        self._encoding = encoding
        self._packed = memoryview(packed)
        self._limit = limit
        self._position = 0
        self._members = 1
        self._bits = _window_bits(encoding, packed)
        self._inflater = zlib.decompressobj(self._bits)
        self._parts: list[bytes] = []
        self.size = 0

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    def step(self) -> bool:
        """Decompress a part; returns whether it was the last.

        Raises BodyTooLarge beyond the limit, InvalidArgument for malformed data.
        """
        most_size, most_position = self.size + _STEP, self._position + _STEP
        while self.size < most_size and self._position < most_position:
            if self._inflater.eof:
                if self._position == len(self._packed):
                    return True
                self._begin_member()
            piece = self._packed[self._position : self._position + _PIECE]
            inflater = self._inflater
            try:
                part = inflater.decompress(piece, _STEP)
            except zlib.error as error:
                raise self._malformed_error(str(error)) from None
            self._position += len(piece) - len(inflater.unconsumed_tail) - len(inflater.unused_data)
            if not part and not inflater.eof and not piece:
                raise self._malformed_error("it is cut off")
            self._parts.append(part)
            self.size += len(part)
            if self.size > self._limit:
                raise body_too_large(self._limit)
        return False

    def _begin_member(self) -> None:
        self._members += 1
        if self._encoding != GZIP or self._members > _MAX_MEMBERS:
            raise self._malformed_error("something follows its end")
        self._inflater = zlib.decompressobj(self._bits)

    def _malformed_error(self, reason: str) -> InvalidArgument:
        return InvalidArgument(f"The body is not what its Content-Encoding says, {self._encoding}: {reason}.")


async def decompress_body(decompressor: BodyDecompressor, hold: Callable[[int], None]) -> bytes:
    """The whole body; yields to the event loop after each step. `hold` is called with the growth in bytes.

    Raises what `BodyDecompressor.step` and `hold` raise.
    """
    is_whole = False
    while not is_whole:
        before = decompressor.size
        is_whole = decompressor.step()
        hold(decompressor.size - before)
        if not is_whole:
            await asyncio.sleep(0)
    return decompressor.body


class DecompressionQueue:
    """Bodies that need several steps, decompressed one after another so that only one of them grows.

    `add` takes a function that does one step and returns whether it was the last; it must not raise.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], bool]] = deque()

    def add(self, step: Callable[[], bool]) -> None:
        """Run the steps, one per turn of the event loop, after those added before."""
        self._waiting.append(step)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._run_step)

    def _run_step(self) -> None:
        if self._waiting[0]():
            self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._run_step)


def _window_bits(encoding: str, packed: bytes) -> int:
    """zlib's code of the format; bodies called deflate may lack the zlib header."""
    if encoding == GZIP:
        return _GZIP_BITS
    has_header = len(packed) > 1 and packed[0] & 0x0F == 8 and int.from_bytes(packed[:2], "big") % 31 == 0
    return _ZLIB_BITS if has_header else _RAW_BITS
