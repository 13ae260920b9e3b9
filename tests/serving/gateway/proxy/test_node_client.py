"""The channel to a node, against a server that does what a test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from serving.errors import ServingError, Unavailable
from serving.gateway.proxy.node_client import (
    ConnectError,
    ConnectionLostError,
    NodeClient,
    NodeReply,
    ReceiveBudget,
)
from serving.transport.framing import (
    CANCEL_FRAME,
    NEVER_BATCH,
    PREDICT_FRAME,
    REQUEST_HEADER,
    RESPONSE_HEADER,
    WANTS_TIMING,
)
from tests.bounds import HANG_SECONDS

# What the server sends for a request, given its head and body; None hangs up.
Reply = Callable[[tuple[Any, ...], bytes], bytes | None]


MAX_ANSWER = 64 << 20


def answer(number: int, body: bytes, lines: bytes = b"", status: int = 200) -> bytes:
    return RESPONSE_HEADER.pack(number, status, len(lines), len(lines) + len(body)) + lines + body


def echo(head: tuple[Any, ...], body: bytes) -> bytes:
    return b"" if head[0] == CANCEL_FRAME else answer(head[2], body)


class Waiting:
    """Who asked; `answer` is what became of it."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[NodeReply] = asyncio.get_running_loop().create_future()

    def on_reply(self, answer: NodeReply) -> None:
        self.answer.set_result(answer)

    def on_reply_dropped(self, error: ServingError) -> None:
        self.answer.set_exception(error)

    def on_connection_lost(self) -> None:
        self.answer.set_exception(ConnectionLostError())


def run(
    tmp_path: Path, reply: Reply, main: Callable[[NodeClient, list[list[tuple[Any, ...]]]], Awaitable[None]]
) -> None:
    """Run with a server; it lists the heads of what it got per connection."""
    connections: list[list[tuple[Any, ...]]] = []
    serving: set[asyncio.Task[Any] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        heads: list[tuple[Any, ...]] = []
        connections.append(heads)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = REQUEST_HEADER.unpack(await reader.readexactly(REQUEST_HEADER.size))
                body = await reader.readexactly(head[-1])
                heads.append(head)
                sent = reply(head, body)
                if sent is None:
                    break
                writer.write(sent)
        writer.close()

    async def bounded() -> None:
        path = str(tmp_path / "node")
        async with asyncio.timeout(HANG_SECONDS):
            server = await asyncio.start_unix_server(serve, path)
            client = NodeClient(path, MAX_ANSWER, ReceiveBudget(MAX_ANSWER))
            try:
                await main(client, connections)
            finally:
                client.close()
                server.close()
                # uvloop does not close while connections of both sides are open.
                await asyncio.gather(*(task for task in serving if task is not None))
                await server.wait_closed()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the gateway does
        runner.run(bounded())


def send(client: NodeClient, body: bytes = b"[]", **fields: Any) -> tuple[int, asyncio.Future[NodeReply]]:
    callback = Waiting()
    given = {"slot": 0, "timeout": 1.0, "never_batch": False, "wants_timing": False, **fields}
    return client.send(callback, body, **given), callback.answer


async def ask(client: NodeClient, body: bytes = b"[]") -> NodeReply:
    await client.connect()
    return await send(client, body)[1]


def test_one_connection_carries_all_requests(tmp_path: Path) -> None:
    """Also those that are made at the same time, and however many connect at once."""

    async def main(client: NodeClient, connections: list[list[tuple[Any, ...]]]) -> None:
        answers = await asyncio.gather(*(ask(client, b"%d" % number) for number in range(5)))

        assert [(answer.status, answer.headers, answer.body) for answer in answers] == [
            (200, (), b"%d" % number) for number in range(5)
        ]
        assert client.is_connected
        assert [len(heads) for heads in connections] == [5]

    run(tmp_path, echo, main)


def test_an_answer_over_the_limit_ends_the_channel(tmp_path: Path) -> None:
    """Before there is memory for it: nodes refuse to give such answers, so this one is broken."""

    def reply(head: tuple[Any, ...], body: bytes) -> bytes:
        return RESPONSE_HEADER.pack(head[2], 200, 0, int(body)) + bytes(1 << 17)

    async def main(client: NodeClient, _: list[list[tuple[Any, ...]]]) -> None:
        with pytest.raises(ConnectionLostError):
            await ask(client, b"%d" % (MAX_ANSWER + 1))
        assert not client.is_connected

    run(tmp_path, reply, main)


async def begun(received: ReceiveBudget) -> None:
    """Wait until an answer is being received."""
    while not received.reserved:  # noqa: ASYNC110  nobody tells of it
        await asyncio.sleep(0)


def in_halves(head: tuple[Any, ...], body: bytes) -> bytes:
    """An answer of 8 MiB, or half of it, then the rest and an answer to the request for that."""
    long, number = bytes(8 << 20), head[2]
    match body:
        case b"half":
            return answer(number, long)[: 4 << 20]
        case b"rest":
            return answer(number - 1, long)[4 << 20 :] + answer(number, b"done")
        case b"long":
            return answer(number, long)
        case _:
            return echo(head, body)


def test_answers_that_are_being_received_have_a_limit_in_all(tmp_path: Path) -> None:
    """One that does not fit is refused when it is announced, and what comes of it is dropped."""

    async def main(client: NodeClient, _: Any) -> None:
        received = ReceiveBudget(10 << 20)
        first, second = (NodeClient(client.address, MAX_ANSWER, received) for _ in range(2))
        await first.connect()
        _, half = send(first, b"half")
        await begun(received)

        assert received.reserved == 8 << 20
        await second.connect()
        _, refused = send(second, b"long")
        _, short = send(second, b"short")
        with pytest.raises(Unavailable, match="setting unsent_bytes = 10485760"):
            await refused
        assert (await short).body == b"short"
        _, rest = send(first, b"rest")
        assert (len((await half).body), (await rest).body, received.reserved) == (8 << 20, b"done", 0)
        assert len((await send(second, b"long")[1]).body) == 8 << 20
        assert received.reserved == 0
        first.close()
        second.close()

    run(tmp_path, in_halves, main)


def test_an_answer_that_will_not_come_is_not_counted(tmp_path: Path) -> None:
    """Because nobody waits for it any more, or because the node is gone."""

    async def main(client: NodeClient, _: Any) -> None:
        received = ReceiveBudget(10 << 20)
        channel = NodeClient(client.address, MAX_ANSWER, received)
        await channel.connect()
        number, _ = send(channel, b"long")
        await asyncio.sleep(0)
        channel.cancel(number, lambda: None)
        assert (await send(channel, b"short")[1]).body == b"short"
        assert received.reserved == 0

        _, half = send(channel, b"half")
        await begun(received)
        send(channel, b"end")
        with pytest.raises(ConnectionLostError):
            await half
        assert received.reserved == 0

    run(tmp_path, lambda head, body: None if body == b"end" else in_halves(head, body), main)


def test_the_node_is_told_what_it_needs_to_know(tmp_path: Path) -> None:
    """The place, the time, whether to be alone, whether to tell, and the call in front of the body."""

    async def main(client: NodeClient, connections: list[list[tuple[Any, ...]]]) -> None:
        await client.connect()
        sent = [
            send(client, b"[1]", slot=3, timeout=7.5),
            send(client, never_batch=True),
            send(client, wants_timing=True),
            send(client, encoded_metadata=b"about"),
        ]
        await asyncio.gather(*(future for _, future in sent))

        numbers = [number for number, _ in sent]
        assert connections == [
            [
                (PREDICT_FRAME, 0, numbers[0], 3, 7.5, 0, 3),
                (PREDICT_FRAME, NEVER_BATCH, numbers[1], 0, 1.0, 0, 2),
                (PREDICT_FRAME, WANTS_TIMING, numbers[2], 0, 1.0, 0, 2),
                (PREDICT_FRAME, 0, numbers[3], 0, 1.0, 5, 7),
            ]
        ]

    run(tmp_path, echo, main)


def test_header_lines_are_told_from_the_body(tmp_path: Path) -> None:
    """As names and values."""
    lines = b"retry-after: 1\r\nserver-timing: infer;dur=1.5\r\n"

    async def main(client: NodeClient, _: Any) -> None:
        got = await ask(client)

        assert got.status == 429
        assert got.headers == ((b"retry-after", b"1"), (b"server-timing", b"infer;dur=1.5"))
        assert got.body == b"{}"

    run(tmp_path, lambda head, _: answer(head[2], b"{}", lines, 429), main)


def test_answers_come_in_any_order(tmp_path: Path) -> None:
    """Each to who asked."""
    held: list[bytes] = []

    def last_first(head: tuple[Any, ...], body: bytes) -> bytes:
        held.insert(0, answer(head[2], body))
        return b"".join(held) if len(held) == 3 else b""

    async def main(client: NodeClient, _: Any) -> None:
        answers = await asyncio.gather(*(ask(client, b"%d" % number) for number in range(3)))

        assert [got.body for got in answers] == [b"0", b"1", b"2"]

    run(tmp_path, last_first, main)


@pytest.mark.parametrize("size", [100, 200 << 10, 256 << 10, 5 << 20, 40 << 20])
def test_bodies_of_any_size_arrive_whole(tmp_path: Path, size: int) -> None:
    """With small ones before and behind them."""
    large = b"0123456789" * (size // 10)

    async def main(client: NodeClient, _: Any) -> None:
        bodies = (b"before", large, b"behind", large)
        answers = await asyncio.gather(*(ask(client, body) for body in bodies))

        assert all(got.body == body for got, body in zip(answers, bodies, strict=True))

    run(tmp_path, echo, main)


def test_a_node_that_hangs_up_is_told_apart_from_one_that_is_not_there(tmp_path: Path) -> None:
    """The first may have seen the requests, all that were under way, the second cannot have."""

    async def main(client: NodeClient, _: Any) -> None:
        lost = await asyncio.gather(*(ask(client) for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in lost] == [ConnectionLostError] * 3
        assert not client.is_connected
        with pytest.raises(ConnectError):
            await NodeClient(str(tmp_path / "nobody"), MAX_ANSWER, ReceiveBudget(MAX_ANSWER)).connect()

    run(tmp_path, lambda _, __: None, main)


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda number: RESPONSE_HEADER.pack(number, 200, 3, 2) + b"{}",  # more header than there is
        lambda number: RESPONSE_HEADER.pack(number, 200, 2, 2) + b"\r\n",  # a line that is none
        lambda number: RESPONSE_HEADER.pack(number, 200, 0, 1 << 62),
    ],
    ids=["header length", "header line", "length"],
)
def test_what_is_no_answer_is_a_lost_connection(tmp_path: Path, nonsense: Callable[[int], bytes]) -> None:
    """The node is not to be trusted with the next request on it, but may have another chance."""

    async def main(client: NodeClient, connections: list[Any]) -> None:
        for _ in range(2):
            with pytest.raises(ConnectionLostError):
                await asyncio.gather(ask(client), ask(client))
        assert len(connections) == 2

    run(tmp_path, lambda head, _: nonsense(head[2]), main)


def test_who_gives_up_is_not_answered(tmp_path: Path) -> None:
    """The node is told, and the others go on; a late answer is nobody's."""

    async def main(client: NodeClient, connections: list[list[tuple[Any, ...]]]) -> None:
        await client.connect()
        number, gone = send(client)
        await asyncio.sleep(0)
        freed: list[int] = []
        for _ in range(2):
            client.cancel(number, lambda: freed.append(number))
        assert freed == [number, number]
        assert (await ask(client)).status == 200

        assert not gone.done()
        assert [(head[0], head[2]) for head in connections[0]] == [
            (PREDICT_FRAME, number), (CANCEL_FRAME, number), (PREDICT_FRAME, number + 1)
        ]  # fmt: skip

    run(tmp_path, echo, main)


@pytest.mark.parametrize("reads", [True, False])
def test_who_gives_up_learns_when_the_body_is_free(tmp_path: Path, reads: bool) -> None:
    """What is being written to a node that does not read stays until it reads or is gone."""
    large = bytes(8 << 20)

    async def main(client: NodeClient, connections: list[list[tuple[Any, ...]]]) -> None:
        node, gateway = asyncio.StreamReader(1 << 10), []
        stuck = asyncio.StreamReaderProtocol(node, lambda _, writer: gateway.append(writer))
        server = await asyncio.get_running_loop().create_unix_server(lambda: stuck, str(tmp_path / "stuck"))
        client = NodeClient(str(tmp_path / "stuck"), MAX_ANSWER, ReceiveBudget(MAX_ANSWER))
        freed: list[str] = []
        await client.connect()
        first, _ = send(client, large)
        second, _ = send(client, large)
        await asyncio.sleep(0.01)
        third, _ = send(client)
        client.cancel(third, lambda: freed.append("third"))
        client.cancel(first, lambda: freed.append("first"))
        client.cancel(second, lambda: freed.append("second"))
        assert freed == ["third", "second"]
        if reads:
            head = REQUEST_HEADER.unpack(await node.readexactly(REQUEST_HEADER.size))
            await node.readexactly(head[-1])
            assert REQUEST_HEADER.unpack(await node.readexactly(REQUEST_HEADER.size))[:3] == (
                CANCEL_FRAME,
                0,
                first,
            )
        else:
            gateway[0].transport.abort()
            await asyncio.sleep(0.01)
        assert freed == ["third", "second", "first"]
        client.close()
        gateway[0].transport.abort()
        server.close()
        await asyncio.sleep(0)

    run(tmp_path, echo, main)


def test_who_gives_up_when_the_node_is_gone_is_told_of_nothing_more(tmp_path: Path) -> None:
    """Though the channel waits for answers that are on their way."""

    async def main(client: NodeClient, _: Any) -> None:
        await client.connect()
        number, gone = send(client)
        _, waiting = send(client)
        client.close()
        client.cancel(number, lambda: None)

        assert (await waiting).body == b"[]"
        assert not gone.done()

    run(tmp_path, echo, main)


def test_what_is_on_its_way_still_arrives_when_the_channel_is_closed(tmp_path: Path) -> None:
    """A node that has ended may have answered before."""

    async def main(client: NodeClient, _: Any) -> None:
        await client.connect()
        _, future = send(client)
        client.close()

        assert not client.is_connected
        assert (await future).body == b"[]"

    run(tmp_path, echo, main)
