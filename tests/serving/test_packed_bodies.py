"""Packed bodies of predictions over a real socket: answered as if they had come as they are."""

from __future__ import annotations

import asyncio
import gzip
import os
import zlib
from collections.abc import Callable

import pytest

from serving.transport.http_connection import HttpConnection
from tests.serving.transport.http_connection.server import World, post, run, settle

BODY = b'{"instances": [[1, 2], [3, 4]]}'
LONG = os.urandom(450_000).hex().encode()  # half as long when packed, and unpacked in several steps
GZIP, DEFLATE = b"content-encoding: gzip", b"content-encoding: deflate"


@pytest.fixture(autouse=True)
def by_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """As predictions are answered."""
    monkeypatch.setattr(World, "by_handler", True, raising=False)


def chunked(path: bytes, body: bytes, *headers: bytes) -> bytes:
    """As Java sends it: no length is told."""
    lines = b"\r\n".join([b"POST %b HTTP/1.1" % path, b"host: t", b"transfer-encoding: chunked", *headers])
    return b"%b\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (lines, len(body), body)


@pytest.mark.parametrize("make", [post, chunked])
@pytest.mark.parametrize("body", [BODY, LONG])
def test_a_packed_body_arrives_as_it_was(make: Callable[..., bytes], body: bytes) -> None:
    """Once, again with the same head, and behind another request."""

    async def main(world: World) -> None:
        packed = make(b"/a", gzip.compress(body), GZIP)
        client = await world.sent(packed)
        assert (await client.answer()).body == b"/a %d" % len(body)
        client.send(packed + make(b"/b", zlib.compress(body), DEFLATE) + make(b"/c", BODY))
        answers = await client.answers(3)
        assert [answer.body for answer in answers] == [
            b"/a %d" % len(body),
            b"/b %d" % len(body),
            b"/c %d" % len(BODY),
        ]

    run(main)


@pytest.mark.parametrize(
    ("body", "headers", "status", "says"),
    [
        (gzip.compress(b"\0" * 1_000_001, mtime=0), [GZIP], 413, "exceeds the limit: 1000000 bytes"),
        (BODY, [GZIP], 400, "not what its Content-Encoding says, gzip"),
        (gzip.compress(LONG, mtime=0)[:-9], [GZIP], 400, "cut off"),
        (BODY, [b"content-encoding: br"], 415, "the encoding 'br', which is not known"),
        (gzip.compress(BODY, mtime=0), [GZIP, GZIP], 415, "'gzip, gzip'"),
    ],
)
def test_what_cannot_be_unpacked_is_refused(
    body: bytes, headers: list[bytes], status: int, says: str
) -> None:
    """And the connection goes on."""

    async def main(world: World) -> None:
        client = await world.sent(post(b"/a", body, *headers))
        answer = await client.answer()
        assert answer.status == status
        assert says in answer.message
        if status == 415:
            assert answer.headers[b"accept-encoding"] == b"gzip, deflate"
        client.send(post(b"/b", BODY))
        assert (await client.answer()).status == 200
        assert world.bodies == [len(BODY)]

    run(main)


def test_others_are_answered_while_a_body_is_unpacked() -> None:
    """Its bytes are counted as long as that takes, the unpacked ones too."""

    async def main(world: World) -> None:
        slow, quick = await world.connect(), await world.connect()
        most = 0
        slow.send(post(b"/slow", gzip.compress(b"\0" * 999_999), GZIP))
        quick.send(post(b"/quick", BODY))
        while len(world.bodies) < 2:
            await asyncio.sleep(0)
            most = max(most, world.gate.arriving_bytes)
        assert world.bodies == [len(BODY), 999_999]
        assert most > 700_000
        assert world.gate.arriving_bytes == 0

    run(main)


def test_a_client_that_leaves_is_not_unpacked_for() -> None:
    """What it had sent is let go at once."""

    async def main(world: World) -> None:
        client = await world.connect()
        client.send(post(b"/a", gzip.compress(b"\0" * 999_999), GZIP))
        while not world.gate.arriving_bytes:  # noqa: ASYNC110  nobody tells of it
            await asyncio.sleep(0)
        (connection,) = (one for members in world.gate._slices for one in members)
        assert isinstance(connection, HttpConnection)
        connection.transport.abort()
        await settle()
        assert (world.bodies, world.gone, world.gate.arriving_bytes) == ([], 1, 0)

    run(main)


def test_whoever_has_been_arriving_for_longest_makes_room() -> None:
    """A body that is being unpacked counts as one that arrives; it is not the one to go."""

    async def main(world: World) -> None:
        slow = await world.sent(post(b"/slow", b"x" * 300_000)[:-1])
        await world.passes(1)
        client = await world.sent(post(b"/a", gzip.compress(LONG), GZIP))
        assert (await client.answer()).body == b"/a %d" % len(LONG)
        assert (await slow.answer()).status == 503

    run(main)
