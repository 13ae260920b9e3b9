"""Decompresses messages: gRPC itself would decompress any number of them at the same time."""

from __future__ import annotations

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor

from serving.errors import InvalidArgument
from serving.http_headers import body_too_large

# gRPC's options: messages are handed over as they were sent, and only identity and gzip (bits 0 and 2) are
# taken. The first byte of deflate may also begin a protobuf message.
COMPRESSION_OPTIONS = (
    ("grpc.per_message_decompression", 0),
    ("grpc.compression_enabled_algorithms_bitset", 0b101),
)
# How every gzip stream begins, and no protobuf message: 0x1f would be a field of a type that does not exist.
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WBITS = 31  # zlib's `wbits`
# Bytes that are decompressed on the event loop; a thread decompresses the rest.
_INLINE_BYTES = 1 << 16


class Decompressor:
    """Decompresses messages one at a time, to at most `most_bytes` each."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grpc-decompression")
        self._lock = asyncio.Lock()

    async def decompress(self, message: bytes) -> bytes:
        """Return a message without its compression.

        Nothing is awaited after that, so a caller can count its bytes before the next one is decompressed.
        Raises BodyTooLarge, InvalidArgument.
        """
        if not message.startswith(_GZIP_MAGIC):
            return message
        stream = zlib.decompressobj(_GZIP_WBITS)
        body = _decompress_chunk(stream, message, min(_INLINE_BYTES, self._most_bytes + 1))
        if not stream.eof and len(body) <= self._most_bytes:
            async with self._lock:
                rest = self._most_bytes + 1 - len(body)
                loop = asyncio.get_running_loop()
                body += await loop.run_in_executor(
                    self._thread, _decompress_chunk, stream, stream.unconsumed_tail, rest
                )
        if len(body) > self._most_bytes:
            raise body_too_large(self._most_bytes)
        if not stream.eof or stream.unused_data:
            raise InvalidArgument("The message is not whole, or more than one, once it is decompressed.")
        return body

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _decompress_chunk(stream: zlib._Decompress, data: bytes, most_bytes: int) -> bytes:
    try:
        return stream.decompress(data, most_bytes)
    except zlib.error as error:
        raise InvalidArgument(f"The message cannot be decompressed as gzip: {error}.") from error
