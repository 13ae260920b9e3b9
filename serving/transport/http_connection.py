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

from serving.config import ServerSettings
from serving.errors import (
    ClientTooSlow,
    HeadTooLarge,
    Internal,
    InvalidArgument,
    ServingError,
    Unavailable,
    Unimplemented,
)
from serving.http_headers import BODY_LENGTH, encode_error_response
from serving.transport.connection_limits import ConnectionLimiter
from serving.transport.content_encoding import BodyDecompressor
from serving.transport.request import HttpPredictionHandler, HttpRequest
from serving.transport.request_head import RequestHead
from serving.transport.tls import TlsTransport

logger = logging.getLogger(__name__)

# Requests that a client may send ahead; those beyond are not read, and the connection closes after them.
MAX_PIPELINED = 16
# Seconds for which the rest of a request is read and dropped, so that the client gets to see its answer.
_LINGER_SECONDS, _DISCARD_SECONDS = 2.0, 30.0
# A client has so many times `answer_timeout` to read an answer, however long that is.
_ANSWER_TIMEOUTS = 10
# Per header beside its name and value, and per request: what stands between and around them.
_HEADER_EXTRA, _LINE_EXTRA = 4, 20

_NOTED_HEADERS = frozenset(
    {
        b"host", b"origin", b"sec-fetch-site", b"expect", b"transfer-encoding", b"content-length", b"upgrade",
    }
)  # fmt: skip
_VERSIONS = frozenset({"1.0", "1.1"})
_CONNECT, _OPTIONS = b"CONNECT", b"OPTIONS"
# Paths of which is remembered where they lead, and the longest of them in bytes.
_MAX_CACHED_PATHS, _MAX_CACHED_PATH_BYTES = 1024, 512

Cycle = RequestResponseCycle | HttpRequest


class ConnectionPhase(enum.Enum):
    """What is awaited from the client."""

    HANDSHAKE = enum.auto()  # of TLS
    REQUEST = enum.auto()  # the first byte of the next one
    HEAD = enum.auto()
    BODY = enum.auto()
    CLOSE = enum.auto()  # nothing: it was refused, or is to close after the answers that it waits for


HANDSHAKE, REQUEST, HEAD, BODY, CLOSE = ConnectionPhase  # looked up for every header


class HttpConnection(HttpToolsProtocol):
    """One connection of a client.

    Predictions are a `handler`'s, if there is one, and all else is the application's. `since` is when it came
    into its `phase` on the gate's clock, `begun` when its body began, `held` the bytes that are in memory of
    requests which nobody else counts: those that are not whole, those that wait behind others, and the bodies
    that the application works on.
    """

    cycle: Any  # the newest `Cycle`
    pipeline: Any  # of those behind the one that runs: (Cycle, the application)

    def __init__(
        self,
        limiter: ConnectionLimiter,
        handler: HttpPredictionHandler | None = None,
        **uvicorn_arguments: Any,
    ) -> None:
        super().__init__(**uvicorn_arguments)
        self._limiter = limiter
        self._has_handler = handler is not None
        if handler is not None:
            self._handler, self._max_body_bytes = handler, handler.max_body_bytes
        self._slice: int | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._tls: TlsTransport | None = None
        self._active: Cycle | None = None
        self._length = 0  # of the body, if it was told
        self._raw_head = b""  # what may be the head of the request, if it came by itself
        self._host: bytes | None = None
        self._origin: bytes | None = None
        self._fetch_site: bytes | None = None
        self.phase = REQUEST
        self.since = self.body_started_at = limiter.now
        self.held_bytes = 0
        self._held: dict[Cycle, int] = {}
        self._head_bytes = (
            0  # bytes of the head, or of what follows the last chunk, in data that did not end it
        )
        self._data_bytes = 0  # bytes of the data being parsed
        self._body_bytes = 0  # bytes of the body so far
        self._body_bytes_at_since = 0  # of these, before `since`
        self.unsent_bytes = 0  # bytes of answers that the client had not read when they were last counted
        self._responses_dropped = False  # and that it is not to get any more
        self._unsent_at_check = 0  # the same at `_unsent_since`, with what has been sent after that
        self._unsent_checked_at = 0.0
        self._response_bytes = 0  # bytes of answers that it is reading since `_answer_since`
        self._response_started_at = 0.0
        self._problem: ServingError | None = None
        self._upgrading = False

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered that is whole."""
        running = self._active
        return running is not None and not running.response_complete and not running.more_body

    @property
    def is_idle(self) -> bool:
        """Whether the connection would not be missed."""
        if self.phase is HANDSHAKE:
            return True
        return self.phase is REQUEST and not self.is_answering and not self.transport.get_write_buffer_size()

    # ---- TLS

    def begin_handshake(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        """Take a place, and have the client begin with TLS; without a place the socket is closed."""
        self._slice = self._limiter.add_connection(self)
        if self._slice is None:
            accepted.close()
            return
        self.phase, self.since = HANDSHAKE, self._limiter.now
        self.connections.add(self)
        self._handshake = self.loop.create_task(self._run_handshake(accepted, tls), name="handshake")
        self._handshake.add_done_callback(functools.partial(self._end_handshake, accepted))

    async def _run_handshake(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            await self.loop.connect_accepted_socket(
                lambda: self,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=math.inf,  # `look` keeps the time
            )
        except ssl.SSLError:
            self._limiter.rejections["tls_handshake"] += 1
        except OSError:
            pass  # the client has left

    def _end_handshake(self, accepted: socket.socket, _: asyncio.Task[None]) -> None:
        self._handshake = None
        if self.phase is HANDSHAKE and self._slice is not None:  # it failed, or was given up
            accepted.close()
            self.connections.discard(self)
            self._limiter.remove_connection(self, self._slice)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it in, or tell that there is no place; after a handshake it has one."""
        if transport.get_extra_info("ssl_object") is not None:
            self._tls = TlsTransport(transport)
            transport = cast(asyncio.Transport, self._tls)
        if self.phase is HANDSHAKE:
            self.phase, self.since = REQUEST, self._limiter.now
            super().connection_made(transport)
            return
        self._slice = self._limiter.add_connection(self)
        if self._slice is None:
            self.transport = transport
            self.phase = CLOSE
            limit = self._limiter.max_connections
            error = Unavailable(
                f"Too many connections are open (setting max_connections = {limit}).", retry_after=1
            )
            transport.write(encode_error_response(error))
            transport.close()
        else:
            super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being answered: it may be an earlier one than the newest."""
        if self._slice is None:
            self.parser = None  # type: ignore[assignment]
            return
        self._limiter.remove_connection(self, self._slice)
        self._limiter.change_unsent(-self.unsent_bytes)
        self.unsent_bytes = 0
        self._uncount_all_held()
        self._notify_disconnect(self._active)
        self.pipeline.clear()
        if isinstance(self.cycle, HttpRequest):
            self.cycle = None
        super().connection_lost(exc)
        self.cycle = self._active = self._tls = None

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self.phase is CLOSE:
            return
        if self._has_handler and self.phase is REQUEST:
            end = data.find(b"\r\n\r\n") + 4
            self._raw_head = raw = data[:end]
            head = self._limiter.head_cache.get(raw)
            # An answered request is forgotten: then there is none.
            is_free = self.cycle is None and not self.flow.write_paused
            if head is not None and is_free and len(data) - end == head.length:
                self._begin_whole_request(head, data[end:])
                return
        self._data_bytes, moved = len(data), self._body_bytes
        try:
            self._parse_data(data)
        except httptools.HttpParserError as error:
            self._reject_malformed(error)
            return
        if self.phase is HEAD or self.phase is BODY:
            self._head_bytes = self._head_bytes + len(data) if moved == self._body_bytes else 0
            if self._head_bytes > self._limiter.max_head_bytes:
                self.reject("max_header_bytes", self._head_too_large())

    def _parse_data(self, data: bytes) -> None:
        """Feed the parser, which stops at each request that asks for another protocol."""
        rest: bytes | memoryview = data
        end = self._feed_parser(rest)
        while end is not None and self.phase is not CLOSE:
            rest = memoryview(rest)[end:]
            self._raw_head = b""
            head = self._head_without_upgrade()
            # Another parser: one that has read `Connection: close` reads no head after that.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self._feed_parser(head)
            end = self._feed_parser(rest)

    def _feed_parser(self, data: bytes | memoryview) -> int | None:
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
        self._head_bytes = self._body_bytes = self._body_bytes_at_since = self._length = 0
        self._problem, self._upgrading = None, False
        self._host = self._origin = self._fetch_site = None
        if self.phase is not CLOSE:
            self.phase, self.since = HEAD, self._limiter.now

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header, and what those say that concern the connection; what follows a body is dropped."""
        if self.phase is not HEAD:
            return
        name = name.lower()
        self.headers.append((name, value))
        if name in _NOTED_HEADERS:
            self._note_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin with the request, or queue it behind those before it."""
        if self.phase is CLOSE:
            return
        if (
            self._head_bytes + self._data_bytes > self._limiter.max_head_bytes
            and self._head_size() > self._limiter.max_head_bytes
        ):
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
            self._close_after_earlier_requests()
            return
        # Before it begins: it may be answered at once.
        self.phase, self.since = BODY, self._limiter.now
        self.body_started_at = self.since
        self._head_bytes = self._unsent_at_check = 0  # who asks again has read the answers before
        if method == _CONNECT:
            self._begin_prediction("", _tunnel_error())
            self.phase = CLOSE  # what follows would be for the other end of the tunnel
            return
        cross_origin = self._limiter.cross_origin
        refusal = cross_origin.find_violation(self._host, self._origin, self._fetch_site)
        if refusal is not None:
            self._limiter.rejections["cross_origin"] += 1
            self._begin_prediction(self._request_path(), refusal)
        elif not self._has_handler or (method == _OPTIONS and self._origin in cross_origin.origins):
            self._begin_app_request()  # the application answers preflights, for all paths
        elif self._handler.can_handle(method.decode(), path := self._request_path()):
            self._begin_prediction(path)
        else:
            self._begin_app_request()

    def on_body(self, body: bytes) -> None:
        """More of a body has come."""
        if self.phase is CLOSE:
            return
        size = len(body)
        self._body_bytes += size
        if self.cycle.response_complete:
            return
        self._count_held(size)
        if self.phase is CLOSE:  # it was for this that there was no room
            return
        if isinstance(self.cycle, HttpRequest):
            self._append_body(self.cycle, body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self.phase is not BODY:
            return
        cycle = self.cycle
        if self.expect_100_continue and not cycle.response_started:
            cycle.keep_alive = self._is_persistent()
        self.phase, self.since = REQUEST, self._limiter.now
        # What follows in the same data has another head; an idle connection has none.
        self._raw_head, self.url, self.headers = b"", b"", []
        self.scope = None  # type: ignore[assignment]
        if not isinstance(cycle, HttpRequest):
            super().on_message_complete()
        elif not cycle.response_complete:
            cycle.more_body = False
            if cycle is self._active:
                self._complete_body(cycle)
        self._forget_finished_request()

    # ---- callbacks of uvicorn

    def shutdown(self) -> None:
        """Close the connection once the request that it is at is answered."""
        if self.phase is not HANDSHAKE:
            super().shutdown()
        elif self._handshake is not None:
            self._handshake.cancel()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Go on with the next request, if it is there already."""
        self.server_state.total_requests += 1
        if self.held_bytes and self._active is not None:
            self._uncount_held(self._active)
        if self.phase is not BODY:
            self._forget_finished_request()
        if self.transport.is_closing():
            return
        self.since = self.body_started_at = self._limiter.now
        flow = self.flow
        if not flow.write_paused and (flow.read_paused or self.pipeline):
            self._start_next()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent."""
        if self._tls is not None:
            self._tls.paused = True
        super().pause_writing()
        self._measure_unsent()

    def resume_writing(self) -> None:
        """The client has read most of what it was sent."""
        if self._tls is not None and not self._tls.resume_sending():
            return
        super().resume_writing()
        self._measure_unsent()
        if self._active is None or self._active.response_complete:
            self._start_next()

    def _start_next(self) -> None:
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            if isinstance(cycle, HttpRequest):
                self._start_prediction(cycle)
            else:
                self._start_asgi_task(cycle, app)

    def _forget_finished_request(self) -> None:
        """Hold nothing of the newest request once it is whole and answered."""
        newest = self.cycle
        if newest is not None and newest.response_complete and self.phase is not BODY:
            self.cycle = self._active = None

    def _begin_app_request(self) -> None:
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
            self.scope[BODY_LENGTH] = self._length  # type: ignore[literal-required]
        super().on_headers_complete()
        if self.expect_100_continue:
            # Who is answered before the body may leave it out, and then no one knows where the next begins.
            self.cycle.keep_alive = False
        if self.cycle is not self._active:
            self._count_held(self._head_size())

    # ---- exchanges

    def _begin_prediction(self, path: str, refusal: ServingError | None = None) -> None:
        """Have the handler answer a request, once those before it are and the client has read that.

        With a `refusal` it is answered with that instead.
        """
        if self.transport.is_closing():
            self.phase = CLOSE  # the one before was the last
            return
        parser, expects = self.parser, self.expect_100_continue
        method, version = parser.get_method().decode(), parser.get_http_version()
        head = RequestHead(
            method,
            path,
            self.headers,
            length=self._length,
            version=version,
            rejection=refusal,
            response_headers=self._limiter.cross_origin.response_headers(self._origin),
        )
        keep_alive = not expects and self._is_persistent()
        if keep_alive and self._length and self._raw_head and refusal is None:
            self._limiter.head_cache.remember(self._raw_head, head)
        exchange = HttpRequest(head, self, client=self.client, keep_alive=keep_alive)
        exchange.waiting_for_100_continue = expects
        free, self.cycle = self._can_start_next, exchange
        if free:
            self._start_prediction(exchange)
        else:
            self.pipeline.appendleft((exchange, None))
            if self.flow.write_paused:
                self.flow.pause_reading()
            self._count_held(self._head_size())

    def _begin_whole_request(self, head: RequestHead, body: bytes) -> None:
        """Have the handler answer a request that has come whole, with a head that is known."""
        exchange = self.cycle = HttpRequest(head, self, client=self.client)
        exchange.body, exchange.more_body = body, False
        self.since = self.body_started_at = self._limiter.now
        self._unsent_at_check = 0
        self._start_prediction(exchange)

    @property
    def _can_start_next(self) -> bool:
        """Whether the next request can begin: all before it are answered, and read by the client."""
        newest = self.cycle
        return (newest is None or newest.response_complete) and not self.flow.write_paused

    def _start_prediction(self, exchange: HttpRequest) -> None:
        """It is the exchange's turn."""
        self._active = exchange
        if exchange.head.rejection is not None:
            if self._has_handler:
                self._handler.on_request_error(exchange, exchange.head.rejection)
            else:
                exchange.respond_error(exchange.head.rejection)
            return
        try:
            self._handler.on_request_head(exchange)
        except Exception:
            self._respond_internal_error(exchange)
        if exchange.response_complete:
            return
        if not exchange.more_body or self._body_bytes > self._max_body_bytes:
            self._complete_body(exchange)
        elif exchange.waiting_for_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _append_body(self, exchange: HttpRequest, body: bytes) -> None:
        """More of the body of an exchange."""
        if exchange.response_complete:
            return
        if exchange.body_parts is not None:
            exchange.body_parts.append(body)
        elif exchange.body:
            exchange.body_parts = [exchange.body, body]
        else:
            exchange.body = body
        if exchange is self._active:
            if self._body_bytes > self._max_body_bytes:
                self._complete_body(exchange)
        elif self._body_bytes > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def _complete_body(self, exchange: HttpRequest) -> None:
        """The handler can answer it."""
        if exchange.body_parts is not None:
            exchange.body, exchange.body_parts = b"".join(exchange.body_parts), None
        if exchange.head.encoding and 0 < len(exchange.body) <= self._max_body_bytes:
            self._decompress_body(exchange)
        else:
            self._pass_to_handler(exchange)

    def _pass_to_handler(self, exchange: HttpRequest) -> None:
        if self.held_bytes:
            self._uncount_held(exchange)
        try:
            self._handler.on_request_complete(exchange)
        except Exception:
            self._respond_internal_error(exchange)

    def _decompress_body(self, exchange: HttpRequest) -> None:
        """Unpack the body of an exchange before it is handed over: now, or in turns of the event loop."""
        try:
            unpacking = BodyDecompressor(exchange.head.encoding, exchange.body, self._max_body_bytes)
        except ServingError as error:
            self._handler.on_request_error(exchange, error)
            return
        uncounted = len(exchange.body) - self._held.get(exchange, 0)
        if not self._decompress_step(exchange, unpacking, uncounted):
            self._limiter.decompressions.add(functools.partial(self._decompress_step, exchange, unpacking))

    def _decompress_step(
        self, exchange: HttpRequest, unpacking: BodyDecompressor, uncounted: int = 0
    ) -> bool:
        """Whether the exchange is handed over, refused or left. `uncounted` are bytes to count besides."""
        if exchange.response_complete:
            return True
        before = unpacking.size
        try:
            is_whole = unpacking.step()
            if not is_whole:
                self._count_decompressed(exchange, unpacking.size - before + uncounted)
                return False
            exchange.body = unpacking.body
        except ServingError as error:
            self._uncount_held(exchange)
            self._handler.on_request_error(exchange, error)
        except Exception:
            self._respond_internal_error(exchange)
        else:
            self._pass_to_handler(exchange)
        return True

    def _count_decompressed(self, exchange: HttpRequest, size: int) -> None:
        """Count bytes of a body that is being unpacked. Raises Unavailable if there is no room."""
        gate = self._limiter
        self._held[exchange] = self._held.get(exchange, 0) + size
        self.held_bytes += size
        gate.count_arriving(size)
        if gate.is_full and gate.arriving_bytes > self.held_bytes:
            raise gate.overload_error("there is no room to unpack this one")

    def _respond_internal_error(self, exchange: HttpRequest) -> None:
        logger.exception("a request could not be answered")
        exchange.respond_error(Internal("Internal error encountered."))

    def _is_persistent(self) -> bool:
        parser = self.parser
        lasting = parser.get_http_version() != "1.0" and parser.get_method() != _CONNECT
        return lasting and bool(parser.should_keep_alive())

    def _request_path(self) -> str:
        """Where the request goes."""
        return (_parse_path_cached if len(self.url) <= _MAX_CACHED_PATH_BYTES else _parse_path)(self.url)

    # ---- keeping to the time

    def check_timeouts(self, now: float) -> None:
        """End the connection if its client does not keep to the time."""
        settings = self._limiter.settings
        if self.phase is HANDSHAKE:
            if now - self.since >= settings.header_timeout:
                self._limiter.rejections["header_timeout"] += 1
                self.shutdown()
        elif self._is_reading_too_slowly(now):
            self._limiter.rejections["answer_timeout"] += 1
            self.transport.abort()
        elif self.transport.is_closing():
            pass  # until what is unsent is read
        elif self.is_answering or self.pipeline or (self.phase is BODY and self.flow.read_paused):
            # Not the client's time. Its next request, if any of it is there, gets all of its own.
            self.since, self._body_bytes_at_since = now, self._body_bytes
        elif self.phase is CLOSE:
            if now - self.since >= _LINGER_SECONDS:
                self.transport.abort()
        elif self.phase is REQUEST:
            if now - self.since >= settings.keep_alive_timeout:
                self.transport.close()
        elif self.phase is HEAD:
            if now - self.since >= settings.header_timeout:
                self.reject(
                    "header_timeout",
                    ClientTooSlow(
                        "The head of the request was not there within "
                        f"{settings.header_timeout:g} s (setting header_timeout)."
                    ),
                )
        else:
            self._check_body_pace(now)

    def _check_body_pace(self, now: float) -> None:
        settings = self._limiter.settings
        if self.cycle.response_complete and now - self.body_started_at >= _DISCARD_SECONDS:
            self.transport.abort()
        elif (seconds := now - self.since) >= settings.body_timeout:
            if self._body_bytes - self._body_bytes_at_since < _minimum_bytes(seconds, settings):
                self.reject(
                    "body_timeout",
                    ClientTooSlow(
                        f"The body came too slowly: {settings.body_timeout:g} s (setting body_timeout) at "
                        f"less than {settings.min_bytes_per_second} bytes/s (setting min_bytes_per_second)."
                    ),
                )
            else:
                self.since, self._body_bytes_at_since = now, self._body_bytes

    def _is_reading_too_slowly(self, now: float) -> bool:
        self._measure_unsent()
        settings, seconds = self._limiter.settings, now - self._unsent_checked_at
        if not self.unsent_bytes or seconds < settings.answer_timeout:
            return False
        read, self._unsent_at_check, self._unsent_checked_at = (
            self._unsent_at_check - self.unsent_bytes,
            self.unsent_bytes,
            now,
        )
        share = self._response_bytes * seconds / settings.answer_timeout / _ANSWER_TIMEOUTS
        return read < max(share, _minimum_bytes(seconds, settings))

    def _measure_unsent(self) -> None:
        if self._responses_dropped:
            return
        before, self.unsent_bytes = self.unsent_bytes, self.transport.get_write_buffer_size()
        more = self.unsent_bytes - before
        if not self.unsent_bytes or not self._unsent_at_check:
            self._unsent_at_check = self._response_bytes = self.unsent_bytes
            self._unsent_checked_at = self._response_started_at = self._limiter.now
        elif more > 0:
            self._unsent_at_check += more
            self._response_bytes += more
        self._limiter.change_unsent(more)

    @property
    def read_rate(self) -> tuple[float, float]:
        """Bytes per second at which the client reads, and since when; nobody is slow in the first second."""
        seconds = self._limiter.now - self._response_started_at
        pace = (self._response_bytes - self.unsent_bytes) / seconds if seconds >= 1 else math.inf
        return pace, self._response_started_at

    def drop_responses(self) -> None:
        """Close the connection, with all that its client has not read."""
        self._limiter.rejections["unsent_bytes"] += 1
        self._limiter.change_unsent(-self.unsent_bytes)
        self.unsent_bytes, self._responses_dropped = 0, True
        self.loop.call_soon(self.transport.abort)  # not within a write of its own

    # ---- refusing

    def reject(self, why: str, error: ServingError) -> None:
        """Answer with an error, if that is possible, and close once the client has had time to see it.

        `why` is the setting that was not kept to, or a word.
        """
        self._limiter.rejections[why] += 1
        self._problem = None  # it has come through frames that hold the connection
        if self._has_earlier_request():
            self._close_after_earlier_requests()
            return
        cycle = self.cycle if self.phase is BODY else None
        self.phase, self.since = CLOSE, self._limiter.now
        self._uncount_all_held()
        if self.transport.is_closing():
            return
        if cycle is not None and cycle.response_started:
            self.transport.close()
        else:
            self.transport.write(encode_error_response(error))
            self._close_write_side()
        self._notify_disconnect(cycle)

    def _close_write_side(self) -> None:
        """Close our side alone, where that can be: a reset would overtake the answer."""
        if self.transport.can_write_eof():
            self.flow.resume_reading()
            self.transport.write_eof()
        else:
            self.transport.close()

    def _reject_malformed(self, error: httptools.HttpParserError) -> None:
        """What came is no request, or none that is taken."""
        if self.phase is CLOSE:
            return
        cause = error if error.__context__ is None else error.__context__
        if isinstance(cause, HeadTooLarge):
            self.reject("max_header_bytes", cause)
        elif isinstance(cause, InvalidArgument):
            self.reject("syntax", cause)
        elif isinstance(cause, ServingError):
            self.reject("encoding", cause)
        else:
            told = str(cause) if isinstance(cause, httptools.HttpParserError) else ""
            self.reject("syntax", InvalidArgument(f"This is not HTTP/1.1: {told or 'it cannot be read'}."))

    def _has_earlier_request(self) -> bool:
        """Whether a request before the one that is being read is still to be answered."""
        running = self._active
        if running is None or running.response_complete:
            return False
        return self.phase is not BODY or running is not self.cycle

    def _close_after_earlier_requests(self) -> None:
        """Answer the requests that are whole, then close; what else was sent is not looked at."""
        waiting = self.pipeline
        if self.phase is BODY:
            self._uncount_held(self.cycle)
            if waiting:
                waiting.popleft()
        last = waiting[0][0] if waiting else self._active
        if last is not None:
            last.keep_alive = False
        self.phase, self.since = CLOSE, self._limiter.now

    def _notify_disconnect(self, cycle: Cycle | None) -> None:
        """Tell who answers that the client is gone."""
        if isinstance(cycle, HttpRequest):
            cycle.disconnect()
        elif cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    # ---- memory

    @property
    def releasable_bytes(self) -> int:
        """Bytes that would be free if it did nothing but answer the request that is being answered."""
        running = self._active
        if running is None or running.more_body:
            return self.held_bytes
        return self.held_bytes - self._held.get(running, 0)

    def drop_queued_requests(self, error: ServingError) -> None:
        """Drop what has not begun; clients send it again. `error` is for the first if none is answered."""
        for cycle, _ in self.pipeline:
            self._uncount_held(cycle)
        self.pipeline.clear()
        self.reject("arriving_bytes", error)

    def _count_held(self, size: int) -> None:
        """So much more of the newest request is in memory."""
        self._held[self.cycle] = self._held.get(self.cycle, 0) + size
        self.held_bytes += size
        self._limiter.count_arriving(size)

    def _uncount_held(self, cycle: Cycle) -> None:
        """A request is not counted here any more."""
        size = self._held.pop(cycle, 0)
        self.held_bytes -= size
        self._limiter.arriving_bytes -= size

    def _uncount_all_held(self) -> None:
        self._limiter.arriving_bytes -= self.held_bytes
        self.held_bytes = 0
        self._held.clear()

    # ---- the head

    def _note_header(self, name: bytes, value: bytes) -> None:
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
        limit = self._limiter.max_head_bytes
        return HeadTooLarge(f"The head of the request is over {limit} bytes (setting max_header_bytes).")


def _tunnel_error() -> Unimplemented:
    return Unimplemented("CONNECT asks for a tunnel: this is no proxy.")


def _parse_path(url: bytes) -> str:
    """The path of what a request asks for."""
    path = httptools.parse_url(url).path.decode("ascii")
    return urllib.parse.unquote(path) if "%" in path else path


_parse_path_cached = functools.lru_cache(_MAX_CACHED_PATHS)(_parse_path)


def _minimum_bytes(seconds: float, settings: ServerSettings) -> float:
    """Bytes that must move within so many seconds."""
    return max(1.0, seconds * settings.min_bytes_per_second)
