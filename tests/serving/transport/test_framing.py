"""One end of a channel, with a socket at the other that reads when a test does."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from serving.transport.framing import Body, FrameProtocol
from tests.bounds import HANG_SECONDS

HEAD = struct.Struct("<IIQ")  # number, bytes in front of the body, and of both
LONG = 4 << 20


class Keeping(FrameProtocol):
    """Keeps what it gets."""

    def __init__(self) -> None:
        super().__init__(HEAD, LONG)
        self.got: list[tuple[int, int]] = []
        self.writes = 0

    def on_frame(self, head: tuple[Any, ...], front: bytes, body: Body) -> None:
        self.got.append((head[0], len(body)))

    def on_close(self) -> None:
        pass

    def on_frames_read(self) -> None:
        pass

    def on_writable(self) -> None:
        self.writes += 1

    def put(self, number: int, size: int) -> None:
        self.send(number, HEAD.pack(number, 0, size), bytes(size))


class World:
    """An end, and the socket to which it sends."""

    def __init__(self, end: Keeping, other: socket.socket) -> None:
        self.end = end
        self.transport = end.transport
        self._other = other

    async def full(self) -> None:
        """Wait until the transport cannot write what it was given."""
        while not self.end.paused:
            await a_turn()

    async def read(self, frames: int) -> list[tuple[int, int]]:
        """The number and the size of all frames that come, at least so many; 0: up to the end."""
        loop, reader = asyncio.get_running_loop(), Keeping()
        transport, _ = await loop.create_connection(lambda: reader, sock=self._other)
        while len(reader.got) < frames or (not frames and reader.transport is not None):
            await a_turn()
        transport.close()
        return reader.got


async def a_turn() -> None:
    """Let the event loop do what is to be done."""
    await asyncio.sleep(0)


def run(main: Callable[[World], Awaitable[None]], kind: str) -> None:
    async def bounded() -> None:
        near, far = socket.socketpair()
        async with asyncio.timeout(HANG_SECONDS):
            _, end = await asyncio.get_running_loop().create_connection(Keeping, sock=near)
            try:
                await main(World(end, far))
            finally:
                end.abort()
                far.close()
                await a_turn()

    factory = uvloop.new_event_loop if kind == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(bounded())


@pytest.fixture(params=["uvloop", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_frames_wait_while_the_other_end_does_not_read(kind: str) -> None:
    """No more than one long one is in the hands of the transport; all arrive, in their order."""

    async def main(world: World) -> None:
        for number in range(6):
            world.end.put(number, LONG)
        await world.full()
        world.end.put(6, 10)
        await a_turn()
        assert world.transport is not None
        assert world.transport.get_write_buffer_size() < 2 * LONG

        assert await world.read(7) == [*((number, LONG) for number in range(6)), (6, 10)]
        assert world.end.writes

    run(main, kind)


def test_what_is_withdrawn_in_time_is_not_sent(kind: str) -> None:
    """Not what has begun: the other end could not tell where the next frame begins."""

    async def main(world: World) -> None:
        world.end.put(0, 10)
        assert world.end.withdraw(0)
        await a_turn()
        world.end.put(1, LONG)
        world.end.put(2, LONG)
        await world.full()
        world.end.put(3, 10)
        world.end.put(4, 10)
        assert [world.end.withdraw(number) for number in (1, 2, 3, 3)] == [False, True, True, False]

        assert await world.read(2) == [(1, LONG), (4, 10)]

    run(main, kind)


def test_all_is_sent_before_the_end(kind: str) -> None:
    """Also what waits since the other end does not read."""

    async def main(world: World) -> None:
        world.end.put(1, LONG)
        await world.full()
        world.end.put(2, LONG)
        world.end.put(3, 10)
        world.end.close_when_sent()

        assert await world.read(0) == [(1, LONG), (2, LONG), (3, 10)]

    run(main, kind)
