"""Clients that send or read slowly, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.serving.transport.http_connection.server import GOOD, SETTINGS, Client, World, post, run, settle


@pytest.mark.parametrize(
    "piece", [b"G", b"GET /a HTTP/1.1\r\nhost: t\r\nx-a: b\r\n"], ids=["a byte", "a line"]
)
def test_a_head_that_does_not_end_is_answered_with_408(piece: bytes) -> None:
    """However often there is a bit more of it; others are answered meanwhile."""

    async def main(world: World) -> None:
        client = await world.sent(piece)
        for _ in range(9):
            await world.passes(1)
            client.send(b"x")
        other = await world.sent(GOOD)
        assert (await other.answer()).status == 200
        assert not await client.ended()
        await world.passes(3)
        answer = await client.answer()
        assert (answer.status, answer.headers[b"connection"]) == (408, b"close")
        assert (
            answer.message == "The head of the request did not arrive within 10 s (setting header_timeout)."
        )
        assert await client.ended()

    # One letter is no method, so it is more of one.
    run(main) if piece != b"G" else run(_head_in_letters)


async def _head_in_letters(world: World) -> None:
    client = await world.connect()
    for letter in b"GET /abc":
        client.send(bytes([letter]))
        await world.passes(1)
    await world.passes(4)
    assert (await client.answer()).status == 408


def test_a_second_request_has_its_own_time() -> None:
    """It begins when the first is answered, however long that took."""

    async def main(world: World) -> None:
        client = await world.sent(post(b"/wait", b"") + b"GET /b HT")
        await world.passes(40)
        world.gates["/wait"].set()
        assert (await client.answer()).status == 200
        await world.passes(8)
        client.send(b"TP/1.1\r\nhost: t\r\n\r\n")
        assert (await client.answer()).body == b"/b 0"

    run(main)


def test_a_body_that_stops_or_drips_is_answered_with_408() -> None:
    """One that goes on well may take its time."""

    async def main(world: World) -> None:
        stops, drips, steady = [await world.sent(post(b"/a", b"x" * 900)[:-900]) for _ in range(3)]
        for _ in range(11):
            drips.send(b"x")
            steady.send(b"x" * 50)
            await world.passes(2)
        for client in (stops, drips):
            answer = await client.answer()
            assert answer.status == 408
            assert "20 s (setting body_timeout)" in answer.message
            assert "10 bytes/s (setting min_bytes_per_second)" in answer.message
        assert world.gone == 2
        steady.send(b"x" * 350)
        assert (await steady.answer()).body == b"/a 900"

    run(main)


def test_who_does_not_read_the_answer_is_left(wire: None) -> None:
    """What was not read of it is let go of; who reads slowly but steadily gets all."""

    async def main(world: World) -> None:
        lazy = await world.sent(b"GET /large HTTP/1.1\r\nhost: t\r\n\r\n")
        slow = await reading(world)
        for _ in range(62):  # what the kernel's buffers take at first is read too
            await slow.reader.read(1 << 18)
            await world.passes(1)
        assert world.gate.open_connections == 1
        assert world.gate.rejections == {"answer_timeout": 1}
        lazy.writer.close()
        size = 0
        while size < 20_000_000:
            size += len(await slow.reader.read(1 << 20))

    run(main)


async def reading(world: World) -> Client:
    """A client that has asked for a long answer and takes it from the socket only when it is told to."""
    client = await world.sent(b"GET /large HTTP/1.1\r\nhost: t\r\n\r\n")
    client.reader._limit = 1 << 16  # type: ignore[attr-defined]  # so that the kernel's buffers fill
    return client


def test_a_long_answer_is_to_be_read_in_ten_times_of_answer_timeout(wire: None) -> None:
    """Whatever the slowest pace of others is: each of them takes memory of its size."""

    async def main(world: World) -> None:
        slow, steady = await reading(world), await reading(world)
        for _ in range(62):  # what the kernel's buffers take at first is read too
            await slow.reader.read(1 << 14)
            await steady.reader.read(1 << 18)
            await steady.reader.read(1 << 18)
            await world.passes(1)
        assert world.gate.open_connections == 1
        assert world.gate.rejections == {"answer_timeout": 1}
        slow.writer.close()
        assert await steady.reader.read(1 << 18)

    run(main)


def test_the_slowest_reader_makes_room_for_answers(wire: None) -> None:
    """Neither who reads nor who has just been answered; what all have not read is within the limit then."""

    async def main(world: World) -> None:
        steady = await reading(world)
        await world.passes(2)
        lazy = await reading(world)
        for _ in range(40):
            await steady.reader.readexactly(1 << 18)
            await world.passes(0.1)
        assert world.gate.rejections == {}
        assert 45_000_000 < world.gate.unsent_bytes < 75_000_000
        fresh = await reading(world)
        assert world.gate.rejections == {"unsent_bytes": 1}
        assert world.gate.unsent_bytes < 75_000_000
        lazy.writer.close()
        for client in (steady, fresh):
            size = 0
            while size < 20_000_000:
                size += len(await client.reader.read(1 << 20))
        assert world.gate.open_connections == 2

    run(main, replace(SETTINGS, unsent_bytes=75_000_000))


@pytest.mark.parametrize("ending", [b"", b"connection: close\r\n"], ids=["keep alive", "close"])
def test_long_answers_arrive_whole(wire: None, ending: bytes) -> None:
    """And the next one behind them, or the end."""

    async def main(world: World) -> None:
        asking = b"GET /long HTTP/1.1\r\nhost: t\r\n%b\r\n" % ending
        client = await world.sent(asking + (b"" if ending else GOOD))
        answers = await client.answers(1 if ending else 2)
        assert answers[0].body == b"/long 0" + b" " * 12_000_000
        assert [answer.body for answer in answers[1:]] == ([] if ending else [b"/a 0"])
        if ending:
            assert await client.ended()

    run(main)


def test_idle_connections_are_closed() -> None:
    """After the keep-alive time, whether or not there was a request."""

    async def main(world: World) -> None:
        fresh, used = await world.connect(), await world.sent(GOOD)
        assert (await used.answer()).status == 200
        await world.passes(58)
        assert world.gate.open_connections == 2
        await world.passes(3)
        assert await fresh.ended() and await used.ended()

    run(main)


def test_a_request_at_work_has_all_the_time() -> None:
    """How long it may take is the application's to say; a client that leaves is noticed."""

    async def main(world: World) -> None:
        client = await world.sent(post(b"/wait", b"x"))
        leaver = await world.sent(post(b"/wait", b"x") + post(b"/next", b"x"))
        await world.passes(100)
        leaver.writer.close()
        await settle()
        assert world.gone == 1
        world.gates["/wait"].set()
        assert (await client.answer()).body == b"/wait 1"
        assert all(scope["path"] != "/next" for scope in world.scopes)

    run(main)


def test_time_in_which_the_server_was_busy_does_not_count() -> None:
    """Nothing was read for half a minute: that is not the clients' fault."""

    async def main(world: World) -> None:
        client = await world.sent(b"GET /a HT")
        world.now += 30
        await world.passes(2)
        client.send(b"TP/1.1\r\nhost: t\r\n\r\n")
        assert (await client.answer()).status == 200

    run(main)
