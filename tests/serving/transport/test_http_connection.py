"""Slow, rude and broken clients of a server, with the time under the test's control."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import httptools
import orjson
import pytest
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from serving.config import ServerSettings
from serving.errors import Cancelled, NotFound, ServingError
from serving.http_headers import Receive, Scope, Send, body_too_large
from serving.transport.connection_limits import SLICES, ConnectionLimiter
from serving.transport.http_connection import MAX_PIPELINED, HttpConnection
from serving.transport.request import HttpRequest
from tests.asgi import read_body, send_error, send_json
from tests.certificates import write_certificate
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
        async with asyncio.timeout(10):
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

    by_exchanges: ClassVar[bool]
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

    # The same as a handler of exchanges.

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
            handler = world if world.by_exchanges else None
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
            async with asyncio.timeout(20):
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


@pytest.fixture(autouse=True, params=["application", "exchanges"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients see no difference between what an application answers and what a handler of exchanges does."""
    monkeypatch.setattr(World, "by_exchanges", request.param == "exchanges", raising=False)


@pytest.fixture(params=["plain", "tls"])
def wire(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What is sent over TLS is limited like all else."""
    if request.param == "tls":
        folder = tmp_path_factory.mktemp("tls")
        write_certificate(folder)
        monkeypatch.setattr(World, "certificate", folder)


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A client cannot make the server complain."""
    yield
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = (b"POST " + path + b" HTTP/1.1", b"host: t", b"content-length: %d" % len(body), *headers)
    return b"\r\n".join([*lines, b"", body])


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
        count = 600 if world.by_exchanges else MAX_PIPELINED + 1  # an application answers none at once
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


# ---- slow clients


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


# ---- too much


def test_connections_over_the_limit_are_told_so() -> None:
    """503 at once; idle ones make room within a second."""

    async def main(world: World) -> None:
        idle = [await world.connect() for _ in range(8)]
        answer = await (await world.connect()).answer()
        assert answer.status == 503
        assert answer.headers[b"retry-after"] == b"1"
        assert answer.message == "Too many connections are open (setting max_connections = 8)."
        await world.passes(1)
        assert await idle[0].ended()
        assert not await idle[1].ended()
        assert (await (await world.sent(GOOD)).answer()).status == 200

    run(main)


def test_the_slowest_of_too_many_bodies_is_refused() -> None:
    """So that the others find room, in whatever order they come."""

    async def main(world: World) -> None:
        half = post(b"/a", b"x" * 400_000)[:-150_000]
        first = await world.sent(half)
        await world.passes(2)
        second = await world.sent(half)
        await settle()
        third = await world.sent(half)
        answer = await first.answer()
        assert answer.status == 503
        assert "setting arriving_bytes = 700000" in answer.message
        for client in (second, third):
            client.send(b"x" * 150_000)
            assert (await client.answer()).body == b"/a 400000"
        assert world.gate.arriving_bytes == 0

    run(main)


def test_whole_requests_that_wait_behind_others_count_too() -> None:
    """The connection on which they have waited longest answers what it has begun, and ends."""

    async def main(world: World) -> None:
        body = b"x" * 60_000
        first = await world.sent(post(b"/wait", b"") + post(b"/a", body) * 5)
        await world.passes(2)
        others = [await world.sent(post(b"/wait", b"") + post(b"/a", body) * 4) for _ in range(2)]
        assert world.gate.rejections["arriving_bytes"] == 1
        world.gates["/wait"].set()
        assert [answer.body for answer in await first.answers(99)] == [b"/wait 0"]
        for other in others:
            assert [answer.body for answer in await other.answers(5)] == [b"/wait 0", *[b"/a 60000"] * 4]

    run(main)


def test_heads_that_wait_behind_others_count_too() -> None:
    """They may be as long as bodies."""

    async def main(world: World) -> None:
        long = b"GET /a HTTP/1.1\r\nhost: t\r\nx-long: " + b"x" * 1900 + b"\r\n\r\n"
        clients = [await world.sent(post(b"/wait", b"") + long * 15) for _ in range(4)]
        assert world.gate.rejections["arriving_bytes"] == 1
        world.gates["/wait"].set()
        assert len(await clients[0].answers(99)) == 1
        for client in clients[1:]:
            assert len(await client.answers(16)) == 16

    run(main, replace(SETTINGS, arriving_bytes=100_000))


def test_bodies_that_the_application_works_on_count_too(kind: None) -> None:
    """Until they are answered; what a handler of exchanges works on, it counts itself."""

    async def main(world: World) -> None:
        works = [await world.sent(post(b"/wait", b"x" * 300_000)) for _ in range(2)]
        late = await world.sent(post(b"/a", b"x" * 300_000))
        answer = await late.answer()
        if world.by_exchanges:
            assert answer.status == 200
        else:
            assert answer.status == 503
            assert "setting arriving_bytes = 700000" in answer.message
        world.gates["/wait"].set()
        for client in works:
            assert (await client.answer()).body == b"/wait 300000"
        assert world.gate.arriving_bytes == 0
        assert (await (await world.sent(post(b"/a", b"x" * 300_000))).answer()).status == 200

    run(main)


@pytest.mark.parametrize("told", [True, False], ids=["told beforehand", "chunked"])
def test_the_rest_of_a_refused_body_is_not_kept(told: bool) -> None:
    """413 at once; what still comes is dropped, for a while."""

    async def main(world: World) -> None:
        client = await world.connect()
        if told:
            client.send(b"POST /a HTTP/1.1\r\nhost: t\r\ncontent-length: 90000000\r\n\r\nabc")
        else:
            client.send(
                b"POST /a HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(1_000_001)
            )
        assert (await client.answer()).status == 413
        for _ in range(28):
            client.send(b"x" * 3000 if told else chunk(3000))
            await world.passes(1)
        assert world.gate.arriving_bytes == 0
        assert not await client.ended()
        await world.passes(4)
        assert await client.ended()

    run(main)


def chunk(size: int) -> bytes:
    return b"%x\r\n%b\r\n" % (size, b"x" * size)


def test_a_connection_survives_an_early_answer() -> None:
    """The body that comes after it is dropped, and the next request is answered."""

    async def main(world: World) -> None:
        client = await world.sent(post(b"/early", b"x" * 300_000)[:-200_000])
        assert (await client.answer()).status == 404
        client.send(b"x" * 200_000 + GOOD)
        assert (await client.answer()).body == b"/a 0"

    run(main)


@pytest.mark.parametrize(
    "data",
    [
        b"GET /a HTTP/1.1\r\nhost: t\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(300)) + b"\r\n",
        b"GET /a HTTP/1.1\r\nhost: t\r\nx: " + b"y" * 300_000,
        b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: " + b"y" * 600_000,
    ],
    ids=["many headers", "a long header", "a long path", "a long trailer"],
)
def test_a_head_over_the_limit_is_answered_with_431(data: bytes) -> None:
    """It names the setting."""

    async def main(world: World) -> None:
        answer = await (await world.sent(data)).answer()
        assert answer.status == 431
        assert answer.message == "The head of the request is over 2048 bytes (setting max_header_bytes)."

    run(main)


# ---- broken HTTP


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


# ---- exchanges alone


def test_answers_that_nobody_reads_are_not_added_to(kind: None, wire: None) -> None:
    """The next request is begun when the client has read most of what it was sent."""
    if not World.by_exchanges:
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
    if not World.by_exchanges:
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
