"""TLS handshakes: they take places from accept on, and have no more time than a head."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from serving.config import ServerSettings
from serving.http_headers import Receive, Scope, Send
from serving.transport.acceptor import ConnectionAcceptor, ignore_shortage
from serving.transport.connection_limits import SLICES, ConnectionLimiter
from serving.transport.http_connection import ConnectionPhase, HttpConnection
from serving.transport.http_server import listen_tcp
from tests.asgi import read_body, send_json
from tests.bounds import HANG_SECONDS
from tests.certificates import write_certificate

PLACES, SECONDS = 20, 10
GET = b"GET /a HTTP/1.1\r\nhost: t\r\n\r\n"
# The beginning of a handshake: a record of 512 bytes is announced.
BEGUN = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Handshake:
    """A client's side of one, byte by byte."""

    def __init__(self, trusted: ssl.SSLContext, client: Client) -> None:
        self._reader, self._writer = client
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = trusted.wrap_bio(self._arrived, self._leaving, server_hostname="127.0.0.1")

    def hello(self) -> bytes:
        """What the client says first."""
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._leaving.read()

    async def finish(self) -> None:
        """Answer what the server says until it is content."""
        while True:
            self._arrived.write(await self._reader.read(1 << 16))
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self._writer.write(self._leaving.read())
            else:
                break
        self._writer.write(self._leaving.read())

    async def answer(self) -> bytes:
        """What a request is answered with."""
        self.tls.write(GET)
        self._writer.write(self._leaving.read())
        while True:
            try:
                data: bytes = self.tls.read(1 << 16)
            except ssl.SSLWantReadError:
                self._arrived.write(await self._reader.read(1 << 16))
            else:
                return data


@dataclass
class World:
    """A server that answers with the length of the body, with the time under the test's control."""

    trusted: ssl.SSLContext
    gate: ConnectionLimiter = field(
        default_factory=lambda: ConnectionLimiter(
            ServerSettings(max_connections=PLACES, header_timeout=SECONDS)
        )
    )
    state: ServerState = field(default_factory=ServerState)
    port: int = 0
    now: float = 0.0
    clients: list[Client] = field(default_factory=list)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert (scope["scheme"], scope["client"][0]) == ("https", "127.0.0.1")
        body = await read_body(scope, receive, 1 << 30)
        await send_json(send, 200, b"%d" % len(body))

    async def connect(self, *, tls: bool = True) -> Client:
        client = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trusted if tls else None)
        self.clients.append(client)
        return client

    async def silent(self, count: int) -> list[Client]:
        """Clients that have said nothing, once they have places."""
        before = self.gate.open_connections
        clients = [await self.connect(tls=False) for _ in range(count)]
        await self.until_open(before + count)
        return clients

    async def until_open(self, count: int) -> None:
        await until(lambda: self.gate.open_connections == count)

    async def passes(self, seconds: float) -> None:
        for _ in range(round(seconds * SLICES)):
            self.now += 1 / SLICES
            self.gate.check_next_slice(self.now)
        await asyncio.sleep(0)


def run(folder: Path, main: Callable[[World], Awaitable[None]]) -> None:
    """A test on an event loop of its own; at its end nothing is left in the server."""
    write_certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")

    async def bounded() -> None:
        loop = asyncio.get_running_loop()
        world = World(ssl.create_default_context(cafile=str(folder / "cert.pem")))
        config = uvicorn.Config(world.app, http="httptools", ws="none", log_config=None, interface="asgi3")
        config.load()
        with listen_tcp("127.0.0.1", 0) as listening:
            world.port = listening.getsockname()[1]

            def connect() -> HttpConnection:
                return HttpConnection(
                    world.gate, config=config, server_state=world.state, app_state={}, _loop=loop
                )

            listener = ConnectionAcceptor(
                listening,
                connect,
                make_room=lambda: None,
                on_shortage=ignore_shortage,
                begin_tls=lambda accepted: connect().begin_handshake(accepted, context),
            )
            listener.start()
            world.gate.check_next_slice(0.0)
            async with asyncio.timeout(HANG_SECONDS):
                await main(world)
                for _, writer in world.clients:
                    writer.close()
                await until(lambda: not world.gate.open_connections and not world.state.connections)
            listener.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110  the server has no event for it
        await asyncio.sleep(0.001)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def answer(client: Client, request: bytes = GET) -> bytes:
    """The answer's body."""
    reader, writer = client
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return await reader.readexactly(length)


async def end(client: Client) -> bytes:
    """What comes before the server closes the connection."""
    try:
        return await client[0].read()
    except ConnectionResetError:
        return b""


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever clients do."""
    caplog.set_level(logging.INFO)
    yield
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []


def test_requests_go_over_tls(tmp_path: Path) -> None:
    """A short one, a long one, and one after another; each connection has one place."""

    async def main(world: World) -> None:
        for number, client in enumerate([await world.connect() for _ in range(4)], 1):
            assert await answer(client) == b"0"
            long = b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: 3000000\r\n\r\n" + b"x" * 3_000_000
            assert await answer(client, long) == b"3000000"
            assert await answer(client) == b"0"
            assert world.gate.open_connections == len(world.state.connections) == 4, number

    run(tmp_path, main)


def test_silent_connections_take_places_and_give_them_back(tmp_path: Path) -> None:
    """From accept on; those beyond are closed at once, all others when a head would have to be there."""

    async def main(world: World) -> None:
        friend = await world.connect()
        silent = await world.silent(PLACES - 3)
        await world.passes(SECONDS - 1)
        assert await answer(friend) == b"0"  # others are served meanwhile, and let in while there is place
        assert await answer(await world.connect()) == b"0"
        silent += await world.silent(1)
        assert world.gate.open_connections == PLACES
        refused = [await world.connect(tls=False) for _ in range(3)]
        assert [await end(client) for client in refused] == [b"", b"", b""]
        assert world.gate.rejections == {"max_connections": 3}

        await world.passes(2)
        assert [await end(client) for client in silent[:-1]] == [b""] * (PLACES - 3)
        assert world.gate.rejections["header_timeout"] == PLACES - 3
        assert await answer(friend) == b"0"
        assert await answer(await world.connect()) == b"0"

    run(tmp_path, main)


def test_a_crowd_makes_room(tmp_path: Path) -> None:
    """Those that have been at their handshake for longest go first, as those that have been idle do."""

    async def main(world: World) -> None:
        first, *_ = await world.silent(1)
        await world.passes(2)
        await world.silent(PLACES - 2)
        await world.passes(1)
        assert await end(first) == b""
        await world.until_open(PLACES - 2)

    run(tmp_path, main)


@pytest.mark.parametrize("sent", [b"", GET, BEGUN, bytes(range(256)) * 300])
@pytest.mark.parametrize("how", ["close", "half", "reset", "stay"])
def test_what_is_no_handshake_leaves_nothing(tmp_path: Path, sent: bytes, how: str) -> None:
    """Whatever the client does then."""

    async def main(world: World) -> None:
        (first,) = await world.silent(1)
        first[1].close()
        await world.until_open(0)
        before = open_files()  # with what the event loop keeps from then on
        for client in await world.silent(PLACES // 2):
            _, writer = client
            writer.write(sent)
            if how == "close":
                writer.close()
            elif how == "half":
                writer.write_eof()
            elif how == "reset":
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
                )
                writer.transport.abort()
        hangs = how == "stay" and sent in {b"", BEGUN}
        if hangs:
            await world.passes(SECONDS + 1)
        await world.until_open(0)
        if how == "stay":
            assert world.gate.rejections == {"header_timeout" if hangs else "tls_handshake": PLACES // 2}
        for client in world.clients:
            if how != "reset":
                await end(client)
            client[1].close()
        await until(lambda: open_files() <= before)

    run(tmp_path, main)


def test_a_handshake_that_drips(tmp_path: Path) -> None:
    """Each byte gives it no more time: it is done within that of a head, or never."""

    async def main(world: World) -> None:
        (client,) = await world.silent(1)
        hello = Handshake(world.trusted, client).hello()
        for byte in hello[: SECONDS - 1]:
            client[1].write(bytes([byte]))
            await world.passes(1)
            assert world.gate.open_connections == 1
        client[1].write(hello[SECONDS - 1 : SECONDS])
        await world.passes(2)
        assert await end(client) == b""
        assert world.gate.rejections == {"header_timeout": 1}

    run(tmp_path, main)


def test_a_handshake_that_is_done_late(tmp_path: Path) -> None:
    """It is in time: the connection is like any other, with all the time of one."""

    async def main(world: World) -> None:
        (client,) = await world.silent(1)
        await world.passes(SECONDS - 1)
        handshake = Handshake(world.trusted, client)
        client[1].write(handshake.hello())
        await handshake.finish()
        (connection,) = world.state.connections
        assert isinstance(connection, HttpConnection)
        await until(lambda: connection.phase is ConnectionPhase.REQUEST)
        await world.passes(SECONDS + 1)
        assert (await handshake.answer()).startswith(b"HTTP/1.1 200")
        assert world.gate.open_connections == 1
        await world.passes(76)
        client[1].close()
        await world.until_open(0)
        assert not world.gate.rejections

    run(tmp_path, main)


def test_it_stops_while_handshakes_hang(tmp_path: Path) -> None:
    """They are given up at once, also those that have only just been accepted."""

    async def main(world: World) -> None:
        for wait in (True, False):
            silent = await world.silent(PLACES // 2)
            if wait:
                await world.passes(1)
            for connection in list(world.state.connections):
                connection.shutdown()
            assert [await end(client) for client in silent] == [b""] * (PLACES // 2)
            assert world.gate.open_connections == len(world.state.connections) == 0

    run(tmp_path, main)
