"""Connections of clients: HTTP/1.1 as uvicorn has it, and nothing but a socket for those that are slow."""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
import math
import socket
import ssl
import urllib.parse
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from serving.config import FrontSettings
from serving.content_encoding import Unpacking
from serving.errors import (
    ClientTooSlow,
    HeadTooLarge,
    Internal,
    InvalidArgument,
    ServingError,
    Unavailable,
    Unimplemented,
)
from serving.exchange import Exchange, Handler
from serving.gate import Gate
from serving.heads import Head
from serving.tls_transport import TlsTransport
from serving.wire import LENGTH, raw_answer

logger = logging.getLogger(__name__)

# Requests that a client may send ahead; those beyond are not read, and the connection closes after them.
MAX_PIPELINED = 16
# Seconds for which the rest of a request is read and dropped, so that the client gets to see its answer.
_REFUSED_FOR, _DISCARD_FOR = 2.0, 30.0
# A client has so many times `answer_timeout` to read an answer, however long that is.
_ANSWER_TIMEOUTS = 10
# Per header beside its name and value, and per request: what stands between and around them.
_HEADER_EXTRA, _LINE_EXTRA = 4, 20

_HEEDED = frozenset(
    {
        b"host", b"origin", b"sec-fetch-site", b"expect", b"transfer-encoding", b"content-length", b"upgrade",
    }
)  # fmt: skip
_VERSIONS = frozenset({"1.0", "1.1"})
_CONNECT, _OPTIONS = b"CONNECT", b"OPTIONS"
# Paths of which is remembered where they lead, and the longest of them in bytes.
_PATHS, _LONGEST_PATH = 1024, 512

Cycle = RequestResponseCycle | Exchange


class Phase(enum.Enum):
    """What is awaited from the client."""

    HANDSHAKE = enum.auto()  # of TLS
    REQUEST = enum.auto()  # the first byte of the next one
    HEAD = enum.auto()
    BODY = enum.auto()
    CLOSE = enum.auto()  # nothing: it was refused, or is to close after the answers that it waits for


HANDSHAKE, REQUEST, HEAD, BODY, CLOSE = Phase  # looked up for every header


class Connection(HttpToolsProtocol):
    """One connection of a client.

    Predictions are a `handler`'s, if there is one, and all else is the application's. `since` is when it came
    into its `phase` on the gate's clock, `begun` when its body began, `held` the bytes that are in memory of
    requests which nobody else counts: those that are not whole, those that wait behind others, and the bodies
    that the application works on.
    """

    cycle: Any  # the newest `Cycle`
    pipeline: Any  # of those behind the one that runs: (Cycle, the application)

    def __init__(self, gate: Gate, handler: Handler | None = None, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._gate = gate
        self._handles = handler is not None
        if handler is not None:
            self._exchanges, self._most_body = handler, handler.max_body_bytes
        self._slice: int | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._tls: TlsTransport | None = None
        self._running: Cycle | None = None
        self._length = 0  # of the body, if it was told
        self._raw = b""  # what may be the head of the request, if it came by itself
        self._host: bytes | None = None
        self._origin: bytes | None = None
        self._fetch_site: bytes | None = None
        self.phase = REQUEST
        self.since = self.begun = gate.now
        self.held = 0
        self._held: dict[Cycle, int] = {}
        self._head = 0  # bytes of the head, or of what follows the last chunk, in data that did not end it
        self._chunk = 0  # bytes of the data being parsed
        self._moved = 0  # bytes of the body so far
        self._window = 0  # of these, before `since`
        self.unsent = 0  # bytes of answers that the client had not read when they were last counted
        self._dropped = False  # and that it is not to get any more
        self._unsent = 0  # the same at `_unsent_since`, with what has been sent after that
        self._unsent_since = 0.0
        self._answer = 0  # bytes of answers that it is reading since `_answer_since`
        self._answer_since = 0.0
        self._problem: ServingError | None = None
        self._upgrading = False

    @property
    def working(self) -> bool:
        """Whether a request is being answered that is whole."""
        running = self._running
        return running is not None and not running.response_complete and not running.more_body

    @property
    def idle(self) -> bool:
        """Whether the connection would not be missed."""
        if self.phase is HANDSHAKE:
            return True
        return self.phase is REQUEST and not self.working and not self.transport.get_write_buffer_size()

    # ---- TLS

    def begin_handshake(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        """Take a place, and have the client begin with TLS; without a place the socket is closed."""
        self._slice = self._gate.admit(self)
        if self._slice is None:
            accepted.close()
            return
        self.phase, self.since = HANDSHAKE, self._gate.now
        self.connections.add(self)
        self._handshake = self.loop.create_task(self._shake_hands(accepted, tls), name="handshake")
        self._handshake.add_done_callback(functools.partial(self._end_handshake, accepted))

    async def _shake_hands(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            await self.loop.connect_accepted_socket(
                lambda: self,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=math.inf,  # `look` keeps the time
            )
        except ssl.SSLError:
            self._gate.refused["tls_handshake"] += 1
        except OSError:
            pass  # the client has left

    def _end_handshake(self, accepted: socket.socket, _: asyncio.Task[None]) -> None:
        self._handshake = None
        if self.phase is HANDSHAKE and self._slice is not None:  # it failed, or was given up
            accepted.close()
            self.connections.discard(self)
            self._gate.leave(self, self._slice)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it in, or tell that there is no place; after a handshake it has one."""
        if transport.get_extra_info("ssl_object") is not None:
            self._tls = TlsTransport(transport)
            transport = cast(asyncio.Transport, self._tls)
        if self.phase is HANDSHAKE:
            self.phase, self.since = REQUEST, self._gate.now
            super().connection_made(transport)
            return
        self._slice = self._gate.admit(self)
        if self._slice is None:
            self.transport = transport
            self.phase = CLOSE
            limit = self._gate.most_connections
            error = Unavailable(
                f"Too many connections are open (setting max_connections = {limit}).", retry_after=1
            )
            transport.write(raw_answer(error))
            transport.close()
        else:
            super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being answered: it may be an earlier one than the newest."""
        if self._slice is None:
            self.parser = None  # type: ignore[assignment]
            return
        self._gate.leave(self, self._slice)
        self._gate.count_unsent(-self.unsent)
        self.unsent = 0
        self._release_all()
        self._abandon(self._running)
        self.pipeline.clear()
        if isinstance(self.cycle, Exchange):
            self.cycle = None
        super().connection_lost(exc)
        self.cycle = self._running = self._tls = None

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self.phase is CLOSE:
            return
        if self._handles and self.phase is REQUEST:
            end = data.find(b"\r\n\r\n") + 4
            self._raw = raw = data[:end]
            head = self._gate.heads.get(raw)
            # An answered request is forgotten: then there is none.
            is_free = self.cycle is None and not self.flow.write_paused
            if head is not None and is_free and len(data) - end == head.length:
                self._take(head, data[end:])
                return
        self._chunk, moved = len(data), self._moved
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._cannot_parse(error)
            return
        if self.phase is HEAD or self.phase is BODY:
            self._head = self._head + len(data) if moved == self._moved else 0
            if self._head > self._gate.most_head:
                self.refuse("max_header_bytes", self._head_too_large())

    def _parse(self, data: bytes) -> None:
        """Feed the parser, which stops at each request that asks for another protocol."""
        rest: bytes | memoryview = data
        end = self._feed(rest)
        while end is not None and self.phase is not CLOSE:
            rest = memoryview(rest)[end:]
            self._raw = b""
            head = self._head_without_upgrade()
            # Another parser: one that has read `Connection: close` reads no head after that.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self._feed(head)
            end = self._feed(rest)

    def _feed(self, data: bytes | memoryview) -> int | None:
        """Feed the parser; returns where it stopped, None if it read all."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            end: int = upgrade.args[0]
            return end
        return None

    # ---- callbacks of the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._head = self._moved = self._window = self._length = 0
        self._problem, self._upgrading = None, False
        self._host = self._origin = self._fetch_site = None
        if self.phase is not CLOSE:
            self.phase, self.since = HEAD, self._gate.now

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header, and what those say that concern the connection; what follows a body is dropped."""
        if self.phase is not HEAD:
            return
        name = name.lower()
        self.headers.append((name, value))
        if name in _HEEDED:
            self._heed(name, value)

    def on_headers_complete(self) -> None:
        """Begin with the request, or queue it behind those before it."""
        if self.phase is CLOSE:
            return
        if self._head + self._chunk > self._gate.most_head and self._head_size() > self._gate.most_head:
            raise self._head_too_large()
        version, method = self.parser.get_http_version(), self.parser.get_method()
        if version not in _VERSIONS:
            raise InvalidArgument(f"HTTP/{version} is not spoken here: send the request as HTTP/1.1.")
        if self._problem is not None:
            raise self._problem
        if self._host is None and version == "1.1":
            raise InvalidArgument("The request has no Host header: HTTP/1.1 asks for one.")
        if self._upgrading and method != _CONNECT and self.parser.should_upgrade():
            return  # its head is read again, without that
        if len(self.pipeline) >= MAX_PIPELINED:
            self._end_after_those_before()
            return
        # Before it begins: it may be answered at once.
        self.phase, self.since = BODY, self._gate.now
        self.begun = self.since
        self._head = self._unsent = 0  # who asks again has read the answers before
        if method == _CONNECT:
            self._begin_exchange("", _no_tunnel())
            self.phase = CLOSE  # what follows would be for the other end of the tunnel
            return
        cross_origin = self._gate.cross_origin
        refusal = cross_origin.check(self._host, self._origin, self._fetch_site)
        if refusal is not None:
            self._gate.refused["cross_origin"] += 1
            self._begin_exchange(self._path(), refusal)
        elif not self._handles or (method == _OPTIONS and self._origin in cross_origin.origins):
            self._begin_call()  # the application answers preflights, for all paths
        elif self._exchanges.takes(method.decode(), path := self._path()):
            self._begin_exchange(path)
        else:
            self._begin_call()

    def on_body(self, body: bytes) -> None:
        """More of a body has come."""
        if self.phase is CLOSE:
            return
        size = len(body)
        self._moved += size
        if self.cycle.response_complete:
            return
        self._hold(size)
        if self.phase is CLOSE:  # it was for this that there was no room
            return
        if isinstance(self.cycle, Exchange):
            self._take_in(self.cycle, body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self.phase is not BODY:
            return
        cycle = self.cycle
        if self.expect_100_continue and not cycle.response_started:
            cycle.keep_alive = self._keeps_alive()
        self.phase, self.since = REQUEST, self._gate.now
        # What follows in the same data has another head; an idle connection has none.
        self._raw, self.url, self.headers = b"", b"", []
        self.scope = None  # type: ignore[assignment]
        if not isinstance(cycle, Exchange):
            super().on_message_complete()
        elif not cycle.response_complete:
            cycle.more_body = False
            if cycle is self._running:
                self._complete(cycle)
        self._forget_answered()

    # ---- callbacks of uvicorn

    def shutdown(self) -> None:
        """Close the connection once the request that it is at is answered."""
        if self.phase is not HANDSHAKE:
            super().shutdown()
        elif self._handshake is not None:
            self._handshake.cancel()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Go on with the next request, if it is there already."""
        self.server_state.total_requests += 1
        if self.held and self._running is not None:
            self._release(self._running)
        if self.phase is not BODY:
            self._forget_answered()
        if self.transport.is_closing():
            return
        self.since = self.begun = self._gate.now
        flow = self.flow
        if not flow.write_paused and (flow.read_paused or self.pipeline):
            self._go_on()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent."""
        if self._tls is not None:
            self._tls.paused = True
        super().pause_writing()
        self._count_unsent()

    def resume_writing(self) -> None:
        """The client has read most of what it was sent."""
        if self._tls is not None and not self._tls.go_on():
            return
        super().resume_writing()
        self._count_unsent()
        if self._running is None or self._running.response_complete:
            self._go_on()

    def _go_on(self) -> None:
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            if isinstance(cycle, Exchange):
                self._start(cycle)
            else:
                self._start_asgi_task(cycle, app)

    def _forget_answered(self) -> None:
        """Hold nothing of the newest request once it is whole and answered."""
        newest = self.cycle
        if newest is not None and newest.response_complete and self.phase is not BODY:
            self.cycle = self._running = None

    def _begin_call(self) -> None:
        """Have the application answer a request, once those before it are."""
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,  # type: ignore[typeddict-item]
            "root_path": self.root_path,
            "headers": self.headers,
            "state": self.app_state.copy(),
        }
        if self._length:
            self.scope[LENGTH] = self._length  # type: ignore[literal-required]
        super().on_headers_complete()
        if self.expect_100_continue:
            # Who is answered before the body may leave it out, and then no one knows where the next begins.
            self.cycle.keep_alive = False
        if self.cycle is not self._running:
            self._hold(self._head_size())

    # ---- exchanges

    def _begin_exchange(self, path: str, refusal: ServingError | None = None) -> None:
        """Have the handler answer a request, once those before it are and the client has read that.

        With a `refusal` it is answered with that instead.
        """
        if self.transport.is_closing():
            self.phase = CLOSE  # the one before was the last
            return
        parser, expects = self.parser, self.expect_100_continue
        method, version = parser.get_method().decode(), parser.get_http_version()
        head = Head(
            method,
            path,
            self.headers,
            length=self._length,
            version=version,
            refusal=refusal,
            answer_headers=self._gate.cross_origin.answer_headers(self._origin),
        )
        keep_alive = not expects and self._keeps_alive()
        if keep_alive and self._length and self._raw and refusal is None:
            self._gate.heads.keep(self._raw, head)
        exchange = Exchange(head, self, client=self.client, keep_alive=keep_alive)
        exchange.waiting_for_100_continue = expects
        free, self.cycle = self._free, exchange
        if free:
            self._start(exchange)
        else:
            self.pipeline.appendleft((exchange, None))
            if self.flow.write_paused:
                self.flow.pause_reading()
            self._hold(self._head_size())

    def _take(self, head: Head, body: bytes) -> None:
        """Have the handler answer a request that has come whole, with a head that is known."""
        exchange = self.cycle = Exchange(head, self, client=self.client)
        exchange.body, exchange.more_body = body, False
        self.since = self.begun = self._gate.now
        self._unsent = 0
        self._start(exchange)

    @property
    def _free(self) -> bool:
        """Whether the next request can begin: all before it are answered, and read by the client."""
        newest = self.cycle
        return (newest is None or newest.response_complete) and not self.flow.write_paused

    def _start(self, exchange: Exchange) -> None:
        """It is the exchange's turn."""
        self._running = exchange
        if exchange.head.refusal is not None:
            if self._handles:
                self._exchanges.refuse(exchange, exchange.head.refusal)
            else:
                exchange.refuse(exchange.head.refusal)
            return
        try:
            self._exchanges.begin(exchange)
        except Exception:
            self._fail(exchange)
        if exchange.response_complete:
            return
        if not exchange.more_body or self._moved > self._most_body:
            self._complete(exchange)
        elif exchange.waiting_for_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _take_in(self, exchange: Exchange, body: bytes) -> None:
        """More of the body of an exchange."""
        if exchange.response_complete:
            return
        if exchange.parts is not None:
            exchange.parts.append(body)
        elif exchange.body:
            exchange.parts = [exchange.body, body]
        else:
            exchange.body = body
        if exchange is self._running:
            if self._moved > self._most_body:
                self._complete(exchange)
        elif self._moved > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def _complete(self, exchange: Exchange) -> None:
        """The handler can answer it."""
        if exchange.parts is not None:
            exchange.body, exchange.parts = b"".join(exchange.parts), None
        if exchange.head.encoding and 0 < len(exchange.body) <= self._most_body:
            self._unpack(exchange)
        else:
            self._hand_over(exchange)

    def _hand_over(self, exchange: Exchange) -> None:
        if self.held:
            self._release(exchange)
        try:
            self._exchanges.complete(exchange)
        except Exception:
            self._fail(exchange)

    def _unpack(self, exchange: Exchange) -> None:
        """Unpack the body of an exchange before it is handed over: now, or in turns of the event loop."""
        try:
            unpacking = Unpacking(exchange.head.encoding, exchange.body, self._most_body)
        except ServingError as error:
            self._exchanges.refuse(exchange, error)
            return
        uncounted = len(exchange.body) - self._held.get(exchange, 0)
        if not self._unpack_some(exchange, unpacking, uncounted):
            self._gate.unpacking.add(functools.partial(self._unpack_some, exchange, unpacking))

    def _unpack_some(self, exchange: Exchange, unpacking: Unpacking, uncounted: int = 0) -> bool:
        """Whether the exchange is handed over, refused or left. `uncounted` are bytes to count besides."""
        if exchange.response_complete:
            return True
        before = unpacking.size
        try:
            is_whole = unpacking.step()
            if not is_whole:
                self._hold_unpacked(exchange, unpacking.size - before + uncounted)
                return False
            exchange.body = unpacking.body
        except ServingError as error:
            self._release(exchange)
            self._exchanges.refuse(exchange, error)
        except Exception:
            self._fail(exchange)
        else:
            self._hand_over(exchange)
        return True

    def _hold_unpacked(self, exchange: Exchange, size: int) -> None:
        """Count bytes of a body that is being unpacked. Raises Unavailable if there is no room."""
        gate = self._gate
        self._held[exchange] = self._held.get(exchange, 0) + size
        self.held += size
        gate.arrived(size)
        if gate.is_full and gate.arriving > self.held:
            raise gate.no_room("there is no room to unpack this one")

    def _fail(self, exchange: Exchange) -> None:
        logger.exception("a request could not be answered")
        exchange.refuse(Internal("Internal error encountered."))

    def _keeps_alive(self) -> bool:
        parser = self.parser
        lasting = parser.get_http_version() != "1.0" and parser.get_method() != _CONNECT
        return lasting and bool(parser.should_keep_alive())

    def _path(self) -> str:
        """Where the request goes."""
        return (_parsed if len(self.url) <= _LONGEST_PATH else _parse)(self.url)

    # ---- keeping to the time

    def look(self, now: float) -> None:
        """End the connection if its client does not keep to the time."""
        settings = self._gate.settings
        if self.phase is HANDSHAKE:
            if now - self.since >= settings.header_timeout:
                self._gate.refused["header_timeout"] += 1
                self.shutdown()
        elif self._reads_too_slowly(now):
            self._gate.refused["answer_timeout"] += 1
            self.transport.abort()
        elif self.transport.is_closing():
            pass  # until what is unsent is read
        elif self.working or self.pipeline or (self.phase is BODY and self.flow.read_paused):
            # Not the client's time. Its next request, if any of it is there, gets all of its own.
            self.since, self._window = now, self._moved
        elif self.phase is CLOSE:
            if now - self.since >= _REFUSED_FOR:
                self.transport.abort()
        elif self.phase is REQUEST:
            if now - self.since >= settings.keep_alive_timeout:
                self.transport.close()
        elif self.phase is HEAD:
            if now - self.since >= settings.header_timeout:
                self.refuse(
                    "header_timeout",
                    ClientTooSlow(
                        "The head of the request was not there within "
                        f"{settings.header_timeout:g} s (setting header_timeout)."
                    ),
                )
        else:
            self._look_at_body(now)

    def _look_at_body(self, now: float) -> None:
        settings = self._gate.settings
        if self.cycle.response_complete and now - self.begun >= _DISCARD_FOR:
            self.transport.abort()
        elif (seconds := now - self.since) >= settings.body_timeout:
            if self._moved - self._window < _least(seconds, settings):
                self.refuse(
                    "body_timeout",
                    ClientTooSlow(
                        f"The body came too slowly: {settings.body_timeout:g} s (setting body_timeout) at "
                        f"less than {settings.min_bytes_per_second} bytes/s (setting min_bytes_per_second)."
                    ),
                )
            else:
                self.since, self._window = now, self._moved

    def _reads_too_slowly(self, now: float) -> bool:
        self._count_unsent()
        settings, seconds = self._gate.settings, now - self._unsent_since
        if not self.unsent or seconds < settings.answer_timeout:
            return False
        read, self._unsent, self._unsent_since = self._unsent - self.unsent, self.unsent, now
        share = self._answer * seconds / settings.answer_timeout / _ANSWER_TIMEOUTS
        return read < max(share, _least(seconds, settings))

    def _count_unsent(self) -> None:
        if self._dropped:
            return
        before, self.unsent = self.unsent, self.transport.get_write_buffer_size()
        more = self.unsent - before
        if not self.unsent or not self._unsent:
            self._unsent = self._answer = self.unsent
            self._unsent_since = self._answer_since = self._gate.now
        elif more > 0:
            self._unsent += more
            self._answer += more
        self._gate.count_unsent(more)

    @property
    def reading_pace(self) -> tuple[float, float]:
        """Bytes per second at which the client reads, and since when; nobody is slow in the first second."""
        seconds = self._gate.now - self._answer_since
        pace = (self._answer - self.unsent) / seconds if seconds >= 1 else math.inf
        return pace, self._answer_since

    def drop_answers(self) -> None:
        """Close the connection, with all that its client has not read."""
        self._gate.refused["unsent_bytes"] += 1
        self._gate.count_unsent(-self.unsent)
        self.unsent, self._dropped = 0, True
        self.loop.call_soon(self.transport.abort)  # not within a write of its own

    # ---- refusing

    def refuse(self, why: str, error: ServingError) -> None:
        """Answer with an error, if that is possible, and close once the client has had time to see it.

        `why` is the setting that was not kept to, or a word.
        """
        self._gate.refused[why] += 1
        self._problem = None  # it has come through frames that hold the connection
        if self._earlier():
            self._end_after_those_before()
            return
        cycle = self.cycle if self.phase is BODY else None
        self.phase, self.since = CLOSE, self._gate.now
        self._release_all()
        if self.transport.is_closing():
            return
        if cycle is not None and cycle.response_started:
            self.transport.close()
        else:
            self.transport.write(raw_answer(error))
            self._say_no_more()
        self._abandon(cycle)

    def _say_no_more(self) -> None:
        """Close our side alone, where that can be: a reset would overtake the answer."""
        if self.transport.can_write_eof():
            self.flow.resume_reading()
            self.transport.write_eof()
        else:
            self.transport.close()

    def _cannot_parse(self, error: httptools.HttpParserError) -> None:
        """What came is no request, or none that is taken."""
        if self.phase is CLOSE:
            return
        cause = error if error.__context__ is None else error.__context__
        if isinstance(cause, HeadTooLarge):
            self.refuse("max_header_bytes", cause)
        elif isinstance(cause, InvalidArgument):
            self.refuse("syntax", cause)
        elif isinstance(cause, ServingError):
            self.refuse("encoding", cause)
        else:
            told = str(cause) if isinstance(cause, httptools.HttpParserError) else ""
            self.refuse("syntax", InvalidArgument(f"This is not HTTP/1.1: {told or 'it cannot be read'}."))

    def _earlier(self) -> bool:
        """Whether a request before the one that is being read is still to be answered."""
        running = self._running
        if running is None or running.response_complete:
            return False
        return self.phase is not BODY or running is not self.cycle

    def _end_after_those_before(self) -> None:
        """Answer the requests that are whole, then close; what else was sent is not looked at."""
        waiting = self.pipeline
        if self.phase is BODY:
            self._release(self.cycle)
            if waiting:
                waiting.popleft()
        last = waiting[0][0] if waiting else self._running
        if last is not None:
            last.keep_alive = False
        self.phase, self.since = CLOSE, self._gate.now

    def _abandon(self, cycle: Cycle | None) -> None:
        """Tell who answers that the client is gone."""
        if isinstance(cycle, Exchange):
            cycle.leave()
        elif cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    # ---- memory

    @property
    def spare(self) -> int:
        """Bytes that would be free if it did nothing but answer the request that is being answered."""
        running = self._running
        if running is None or running.more_body:
            return self.held
        return self.held - self._held.get(running, 0)

    def make_room(self, error: ServingError) -> None:
        """Drop what has not begun; clients send it again. `error` is for the first if none is answered."""
        for cycle, _ in self.pipeline:
            self._release(cycle)
        self.pipeline.clear()
        self.refuse("arriving_bytes", error)

    def _hold(self, size: int) -> None:
        """So much more of the newest request is in memory."""
        self._held[self.cycle] = self._held.get(self.cycle, 0) + size
        self.held += size
        self._gate.arrived(size)

    def _release(self, cycle: Cycle) -> None:
        """A request is not counted here any more."""
        size = self._held.pop(cycle, 0)
        self.held -= size
        self._gate.arriving -= size

    def _release_all(self) -> None:
        self._gate.arriving -= self.held
        self.held = 0
        self._held.clear()

    # ---- the head

    def _heed(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            if self._host is not None:
                self._problem = InvalidArgument("The request has two Host headers: HTTP/1.1 asks for one.")
            self._host = value
        elif name == b"origin":
            self._origin = value if self._origin is None else b"%b, %b" % (self._origin, value)
        elif name == b"sec-fetch-site":
            self._fetch_site = value if self._fetch_site is None else b"%b, %b" % (self._fetch_site, value)
        elif name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        elif name == b"content-length":
            self._length = int(value)
        elif name == b"upgrade":
            self._upgrading = True
        elif value.strip().lower() != b"chunked":
            self._problem = Unimplemented(
                "The transfer encoding of the request is not known here: send it chunked or with its length."
            )

    def _head_without_upgrade(self) -> bytes:
        """The head of the request as if it asked for no other protocol: the parser would skip its body."""
        lines = [
            b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        ]
        for name, value in self.headers:
            if name == b"connection":
                lines += [b"connection: close"] if b"close" in value.lower() else []
            elif name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _head_size(self) -> int:
        fields = sum(len(name) + len(value) + _HEADER_EXTRA for name, value in self.headers)
        return fields + len(self.url) + _LINE_EXTRA

    def _head_too_large(self) -> HeadTooLarge:
        limit = self._gate.most_head
        return HeadTooLarge(f"The head of the request is over {limit} bytes (setting max_header_bytes).")


def _no_tunnel() -> Unimplemented:
    return Unimplemented("CONNECT asks for a tunnel: this is no proxy.")


def _parse(url: bytes) -> str:
    """The path of what a request asks for."""
    path = httptools.parse_url(url).path.decode("ascii")
    return urllib.parse.unquote(path) if "%" in path else path


_parsed = functools.lru_cache(_PATHS)(_parse)


def _least(seconds: float, settings: FrontSettings) -> float:
    """Bytes that must move within so many seconds."""
    return max(1.0, seconds * settings.min_bytes_per_second)
