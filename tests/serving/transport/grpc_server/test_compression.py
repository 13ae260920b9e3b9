from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable

import pytest

from serving.errors import BodyTooLarge, InvalidArgument
from serving.transport.grpc_server.compression import Decompressor

MOST = 1 << 20


def run(main: Callable[[Decompressor], Awaitable[None]]) -> None:
    async def made() -> None:
        decompressor = Decompressor(MOST)
        try:
            await main(decompressor)
        finally:
            decompressor.close()

    asyncio.run(made())


@pytest.mark.parametrize("size", [0, 100, 1 << 16, (1 << 16) + 1, MOST - 1, MOST])
def test_a_message_is_what_it_was(size: int) -> None:
    """With compression and without, short and as long as may be."""
    message = b"\x0a" * size

    async def main(decompressor: Decompressor) -> None:
        assert await decompressor.decompress(message) == message
        assert await decompressor.decompress(gzip.compress(message)) == message

    run(main)


@pytest.mark.parametrize("size", [MOST + 1, 100 * MOST])
def test_no_more_than_the_limit_is_decompressed(size: int) -> None:
    """However much more it would be."""

    async def main(decompressor: Decompressor) -> None:
        with pytest.raises(BodyTooLarge, match="setting max_body_bytes"):
            await decompressor.decompress(gzip.compress(b"\x0a" * size))

    run(main)


@pytest.mark.parametrize("size", [100, MOST])
def test_what_is_no_gzip_is_refused(size: int) -> None:
    """Cut off, damaged, or with something behind it."""
    whole = gzip.compress(bytes(index * index % 251 for index in range(size)))

    async def main(decompressor: Decompressor) -> None:
        for message in (whole[:-1], whole[:2], whole + b"x", whole[:-8] + bytes(8), b"\x1f\x8bxxxxxxxxxxxx"):
            with pytest.raises(InvalidArgument, match="decompressed"):
                await decompressor.decompress(message)

    run(main)


def test_messages_are_decompressed_in_turn() -> None:
    """A thousand of them take the memory of one, and none is forgotten."""

    async def main(decompressor: Decompressor) -> None:
        message = gzip.compress(b"\x0a" * MOST)
        under_way = most = 0

        async def one() -> None:
            nonlocal under_way, most
            body = await decompressor.decompress(message)
            under_way += 1
            most = max(most, under_way)
            assert len(body) == MOST
            del body
            under_way -= 1

        leaving = asyncio.ensure_future(decompressor.decompress(message))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(*(one() for _ in range(50)))
        assert most == 1

    run(main)
