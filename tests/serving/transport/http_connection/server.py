"""A server with the time under the test's control, and its clients."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import httptools
import orjson
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from serving.config import ServerSettings
from serving.errors import Cancelled, NotFound, ServingError
from serving.http_headers import Receive, Scope, Send, body_too_large
from serving.transport.connection_limits import SLICES, ConnectionLimiter
from serving.transport.http_connection import HttpConnection
from serving.transport.request import HttpRequest
from tests.asgi import read_body, send_error, send_json
from tests.bounds import HANG_SECONDS
from tests.garbage import nothing_for_the_collector

SETTINGS = ServerSettings(
    header_timeout=10,
    body_timeout=20,
    answer_timeout=30,
    min_bytes_per_second=10,
    keep_alive_timeout=60,
    max_header_bytes=2048,
    max_connections=8,
    arriving_bytes=700_000,
    unsent_bytes=90_000_000,
)
# Of answers, beside what they say. No buffer on the way holds them.
_LENGTHS = {"/large": 40_000_000, "/long": 12_000_000}
GOOD = b"GET /a HTTP/1.1\r\nhost: t\r\n\r\n"
POSTED = b"POST /a HTTP/1.1\r\nhost: t\r\n"


@dataclass
class Answer:
    """What a client got."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def message(self) -> str:
        error: dict[str, Any] = orjson.loads(self.body)["error"]
        assert error["code"] == self.status
        text: str = error["message"]
        return text


class Parser:
    """Takes answers apart."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body = b""

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 100:
            self.answers.append(Answer(status, self._headers, self._body))
        self._headers, self._body = {}, b""


class Client:
    """A socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._parser = Parser()
        self.closed = False

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answers(self, count: int) -> list[Answer]:
        """As many answers, or those that came before the end."""
        async with asyncio.timeout(HANG_SECONDS):
            while len(self._parser.answers) < count and not self.closed:
                try:
                    data = await self.reader.read(1 << 20)
                except ConnectionResetError:
                    data = b""
                self.closed = not data
                if data:
                    self._parser.feed(data)
        return self._parser.answers

    async def answer(self) -> Answer:
        answers = await self.answers(1)
        assert answers, "the connection was closed without an answer"
        return answers.pop(0)

    async def ended(self) -> bool:
        """Whether the server has closed the connection, or does so at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                while not self.closed:
                    await self.answers(99)
        return self.closed


@dataclass
class World:
    """A server whose application says the path and the length of the body, unless told to wait."""

    by_handler: ClassVar[bool]
    certificate: ClassVar[Path | None] = None  # a folder with one

    settings: ServerSettings
    gate: ConnectionLimiter = field(init=False)
    port: int = 0
    now: float = 0.0
    bodies: list[int] = field(default_factory=list)
    gone: int = 0
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    scopes: list[Scope] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = ConnectionLimiter(self.settings)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        try:
            if scope["path"] == "/early":
                raise NotFound("There is no such thing.")
            body = await read_body(scope, receive, 1_000_000)
            self.bodies.append(len(body))
            if scope["path"].startswith("/wait"):
                await self.wait(scope["path"], receive)
            size = _LENGTHS.get(scope["path"], 0)
            await send_json(send, 200, b"%b %d" % (scope["path"].encode(), len(body)) + b" " * size)
        except Cancelled:
            self.gone += 1
        except ServingError as error:
            await send_error(send, error)

    async def wait(self, path: str, receive: Receive) -> None:
        opened = asyncio.ensure_future(self.gates.setdefault(path, asyncio.Event()).wait())
        gone = asyncio.ensure_future(receive())
        await asyncio.wait((opened, gone), return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        gone.cancel()
        if not opened.done() or opened.cancelled():
            raise Cancelled("gone")

    # The same as a handler of predictions.

    max_body_bytes = 1_000_000

    def can_handle(self, method: str, path: str) -> bool:
        return True

    def on_request_error(self, exchange: HttpRequest, error: ServingError) -> None:
        exchange.respond_error(error)

    def on_request_head(self, exchange: HttpRequest) -> None:
        self.scopes.append(exchange.scope)
        exchange.on_disconnect = self.left
        path = exchange.head.path
        if path == "/early":
            exchange.respond_error(NotFound("There is no such thing."))
        elif exchange.head.length > self.max_body_bytes:
            exchange.respond_error(body_too_large(self.max_body_bytes))

    def on_request_complete(self, exchange: HttpRequest) -> None:
        path, size = exchange.head.path, len(exchange.body)
        if size > self.max_body_bytes:
            exchange.respond_error(body_too_large(self.max_body_bytes))
            return
        self.bodies.append(size)
        body = b"%b %d" % (path.encode(), size) + b" " * (_LENGTHS.get(path, 0))
        if path.startswith("/wait"):
            opened = asyncio.ensure_future(self.gates.setdefault(path, asyncio.Event()).wait())
            opened.add_done_callback(lambda _: exchange.respond(200, body))
        elif path == "/now":
            exchange.respond(200, body)
        else:
            asyncio.get_running_loop().call_soon(exchange.respond, 200, body)

    def left(self) -> None:
        self.gone += 1

    async def connect(self) -> Client:
        context = None
        if self.certificate is not None:
            context = ssl.create_default_context(cafile=self.certificate / "cert.pem")
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, ssl=context))
        self.clients.append(client)
        await settle()
        return client

    async def sent(self, data: bytes) -> Client:
        """A client that has sent this."""
        client = await self.connect()
        client.send(data)
        await settle()
        return client

    async def passes(self, seconds: float) -> None:
        """Let time pass, as the server sees it."""
        await settle()
        for _ in range(round(seconds * SLICES)):
            self.now += 1 / SLICES
            self.gate.check_next_slice(self.now)
        await settle()


async def settle() -> None:
    """Let all that was sent arrive."""
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.002)


def run(main: Callable[[World], Awaitable[None]], settings: ServerSettings = SETTINGS) -> None:
    """A test on an event loop of its own; at its end nothing is left in the server."""

    async def bounded() -> None:
        loop = asyncio.get_running_loop()
        world = World(settings)
        config = uvicorn.Config(world.app, http="httptools", ws="none", log_config=None, interface="asgi3")
        config.load()
        state = ServerState()

        def make() -> HttpConnection:
            handler = world if world.by_handler else None
            return HttpConnection(
                world.gate, handler, config=config, server_state=state, app_state={}, _loop=loop
            )

        context = None
        if World.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(World.certificate / "cert.pem", World.certificate / "key.pem")
        server = await loop.create_server(make, "127.0.0.1", 0, ssl=context)
        world.port = server.sockets[0].getsockname()[1]
        world.gate.check_next_slice(0.0)
        try:
            async with asyncio.timeout(HANG_SECONDS):
                await main(world)
        finally:
            for client in world.clients:
                client.writer.close()
            for gate in world.gates.values():
                gate.set()
            await settle()
            await settle()
            left = list(state.connections)
            for connection in left:
                connection.transport.abort()
            await settle()
            server.close()
        assert left == []
        assert world.gate.open_connections == 0
        assert world.gate.arriving_bytes == 0
        assert world.gate.unsent_bytes == 0
        assert not state.tasks

    with nothing_for_the_collector(HttpConnection, HttpRequest, RequestResponseCycle) as check:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded())
        check()


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = (b"POST " + path + b" HTTP/1.1", b"host: t", b"content-length: %d" % len(body), *headers)
    return b"\r\n".join([*lines, b"", body])
