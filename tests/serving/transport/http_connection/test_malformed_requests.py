"""What is no request of HTTP, and clients that vanish."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serving.transport.connection_limits import SLICES
from tests.serving.transport.http_connection.server import GOOD, POSTED, SETTINGS, World, post, run, settle


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (POSTED + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
        (POSTED + b"content-length: 1\r\ncontent-length: 1\r\n\r\na", 400),
        (POSTED + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POSTED + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n", 400),
        (POSTED + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (POSTED + b"transfer-encoding: gzip\r\n\r\n", 501),
        (POSTED + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (POSTED + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (POSTED + b"content-length: +1\r\n\r\na", 400),
        (POSTED + b"content-length: 0x1\r\n\r\na", 400),
        (POSTED + b"content-length: -1\r\n\r\n", 400),
        (POSTED + b"content-length: 99999999999999999999999\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\nhost: t\n\n", 400),
        (b"GET /a HTTP/1.1\r\nhost: t\r\nx: a\nb: c\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nhost: t\r\n folded: t\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nhost: t\r\nx: a\0b\r\n\r\n", 400),
        (b"GET /a\0b HTTP/1.1\r\nhost: t\r\n\r\n", 400),
        (b"GET /a HTTP/3.7\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nhost: t\r\n\r\n", 400),
        (b"BREW /a HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT t:443 HTTP/1.1\r\nhost: t\r\n\r\n", 501),
        (b"CONNECT /a HTTP/1.1\r\nhost: t\r\n\r\n", 501),
        (b"GET /a HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nhost: t\r\nhost: t\r\n\r\n", 400),
        (b"GET /a HTTP/1.0\r\nhost: t\r\nHost: u\r\n\r\n", 400),
        (b"GET /a\r\n\r\n", 400),
        (b"GET /a HTTP/0.9\r\nhost: t\r\n\r\n", 400),
        (b"GET /a HTTP/2.0\r\nhost: t\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (POSTED + b"transfer-encoding: chunked\r\n\r\n2\r\nabc\r\n", 400),
        (POSTED + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400),
    ],
)
def test_what_is_no_request_is_refused_in_our_form(data: bytes, status: int) -> None:
    """And nothing that follows is taken for a request: a proxy in front might have seen another one."""

    async def main(world: World) -> None:
        client = await world.sent(data + post(b"/smuggled", b""))
        answer = await client.answer()
        assert (answer.status, answer.headers[b"connection"]) == (status, b"close"), answer
        assert answer.message
        assert await client.ended()
        assert all(scope["path"] != "/smuggled" for scope in world.scopes)
        assert world.bodies == []

    run(main)


def test_what_follows_a_request_and_is_none_waits_for_its_answer() -> None:
    """It is answered as ever; then the connection ends."""

    async def main(world: World) -> None:
        client = await world.sent(post(b"/wait", b"") + post(b"/b", b"") + b"nonsense\r\n\r\n")
        await world.passes(5)
        world.gates["/wait"].set()
        answers = await client.answers(99)
        assert [answer.body for answer in answers] == [b"/wait 0", b"/b 0"]
        assert client.closed

    run(main)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"POS",
        GOOD[:-2],
        post(b"/a", b"xyz")[:-1],
        post(b"/wait", b""),
        b"GET /large HTTP/1.1\r\nhost: t\r\n\r\n",
    ],
    ids=["at once", "in a word", "in the head", "in the body", "waiting", "in the answer"],
)
@pytest.mark.parametrize("how", ["close", "half", "reset"])
def test_clients_that_vanish_leave_nothing(data: bytes, how: str) -> None:
    """Whenever they go; one that closes only its own side is taken for gone too."""

    async def main(world: World) -> None:
        client = await world.sent(data)
        if how == "half":
            client.writer.write_eof()
        elif how == "reset":
            client.writer.transport.abort()
        else:
            client.writer.close()
        await world.passes(1)
        await settle()
        if not (how == "half" and b"large" in data):  # what is sent already may still be read
            assert world.gate.open_connections == 0

    run(main)


def test_a_crowd_is_looked_at_a_tenth_at_a_time() -> None:
    """And each within a second."""

    async def main(world: World) -> None:
        for _ in range(30):
            await world.connect()
        sizes = [len(members) for members in world.gate._slices]
        assert sizes == [3] * SLICES

    run(main, replace(SETTINGS, max_connections=100))
