"""Slow, rude and broken clients of a server, with the time under the test's control."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from serving.transport.http_connection import MAX_PIPELINED
from tests.serving.transport.http_connection.server import GOOD, SETTINGS, World, post, run, settle

# What the parser takes for a request's verb, and what it knows besides: of proxies, of HTTP/2 and of RTSP.
ANSWERED = re.findall(
    r"\S+",
    "ACL BIND CHECKOUT COPY DELETE GET HEAD LINK LOCK M-SEARCH MERGE MKACTIVITY MKCALENDAR MKCOL MOVE NOTIFY "
    "OPTIONS PATCH POST PROPFIND PROPPATCH PURGE PUT QUERY REBIND REPORT SEARCH SOURCE SUBSCRIBE TRACE "
    "UNBIND UNLINK UNLOCK UNSUBSCRIBE",
)
REFUSED = re.findall(
    r"\S+",
    "CONNECT PRI ANNOUNCE DESCRIBE FLUSH GET_PARAMETER PAUSE PLAY RECORD REDIRECT SETUP "
    "SET_PARAMETER TEARDOWN",
)
UNKNOWN = ["UPGRADE", "BREW"]


# ---- ordinary clients


def test_requests_follow_each_other_on_a_connection() -> None:
    """With bodies whole, in pieces, chunked, and with a trailer, which nobody gets to see."""

    async def main(world: World) -> None:
        client = await world.sent(post(b"/a", b"x" * 10))
        assert (await client.answer()).body == b"/a 10"
        for piece in (post(b"/b", b"")[:-3], b"\n\r", b"\n"):
            client.send(piece)
            await settle()
        assert (await client.answer()).body == b"/b 0"
        chunked = b"POST /c HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"
        client.send(chunked)
        await settle()
        client.send(b"0\r\nauthorization: Bearer x\r\n\r\n" + GOOD)
        assert [answer.body for answer in await client.answers(2)] == [b"/c 3", b"/a 0"]
        assert b"authorization" not in dict(world.scopes[-2]["headers"])
        await world.passes(50)
        assert not await client.ended()

    run(main)


def test_a_body_may_come_in_any_pieces() -> None:
    """And what follows it may come in its last piece."""

    async def main(world: World) -> None:
        client = await world.sent(post(b"/a", b"x" * 200_000)[:-150_000])
        for size in (1, 100_000, 0, 49_998):
            client.send(b"y" * size)
            await settle()
        assert not world.bodies
        follow = post(b"/b", b"z" * 70_000)
        client.send(b"y" + follow[:30_000])
        assert (await client.answer()).body == b"/a 200000"
        client.send(follow[30_000:] + post(b"/c", b"12") + GOOD)
        assert [answer.body for answer in await client.answers(3)] == [b"/b 70000", b"/c 2", b"/a 0"]

        closing = post(b"/d", b"w" * 90_000).replace(b"host: t", b"host: t\r\nconnection: close")
        client.send(closing[:40_000])
        await settle()
        client.send(closing[40_000:] + GOOD)
        assert [answer.body for answer in (await client.answers(5))[3:]] == [b"/d 90000"]
        assert await client.ended()

    run(main)


def test_pipelined_requests_are_answered_in_their_order() -> None:
    """However long the first one takes; those beyond the limit are not read, and the connection ends."""

    async def main(world: World) -> None:
        client = await world.sent(post(b"/wait", b"xy") + b"".join(post(b"/%d" % n, b"") for n in range(9)))
        world.gates["/wait"].set()
        bodies = [answer.body for answer in await client.answers(10)]
        assert bodies == [b"/wait 2", *(b"/%d 0" % n for n in range(9))]

        flood = await world.sent(b"".join(post(b"/%d" % n, b"") for n in range(500)))
        answers = await flood.answers(500)
        assert [answer.body for answer in answers] == [b"/%d 0" % n for n in range(MAX_PIPELINED + 1)]
        assert answers[-1].headers[b"connection"] == b"close"

    run(main)


def test_upgrades_are_passed_over() -> None:
    """The request is answered as if it had asked for none, and so is the next."""

    async def main(world: World) -> None:
        asking = (b"connection: upgrade, http2-settings", b"upgrade: h2c")
        client = await world.sent(post(b"/a", b"xyz", *asking) + GOOD)
        assert [answer.body for answer in await client.answers(2)] == [b"/a 3", b"/a 0"]

    run(main)


@pytest.mark.parametrize(
    "asking",
    [
        (b"connection: close, upgrade", b"upgrade: h2c"),
        (b"connection: upgrade", b"connection: close", b"upgrade: h2c"),
    ],
)
def test_an_upgrade_on_a_connection_that_is_to_close_is_passed_over(asking: tuple[bytes, ...]) -> None:
    """The request is answered, and then the connection closes: what follows is not read."""

    async def main(world: World) -> None:
        client = await world.sent(post(b"/a", b"xyz", *asking) + GOOD)
        assert [answer.body for answer in await client.answers(1)] == [b"/a 3"]
        assert await client.ended()

    run(main)


def test_a_length_of_thousands_of_digits_is_refused_in_words_of_ours() -> None:
    """Not in those of the exception that Python raises for it."""

    async def main(world: World) -> None:
        client = await world.sent(
            b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: %b1\r\n\r\nx" % (b"0" * 5000)
        )
        answer = await client.answer()
        assert (answer.status, answer.message) == (
            400,
            "The request is not valid HTTP/1.1: it cannot be parsed.",
        )

    run(main)


def test_a_flood_of_upgrades_is_as_one_of_other_requests() -> None:
    """However many there are in one piece of data."""

    async def main(world: World) -> None:
        asking = b"GET /now HTTP/1.1\r\nhost: t\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        client = await world.sent(asking * 600)
        count = 600 if world.by_handler else MAX_PIPELINED + 1  # an application answers none at once
        answers = await client.answers(count)
        assert [answer.body for answer in answers] == [b"/now 0"] * count

    run(main)


@pytest.mark.parametrize("verb", [*ANSWERED, *REFUSED, *UNKNOWN])
def test_each_verb_is_answered_once(verb: str) -> None:
    """With a body and an upgrade or without, as the only request or behind another one."""
    requests = [
        post(b"/a", body, *upgrading).replace(b"POST", verb.encode(), 1)
        for body in (b"", b"xyz")
        for upgrading in (
            (),
            *((b"connection: upgrade", b"upgrade: %b" % to) for to in (b"h2c", b"websocket")),
        )
    ]
    status = 200 if verb in ANSWERED else 501 if verb == "CONNECT" else 400

    async def statuses(world: World, data: bytes) -> list[int]:
        """Of all answers up to that to one more request, or to the end of the connection."""
        client = await world.sent(data + post(b"/end", b""))
        raw = b""
        while piece := await client.reader.read(1 << 16):
            raw += piece
            if raw.endswith(b"/end 0"):
                break
        return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d+)", raw)]

    async def main(world: World) -> None:
        for request in requests:
            others = [200] if verb in ANSWERED else []  # the connection is closed after all else
            assert await statuses(world, request) == [status, *others], request
            # What cannot be read ends the connection after the answers that are awaited on it.
            told = [] if status == 400 else [status]
            assert await statuses(world, post(b"/b", b"") + request) == [200, *told, *others], request

    run(main, replace(SETTINGS, max_connections=100))


def test_who_expects_to_be_asked_for_the_body_is_asked() -> None:
    """But not for one that is too large; and then the connection ends, since nobody knows what comes next."""

    async def main(world: World) -> None:
        expect = b"expect: 100-continue"
        client = await world.sent(post(b"/a", b"x" * 5, expect)[:-5])
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"x" * 5)
        assert (await client.answer()).body == b"/a 5"
        assert not await client.ended()

        large = await world.sent(post(b"/a", b"x" * 2_000_000, expect)[:-2_000_000])
        answer = await large.answer()
        assert answer.status == 413
        assert answer.headers[b"connection"] == b"close"
        assert await large.ended()

    run(main)


# ---- predictions alone


def test_answers_that_nobody_reads_are_not_added_to(kind: None, wire: None) -> None:
    """The next request is begun when the client has read most of what it was sent."""
    if not World.by_handler:
        return  # an application waits by itself

    async def main(world: World) -> None:
        client = await world.sent(
            b"GET /long HTTP/1.1\r\nhost: t\r\n\r\n" + post(b"/b", b"x") + post(b"/c", b"")
        )
        await world.passes(5)
        assert [scope["path"] for scope in world.scopes] == ["/long"]
        bodies = [answer.body[:4] for answer in await client.answers(3)]
        assert bodies == [b"/lon", b"/b 1", b"/c 0"]

    run(main)


def test_a_handler_that_fails_is_an_internal_error(
    kind: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more: the connection goes on."""
    if not World.by_handler:
        return

    async def main(world: World) -> None:
        monkeypatch.setattr(world, "bodies", None)
        client = await world.sent(post(b"/a", b"x"))
        answer = await client.answer()
        assert (answer.status, answer.message) == (500, "Internal error encountered.")
        monkeypatch.undo()
        client.send(GOOD)
        assert (await client.answer()).status == 200

    run(main)
    assert "a request could not be answered" in caplog.text
    caplog.clear()
