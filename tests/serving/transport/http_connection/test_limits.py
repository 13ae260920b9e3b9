"""More connections, bytes or headers than the settings allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.serving.transport.http_connection.server import GOOD, SETTINGS, World, post, run, settle


def test_connections_over_the_limit_are_told_so() -> None:
    """503 at once; idle ones make room within a second."""

    async def main(world: World) -> None:
        idle = [await world.connect() for _ in range(8)]
        answer = await (await world.connect()).answer()
        assert answer.status == 503
        assert answer.headers[b"retry-after"] == b"1"
        assert answer.message == "Too many connections are open (setting max_connections = 8)."
        await world.passes(1)
        assert await idle[0].ended()
        assert not await idle[1].ended()
        assert (await (await world.sent(GOOD)).answer()).status == 200

    run(main)


def test_the_slowest_of_too_many_bodies_is_refused() -> None:
    """So that the others find room, in whatever order they come."""

    async def main(world: World) -> None:
        half = post(b"/a", b"x" * 400_000)[:-150_000]
        first = await world.sent(half)
        await world.passes(2)
        second = await world.sent(half)
        await settle()
        third = await world.sent(half)
        answer = await first.answer()
        assert answer.status == 503
        assert "setting arriving_bytes = 700000" in answer.message
        for client in (second, third):
            client.send(b"x" * 150_000)
            assert (await client.answer()).body == b"/a 400000"
        assert world.gate.arriving_bytes == 0

    run(main)


def test_whole_requests_that_wait_behind_others_count_too() -> None:
    """The connection on which they have waited longest answers what it has begun, and ends."""

    async def main(world: World) -> None:
        body = b"x" * 60_000
        first = await world.sent(post(b"/wait", b"") + post(b"/a", body) * 5)
        await world.passes(2)
        others = [await world.sent(post(b"/wait", b"") + post(b"/a", body) * 4) for _ in range(2)]
        assert world.gate.rejections["arriving_bytes"] == 1
        world.gates["/wait"].set()
        assert [answer.body for answer in await first.answers(99)] == [b"/wait 0"]
        for other in others:
            assert [answer.body for answer in await other.answers(5)] == [b"/wait 0", *[b"/a 60000"] * 4]

    run(main)


def test_heads_that_wait_behind_others_count_too() -> None:
    """They may be as long as bodies."""

    async def main(world: World) -> None:
        long = b"GET /a HTTP/1.1\r\nhost: t\r\nx-long: " + b"x" * 1900 + b"\r\n\r\n"
        clients = [await world.sent(post(b"/wait", b"") + long * 15) for _ in range(4)]
        assert world.gate.rejections["arriving_bytes"] == 1
        world.gates["/wait"].set()
        assert len(await clients[0].answers(99)) == 1
        for client in clients[1:]:
            assert len(await client.answers(16)) == 16

    run(main, replace(SETTINGS, arriving_bytes=100_000))


def test_bodies_that_the_application_works_on_count_too(kind: None) -> None:
    """Until they are answered; what a handler of exchanges works on, it counts itself."""

    async def main(world: World) -> None:
        works = [await world.sent(post(b"/wait", b"x" * 300_000)) for _ in range(2)]
        late = await world.sent(post(b"/a", b"x" * 300_000))
        answer = await late.answer()
        if world.by_handler:
            assert answer.status == 200
        else:
            assert answer.status == 503
            assert "setting arriving_bytes = 700000" in answer.message
        world.gates["/wait"].set()
        for client in works:
            assert (await client.answer()).body == b"/wait 300000"
        assert world.gate.arriving_bytes == 0
        assert (await (await world.sent(post(b"/a", b"x" * 300_000))).answer()).status == 200

    run(main)


@pytest.mark.parametrize("told", [True, False], ids=["told beforehand", "chunked"])
def test_the_rest_of_a_refused_body_is_not_kept(told: bool) -> None:
    """413 at once; what still comes is dropped, for a while."""

    async def main(world: World) -> None:
        client = await world.connect()
        if told:
            client.send(b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: 90000000\r\n\r\nabc")
        else:
            client.send(
                b"POST /a HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(1_000_001)
            )
        assert (await client.answer()).status == 413
        for _ in range(28):
            client.send(b"x" * 3000 if told else chunk(3000))
            await world.passes(1)
        assert world.gate.arriving_bytes == 0
        assert not await client.ended()
        await world.passes(4)
        assert await client.ended()

    run(main)


def chunk(size: int) -> bytes:
    return b"%x\r\n%b\r\n" % (size, b"x" * size)


def test_a_connection_survives_an_early_answer() -> None:
    """The body that comes after it is dropped, and the next request is answered."""

    async def main(world: World) -> None:
        client = await world.sent(post(b"/early", b"x" * 300_000)[:-200_000])
        assert (await client.answer()).status == 404
        client.send(b"x" * 200_000 + GOOD)
        assert (await client.answer()).body == b"/a 0"

    run(main)


@pytest.mark.parametrize(
    "data",
    [
        b"GET /a HTTP/1.1\r\nhost: t\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(300)) + b"\r\n",
        b"GET /a HTTP/1.1\r\nhost: t\r\nx: " + b"y" * 300_000,
        b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: " + b"y" * 600_000,
    ],
    ids=["many headers", "a long header", "a long path", "a long trailer"],
)
def test_a_head_over_the_limit_is_answered_with_431(data: bytes) -> None:
    """It names the setting."""

    async def main(world: World) -> None:
        answer = await (await world.sent(data)).answer()
        assert answer.status == 431
        assert answer.message == "The head of the request is over 2048 bytes (setting max_header_bytes)."

    run(main)
