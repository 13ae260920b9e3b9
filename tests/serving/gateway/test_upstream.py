"""Connections to a node, against a server that does what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from serving.gateway.upstream import Answer, ConnectError, ConnectionLostError, Upstream

GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-kind: good\r\n\r\n{}"

# Reads a request and writes what is sent back; None hangs up.
Reply = Callable[[bytes], bytes | None]


async def patient(answer: asyncio.Future[Answer]) -> Answer:
    return await answer


def run(tmp_path: Path, reply: Reply, main: Callable[[Upstream, list[int]], Awaitable[None]]) -> None:
    """Run with a server; the list counts its connections."""
    connections: list[int] = []
    serving: set[asyncio.Task[Any] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        number = len(connections)
        connections.append(0)
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                body = await reader.readexactly(int(request.rpartition(b"content-length: ")[2]))
                connections[number] += 1
                sent = reply(body)
                writer.write(sent or b"")
                if sent is None:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def bounded() -> None:
        path = str(tmp_path / "node")
        async with asyncio.timeout(10):
            server = await asyncio.start_unix_server(serve, path)
            upstream = Upstream(path)
            await main(upstream, connections)
            upstream.close()
            server.close()
            # uvloop does not close while connections of both sides are open.
            await asyncio.gather(*(task for task in serving if task is not None))
            await server.wait_closed()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the gateway does
        runner.run(bounded())


async def exchange(upstream: Upstream, body: bytes = b"[]") -> Answer:
    head = b"POST /v1/x:predict HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
    return await upstream.exchange(head, body, patient)


def test_a_connection_is_used_again(tmp_path: Path) -> None:
    """Status, headers and body arrive; the next request takes the same connection."""

    async def main(upstream: Upstream, connections: list[int]) -> None:
        answers = [await exchange(upstream) for _ in range(3)]

        assert {(answer.status, answer.body) for answer in answers} == {(200, b"{}")}
        assert (b"x-kind", b"good") in answers[-1].headers
        assert connections == [3]

    run(tmp_path, lambda _: GOOD, main)


def test_requests_at_the_same_time_have_connections_of_their_own(tmp_path: Path) -> None:
    """One request at a time on each."""

    async def main(upstream: Upstream, connections: list[int]) -> None:
        await asyncio.gather(*(exchange(upstream) for _ in range(5)))
        await asyncio.gather(*(exchange(upstream) for _ in range(5)))

        assert connections == [2] * 5

    run(tmp_path, lambda _: GOOD, main)


def test_a_large_answer_arrives_whole(tmp_path: Path) -> None:
    """In however many pieces."""
    large = b"x" * (5 << 20)

    async def main(upstream: Upstream, connections: list[int]) -> None:
        assert (await exchange(upstream, large)).body == large

    run(tmp_path, lambda body: b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body), main)


def test_a_node_that_hangs_up_is_told_apart_from_one_that_is_not_there(tmp_path: Path) -> None:
    """The first may have seen the request, the second cannot have."""

    async def main(upstream: Upstream, connections: list[int]) -> None:
        with pytest.raises(ConnectionLostError):
            await exchange(upstream)
        with pytest.raises(ConnectError):
            await exchange(Upstream(str(tmp_path / "nobody")))

    run(tmp_path, lambda _: None, main)


def test_what_is_no_http_is_a_lost_connection(tmp_path: Path) -> None:
    """The node is not to be trusted with the next request on it."""

    async def main(upstream: Upstream, connections: list[int]) -> None:
        for _ in range(2):
            with pytest.raises(ConnectionLostError):
                await exchange(upstream)
        assert connections == [1, 1]

    run(tmp_path, lambda _: b"nonsense\r\n\r\n", main)


def test_a_connection_that_was_closed_meanwhile_is_not_used(tmp_path: Path) -> None:
    """Whenever the node hangs up after its answer, the next request gets an answer too."""
    closing = GOOD.replace(b"x-kind: good", b"connection: close")

    async def main(upstream: Upstream, connections: list[int]) -> None:
        for _ in range(3):
            assert (await exchange(upstream)).status == 200
        assert connections == [1, 1, 1]

    run(tmp_path, lambda _: closing, main)


def test_who_gives_up_closes_the_connection(tmp_path: Path) -> None:
    """So that the node stops too, and a late answer is nobody's."""

    async def main(upstream: Upstream, connections: list[int]) -> None:
        async def impatient(answer: asyncio.Future[Answer]) -> Answer:
            raise TimeoutError

        head = b"POST /v1/x:predict HTTP/1.1\r\ncontent-length: 2\r\n\r\n"
        with pytest.raises(TimeoutError):
            await upstream.exchange(head, b"[]", impatient)
        assert (await exchange(upstream)).status == 200
        assert len(connections) <= 2
        assert connections[-1] == 1

    run(tmp_path, lambda _: GOOD, main)
