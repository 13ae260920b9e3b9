"""Packed bodies are unpacked step by step, and never past their limit."""

from __future__ import annotations

import asyncio
import gzip
import os
import tracemalloc
import zlib

import pytest

from serving.errors import BodyTooLarge, InvalidArgument, UnsupportedEncoding
from serving.transport.content_encoding import (
    BodyDecompressor,
    DecompressionQueue,
    check_encoding,
    decompress_body,
    parse_content_encoding,
)

TEXT = b'{"instances": [1, 2, 3]}' * 50_000
NOISE = os.urandom(700_000)
MOST = 1 << 24


def unpacked(encoding: str, packed: bytes, limit: int = MOST) -> bytes:
    """All of it, by as many steps as it takes."""
    unpacking = BodyDecompressor(encoding, packed, limit)
    while not unpacking.step():
        pass
    assert unpacking.size == len(unpacking.body)
    return unpacking.body


@pytest.mark.parametrize("body", [b"", b"{}", TEXT, NOISE, b"\0" * 3_000_000])
def test_what_was_packed_comes_out(body: bytes) -> None:
    """By gzip, and by both of what is called deflate."""
    raw = zlib.compressobj(wbits=-15)

    assert unpacked("gzip", gzip.compress(body)) == body
    assert unpacked("gzip", gzip.compress(body[:7]) + gzip.compress(body[7:])) == body
    assert unpacked("deflate", zlib.compress(body)) == body
    assert unpacked("deflate", raw.compress(body) + raw.flush()) == body


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_is_damaged_is_refused(encoding: str) -> None:
    """Cut off anywhere, changed anywhere, with something behind it, or not packed at all."""
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    packed = pack(TEXT[:1000])
    changed = [packed[:at] + bytes([packed[at] ^ 8]) + packed[at + 1 :] for at in range(12, len(packed))]
    damaged = [packed[:length] for length in range(1, len(packed))] + [packed + b"x", packed + packed[:-1]]
    damaged += [b"{}", TEXT]

    for body in damaged:
        with pytest.raises(InvalidArgument, match=f"says, {encoding}"):
            unpacked(encoding, body)
    for body in changed:
        try:
            assert unpacked(encoding, body) == TEXT[:1000]  # a bit that says nothing
        except InvalidArgument:
            continue


def test_a_bomb_is_given_up_at_the_limit() -> None:
    """It takes the memory of the limit and of a step, whatever it would become."""
    bomb = gzip.compress(b"\0" * (16 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            unpacked("gzip", bomb, 1 << 20)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < (2 << 20)


def test_many_empty_members_are_refused() -> None:
    """Each would cost as much as a long one."""
    with pytest.raises(InvalidArgument, match="something follows"):
        unpacked("gzip", gzip.compress(b"") * 100_000)


@pytest.mark.parametrize(
    ("headers", "encoding"),
    [
        ([], ""),
        ([b"identity"], ""),
        ([b" GZIP "], "gzip"),
        ([b"x-gzip"], "gzip"),
        ([b"deflate"], "deflate"),
        ([b"gzip, identity"], "gzip"),
        ([b"gzip", b"gzip"], "gzip, gzip"),
        ([b"br"], "br"),
    ],
)
def test_the_encoding_is_read(headers: list[bytes], encoding: str) -> None:
    """What is packed twice is as unknown as what is packed in another way."""
    assert parse_content_encoding(headers) == encoding
    if encoding not in ("", "gzip", "deflate"):
        with pytest.raises(UnsupportedEncoding, match="gzip or deflate"):
            check_encoding(encoding)


def test_others_have_their_turn() -> None:
    """After each step of a long body, whoever unpacks it."""
    turns = 0

    async def main() -> None:
        nonlocal turns
        unpacking = asyncio.create_task(
            decompress_body(BodyDecompressor("gzip", gzip.compress(TEXT), MOST), grown.append)
        )
        while not unpacking.done():
            turns += 1
            await asyncio.sleep(0)
        assert await unpacking == TEXT

    grown: list[int] = []
    asyncio.run(main())

    assert turns > len(TEXT) >> 18
    assert sum(grown) == len(TEXT)


def test_the_queue_does_one_after_the_other() -> None:
    """The first one is over before the second begins."""

    async def main() -> None:
        queue, left, order = DecompressionQueue(), {"a": 3, "b": 2}, ""
        over = asyncio.Event()

        def step(name: str) -> bool:
            nonlocal order
            order += name
            left[name] -= 1
            if not any(left.values()):
                over.set()
            return not left[name]

        queue.add(lambda: step("a"))
        queue.add(lambda: step("b"))
        await over.wait()
        assert order == "aaabb"

    asyncio.run(main())
