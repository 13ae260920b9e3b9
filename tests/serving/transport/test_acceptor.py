"""Connections where there is no file descriptor for them: they wait, and are then told why."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import cast

import pytest
import uvloop

from serving.transport import acceptor as module
from serving.transport.acceptor import ConnectionAcceptor
from tests.bounds import HANG_SECONDS


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.closed = cast(asyncio.Transport, transport), asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class World:
    """A listener, the connections that it opened, and what it told."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.opened: list[Echo] = []
        self.told: list[str] = []
        self.asked_for_room = 0
        self.idle: list[socket.socket] = []
        self.listener = ConnectionAcceptor(
            self.listening,
            self._connect,
            make_room=self._make_room,
            on_shortage=self.told.append,
        )

    def _connect(self) -> Echo:
        self.opened.append(Echo())
        return self.opened[-1]

    def _make_room(self) -> None:
        self.asked_for_room += 1
        if self.idle:
            self.idle.pop().close()

    def client(self) -> socket.socket:
        found = socket.socket()
        found.setblocking(False)
        return found

    async def ask(self, client: socket.socket, word: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, self.listening.getsockname())
        await loop.sock_sendall(client, word)
        return await loop.sock_recv(client, 1 << 16)

    async def until_told(self, count: int) -> None:
        while len(self.told) < count:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.005)


def run(main: Callable[[World], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            world = World()
            world.listener.start()
            try:
                await main(world)
            finally:
                world.listener.close()
                world.listening.close()
                for one in world.opened:
                    one.transport.close()
                await asyncio.gather(*(one.closed.wait() for one in world.opened))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the server does
        runner.run(bounded())


@contextmanager
def no_files() -> Iterator[None]:
    """This process can open no further file."""
    free = os.open(os.devnull, os.O_RDONLY)  # the lowest that there is
    os.close(free)
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)


def test_connections_wait_for_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is reset; they are served as soon as there is one, and it is told that there was none."""
    monkeypatch.setattr(module, "_MAX_HOLD_SECONDS", 1000.0)

    async def main(world: World) -> None:
        clients = [world.client() for _ in range(5)]
        with no_files():
            asking = [asyncio.create_task(world.ask(client, b"there")) for client in clients]
            await world.until_told(3)
            assert world.opened == []
            assert "Too many open files" in world.told[0]
        assert await asyncio.gather(*asking) == [b"there"] * 5
        await world.until_told(4)
        assert world.told[-1] == ""
        for client in clients:
            client.close()

    run(main)


def test_idle_connections_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks now has more need of a descriptor."""
    monkeypatch.setattr(module, "_MAX_HOLD_SECONDS", 1000.0)

    async def main(world: World) -> None:
        client = world.client()
        world.idle = [socket.socket()]
        with no_files():
            assert await world.ask(client, b"there") == b"there"
            assert world.asked_for_room
        client.close()

    run(main)


def test_after_a_moment_they_are_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, with the descriptor that is kept for that."""
    monkeypatch.setattr(module, "_MAX_HOLD_SECONDS", 0.2)

    async def main(world: World) -> None:
        clients = [world.client() for _ in range(5)]
        with no_files():
            answers = await asyncio.gather(*(world.ask(client, b"GET / HTTP/1.1\r\n") for client in clients))
        assert all(answer.startswith(b"HTTP/1.1 503 ") for answer in answers)
        assert all(b"The server is short of file descriptors" in answer for answer in answers)
        for client in clients:
            client.close()
        again = world.client()
        assert await world.ask(again, b"there") == b"there"
        again.close()

    run(main)
