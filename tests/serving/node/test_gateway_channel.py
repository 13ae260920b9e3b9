"""The node's end of the channel, against a gateway that does what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.config import PredictSettings
from serving.frameworks import find_user_code_framework
from serving.model_schema import ModelSchema
from serving.node.batcher import BatchLimits
from serving.node.compute import AdaptiveExecutor
from serving.node.gateway_channel import GatewayChannel, GatewayChannelServer, _ChannelRequest
from serving.node.predict import NodePredictor
from serving.protocols import Dialect, RequestMetadata, encode_metadata
from serving.runtimes import ArrayFormat, InputFormat
from serving.runtimes.instance_batch import Batch
from serving.runtimes.schema_inference import unknown_schema
from serving.transport.framing import (
    CANCEL_FRAME,
    NEVER_BATCH,
    PING_FRAME,
    PREDICT_FRAME,
    REQUEST_HEADER,
    RESPONSE_HEADER,
    WANTS_TIMING,
)
from tests.bounds import HANG_SECONDS
from tests.garbage import nothing_for_the_collector

LONGEST = 1 << 20
SLOTS = 4


class Summing:
    """Sums its rows, once it is let go if it is `held`, and remembers its calls."""

    framework = find_user_code_framework()
    mergeable = True
    exact = True
    warnings: tuple[str, ...] = ()

    def __init__(self, *, held: bool = False) -> None:
        self.calls: list[list[float]] = []
        self.begun = threading.Event()
        self.let_go = threading.Event()
        if not held:
            self.let_go.set()

    def input_format(self, parameters: Mapping[str, Any]) -> InputFormat:
        return ArrayFormat(None, nullable=False)

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        sums: Batch = np.sum(instances, axis=1)
        self.calls.append(np.asarray(sums).tolist())
        self.begun.set()
        assert self.let_go.wait(HANG_SECONDS)
        return sums

    def make_synthetic_rows(self, count: int) -> None:
        return None

    def warmup_requests(self) -> tuple[()]:
        return ()

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        return unknown_schema("fake")


def frame(
    number: int,
    *rows: list[float],
    slot: int = 0,
    timeout: float = 5.0,
    flags: int = 0,
    kind: int = PREDICT_FRAME,
    about: bytes = b"",
) -> bytes:
    body = orjson.dumps({"instances": rows}) if rows else b""
    return (
        REQUEST_HEADER.pack(kind, flags, number, slot, timeout, len(about), len(about) + len(body))
        + about
        + body
    )


@dataclass
class Gateway:
    """A connection to the node."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self) -> tuple[int, int, bytes, Any]:
        """Number, status, header lines and value of the next answer."""
        head = await self.reader.readexactly(RESPONSE_HEADER.size)
        number, status, lines, length = RESPONSE_HEADER.unpack(head)
        content = await self.reader.readexactly(length)
        return number, status, content[:lines], orjson.loads(content[lines:])

    async def answers(self, count: int) -> dict[int, Any]:
        """The predictions, or the status of what was refused, by number."""
        found = {}
        for _ in range(count):
            number, status, _, value = await self.answer()
            found[number] = value["predictions"] if status == 200 else status
        return found

    async def ping(self, number: int) -> None:
        """Returns once the node has read all that was sent before; no answer may be on its way meanwhile."""
        self.writer.write(frame(number, kind=PING_FRAME))
        head = RESPONSE_HEADER.unpack(await self.reader.readexactly(RESPONSE_HEADER.size))
        assert head == (number, 200, 0, 0)

    async def ended(self) -> bool:
        """Whether the node hangs up; what it still sends is dropped."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass
        return True


@dataclass
class World:
    """A node of a pool in the process of the test; `serving` ends with its server."""

    server: GatewayChannelServer
    predictor: NodePredictor
    serving: asyncio.Task[None]
    address: str
    gateways: list[Gateway] = field(default_factory=list)

    async def connect(self) -> Gateway:
        self.gateways.append(Gateway(*await asyncio.open_unix_connection(self.address)))
        return self.gateways[-1]

    async def end(self) -> None:
        """Stop without waiting for anything."""
        self.server.stop()
        self.server.stop()
        for gateway in self.gateways:
            gateway.writer.transport.abort()
        await self.serving
        await asyncio.sleep(0.001)  # uvloop's connections take a turn to close


def run(
    folder: Path,
    runtime: Any,
    main: Callable[[World], Awaitable[None]],
    *,
    short: bool = True,
    loaded: bool = True,
    drain: float = 5.0,
    all_answered: bool = True,
) -> bytearray:
    """Run with a node, and return its board; whether calls are `short` decides where they are computed.

    Nothing of the requests is left at the end if they are `all_answered`.
    """
    board = bytearray(SLOTS)

    async def bounded() -> None:
        place = AdaptiveExecutor(thread, may_inline=short)
        place.record_duration(0.0)
        predictor = NodePredictor(
            runtime, place, BatchLimits(64, 100, LONGEST), PredictSettings(), marks=board
        )
        server = GatewayChannelServer(
            lambda: predictor if loaded else None, slots=SLOTS, max_body_bytes=LONGEST, drain_seconds=drain
        )
        address = str(folder / f"{time.monotonic_ns()}")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
        async with asyncio.timeout(HANG_SECONDS):
            world = World(server, predictor, asyncio.create_task(server.serve(listener)), address)
            await asyncio.sleep(0)
            try:
                await main(world)
            finally:
                await world.end()

    with ThreadPoolExecutor(1) as thread, nothing_for_the_collector(_ChannelRequest, GatewayChannel) as check:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded())
        if all_answered:
            check()
    return board


def test_what_comes_in_one_go_is_computed_in_one_call(tmp_path: Path) -> None:
    """And answered in one go, each with what is its own."""
    runtime = Summing()

    async def main(world: World) -> None:
        gateway = await world.connect()
        gateway.writer.write(b"".join(frame(number, [number], [2], slot=number) for number in range(4)))

        assert await gateway.answers(4) == {number: [number, 2] for number in range(4)}
        gateway.writer.write(frame(9, [1, 2, 3], slot=SLOTS))  # of a board that is not ours
        assert await gateway.answers(1) == {9: [6]}

    board = run(tmp_path, runtime, main)

    assert runtime.calls == [[0, 2, 1, 2, 2, 2, 3, 2], [6]]
    assert bytes(board) == b"\2\2\2\2"


def test_a_request_may_be_alone_and_may_ask_for_times(tmp_path: Path) -> None:
    """As its flags say; errors bring their headers too."""
    runtime = Summing()

    async def main(world: World) -> None:
        gateway = await world.connect()
        frames = (
            frame(0, [1]),
            frame(1, [2], flags=NEVER_BATCH),
            frame(2, [3], flags=WANTS_TIMING),
            frame(3, [[4]]),  # type: ignore[list-item]
        )
        gateway.writer.write(b"".join(frames))
        answers = {number: rest for number, *rest in [await gateway.answer() for _ in range(4)]}

        assert {number: status for number, (status, *_) in answers.items()} == {
            0: 200,
            1: 200,
            2: 200,
            3: 400,
        }
        assert answers[0][1] == b""
        assert answers[2][1].startswith(b"server-timing: parse;dur=")
        assert answers[2][1].endswith(b"\r\n")

    run(tmp_path, runtime, main)

    assert [2] in runtime.calls


def test_a_node_that_is_still_loading_says_so(tmp_path: Path) -> None:
    """And when to come again."""

    async def main(world: World) -> None:
        gateway = await world.connect()
        gateway.writer.write(frame(1, [1]) + frame(1, kind=CANCEL_FRAME))

        number, status, lines, _ = await gateway.answer()
        assert (number, status, lines) == (1, 503, b"retry-after: 1\r\n")

    run(tmp_path, Summing(), main, loaded=False)


def test_a_call_stands_in_front_of_its_body(tmp_path: Path) -> None:
    """It is read and answered as it says, however long it is; what is no call ends the channel."""
    about = encode_metadata(RequestMetadata(Dialect.TENSORFLOW, model="m"))
    large = [1.0] * 200_000

    async def main(world: World) -> None:
        gateway = await world.connect()
        bad = frame(2, [[1]], about=about)  # type: ignore[list-item]
        gateway.writer.write(frame(0, [1], about=about) + frame(1, large, about=about) + bad)
        answers = {number: rest for number, *rest in [await gateway.answer() for _ in range(3)]}

        assert answers[0][2] == {"predictions": [1]}
        assert answers[1][2] == {"predictions": [200_000]}
        assert isinstance(answers[2][2]["error"], str)
        for nonsense in (b"{}x", b'{"dialect":"none"}', b" " * 40_000):
            other = await world.connect()
            other.writer.write(frame(0, [1], about=nonsense))
            assert await other.ended()

    run(tmp_path, Summing(), main)


def test_a_node_that_is_still_loading_says_so_in_every_protocol(tmp_path: Path) -> None:
    """As that words it."""

    async def main(world: World) -> None:
        gateway = await world.connect()
        gateway.writer.write(frame(1, [1], about=encode_metadata(RequestMetadata(Dialect.INFERENCE))))

        assert (await gateway.answer())[3] == {"error": "The model is being loaded."}

    run(tmp_path, Summing(), main, loaded=False)


def test_bodies_of_any_size_arrive_whole(tmp_path: Path) -> None:
    """Between small ones, in however many pieces."""
    large = [1.0] * 200_000

    async def main(world: World) -> None:
        gateway = await world.connect()
        sent = frame(0, [1]) + frame(1, large) + frame(2, [1, 1])
        for start in range(0, len(sent), 70_001):
            gateway.writer.write(sent[start : start + 70_001])
            await asyncio.sleep(0)

        assert await gateway.answers(3) == {0: [1], 1: [200_000], 2: [2]}

    run(tmp_path, Summing(), main)


def test_work_that_was_cancelled_is_dropped(tmp_path: Path) -> None:
    """By a frame, or with the connection; what is being computed is not answered."""
    runtime = Summing(held=True)

    async def main(world: World) -> None:
        gateway, other = await world.connect(), await world.connect()
        gateway.writer.write(frame(0, [0]))
        await asyncio.to_thread(runtime.begun.wait)
        gateway.writer.write(
            frame(1, [1]) + frame(2, [2]) + frame(0, kind=CANCEL_FRAME) + frame(1, kind=CANCEL_FRAME)
        )
        other.writer.write(frame(1, [3]))
        await asyncio.gather(gateway.ping(3), other.ping(2))
        other.writer.close()
        while world.predictor.errors < 3:  # noqa: ASYNC110 - it is a plain count
            await asyncio.sleep(0)
        runtime.let_go.set()

        assert (await gateway.answer())[0] == 2
        assert world.predictor.errors == 3

    run(tmp_path, runtime, main, short=False)

    assert runtime.calls == [[0], [2]]


def test_a_node_says_that_it_reacts_while_its_model_computes(tmp_path: Path) -> None:
    """The answer to a ping is empty, and does not wait for a call."""

    runtime = Summing(held=True)

    async def main(world: World) -> None:
        gateway = await world.connect()
        gateway.writer.write(frame(1, [1]))
        await asyncio.to_thread(runtime.begun.wait)
        await gateway.ping(2)
        runtime.let_go.set()
        assert await gateway.answers(1) == {1: [1.0]}

    run(tmp_path, runtime, main, short=False)


def test_requests_in_flight_finish_before_the_end(tmp_path: Path) -> None:
    """SIGTERM: no new connections, what is under way is answered, then the channels are closed."""
    runtime = Summing(held=True)

    async def main(world: World) -> None:
        gateway = await world.connect()
        gateway.writer.write(frame(0, [1]))
        await asyncio.to_thread(runtime.begun.wait)
        gateway.writer.write(frame(1, [2]))
        await gateway.ping(2)
        os.kill(os.getpid(), signal.SIGTERM)
        with contextlib.suppress(ConnectionError):
            while True:
                await world.connect()
        runtime.let_go.set()

        assert await gateway.answers(2) == {0: [1], 1: [2]}
        assert await gateway.ended()
        await world.serving

    run(tmp_path, runtime, main, short=False)


def test_the_end_does_not_wait_for_ever(tmp_path: Path) -> None:
    """For no longer than it may, and not if it is told twice."""
    runtime = Summing(held=True)

    async def main(world: World) -> None:
        gateway = await world.connect()
        gateway.writer.write(frame(0, [1]))
        await asyncio.to_thread(runtime.begun.wait)
        start = time.monotonic()
        world.server.stop()
        await world.serving
        assert time.monotonic() - start >= 0.1
        assert await gateway.ended()
        runtime.let_go.set()

    run(tmp_path, runtime, main, short=False, drain=0.1, all_answered=False)


FRAMES = st.builds(
    REQUEST_HEADER.pack,
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
    st.floats(),
    st.integers(0, 20),
    st.integers(0, 20) | st.integers(0, (1 << 64) - 1),
)
GOOD = st.builds(frame, st.integers(0, 9), st.lists(st.integers(-9, 9), min_size=1, max_size=3))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(FRAMES | GOOD | st.binary(max_size=40), max_size=4), max_size=4))
def test_what_is_damaged_closes_its_channel_and_nothing_else(
    tmp_path_factory: Any, chunks: list[list[bytes]]
) -> None:
    """Whatever comes, the node goes on answering its other channel."""

    async def main(world: World) -> None:
        other = await world.connect()
        await asyncio.to_thread(say, world.address, chunks)
        other.writer.write(frame(7, [1, 2]))
        assert await other.answers(1) == {7: [3]}

    def say(address: str, chunks: list[list[bytes]]) -> None:
        with socket.socket(socket.AF_UNIX) as damaged, contextlib.suppress(ConnectionError):
            damaged.settimeout(5)
            damaged.connect(address)
            for chunk in chunks:
                damaged.sendall(b"".join(chunk))
            damaged.shutdown(socket.SHUT_WR)
            while damaged.recv(1 << 16):
                pass

    folder = tmp_path_factory.getbasetemp()
    run(folder, Summing(), main)
