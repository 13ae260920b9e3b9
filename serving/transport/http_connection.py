"""One client connection: uvicorn's HTTP/1.1 parser with limits on time, memory and header size."""

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
from serving.transport.tls import PiecewiseTlsTransport

logger = logging.getLogger(__name__)

# Requests that may be queued on a connection; it closes after these if the client sends more.
MAX_PIPELINED = 16
# Seconds for which the rest of a rejected request is read and dropped, so that its client can read the error.
_LINGER_SECONDS, _DISCARD_SECONDS = 2.0, 30.0
# A client has this many times `answer_timeout` to read a response, however long it is.
_ANSWER_TIMEOUTS = 10
# Bytes of separators: per header, and per request line.
_HEADER_EXTRA, _LINE_EXTRA = 4, 20

_NOTED_HEADERS = frozenset(
    {
        b"host", b"origin", b"sec-fetch-site", b"expect", b"transfer-encoding", b"content-length", b"upgrade",
    }
)  # fmt: skip
_VERSIONS = frozenset({"1.0", "1.1"})
_CONNECT, _OPTIONS = b"CONNECT", b"OPTIONS"
# Number of cached paths, and the longest one that is cached, in bytes.
_MAX_CACHED_PATHS, _MAX_CACHED_PATH_BYTES = 1024, 512

Cycle = RequestResponseCycle | HttpRequest


class ConnectionPhase(enum.Enum):
    """What the connection waits for from its client."""

    HANDSHAKE = enum.auto()  # of TLS
    REQUEST = enum.auto()  # the first byte of the next one
    HEAD = enum.auto()
    BODY = enum.auto()
    CLOSE = enum.auto()  # nothing: rejected, or closing once earlier requests are answered


HANDSHAKE, REQUEST, HEAD, BODY, CLOSE = ConnectionPhase  # looked up for every header


class HttpConnection(HttpToolsProtocol):
    """One client connection.

    `handler`, if given, answers predictions; the application answers everything else. `since` is when `phase`
    began, on the limiter's clock. `body_started_at` is when the body began. `held_bytes` counts the memory of
    requests that nobody else counts: incomplete ones, queued ones, and bodies that the application works on.
    """

    cycle: Any  # the newest `Cycle`
    pipeline: Any  # queued requests: (Cycle, the application)

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
        self._tls: PiecewiseTlsTransport | None = None
        self._active: Cycle | None = None
        self._length = 0  # the Content-Length
        self._raw_head = b""  # the bytes of the head, if they arrived in one piece
        self._host: bytes | None = None
        self._origin: bytes | None = None
        self._fetch_site: bytes | None = None
        self.phase = REQUEST
        self.since = self.body_started_at = limiter.now
        self.held_bytes = 0
        self._held: dict[Cycle, int] = {}
        self._head_bytes = 0  # bytes of an incomplete head, or of incomplete trailers
        self._data_bytes = 0  # size of the data being parsed
        self._body_bytes = 0  # bytes of the body so far
        self._unparsed_bytes = 0  # bytes of the body still to come, which are not shown to the parser
        self._body_bytes_at_since = 0  # the value of `_body_bytes` at `since`
        self.unsent_bytes = 0  # bytes of responses that the client had not read at the last check
        self._responses_dropped = False  # the connection is being aborted with them
        self._unsent_at_check = 0  # `unsent_bytes` at `_unsent_checked_at`, plus what was sent since
        self._unsent_checked_at = 0.0
        self._response_bytes = 0  # bytes of responses sent since `_response_started_at`
        self._response_started_at = 0.0
        self._problem: ServingError | None = None
        self._upgrading = False

    @property
    def is_answering(self) -> bool:
        """Whether a complete request is being answered."""
        running = self._active
        return running is not None and not running.response_complete and not running.more_body

    @property
    def is_idle(self) -> bool:
        """Whether the connection can be closed without loss."""
        if self.phase is HANDSHAKE:
            return True
        return self.phase is REQUEST and not self.is_answering and not self.transport.get_write_buffer_size()

    # ---- TLS

    def begin_handshake(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        """Register the connection and begin TLS; closes the socket beyond `max_connections`."""
        self._slice = self._limiter.add_connection(self)
        if self._slice is None:
            accepted.close()
            return
        self.phase, self.since = HANDSHAKE, self._limiter.now
        self.connections.add(self)
        self._handshake = self.loop.create_task(self._run_handshake(accepted, tls), name="handshake")
        self._handshake.add_done_callback(functools.partial(self._on_handshake_end, accepted))

    async def _run_handshake(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            await self.loop.connect_accepted_socket(
                lambda: self,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=math.inf,  # see `check_timeouts`
            )
        except ssl.SSLError:
            self._limiter.rejections["tls_handshake"] += 1
        except OSError:
            pass  # the client has left

    def _on_handshake_end(self, accepted: socket.socket, _: asyncio.Task[None]) -> None:
        self._handshake = None
        if self.phase is HANDSHAKE and self._slice is not None:  # the handshake failed or was cancelled
            accepted.close()
            self.connections.discard(self)
            self._limiter.remove_connection(self, self._slice)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register the connection, or answer 503 beyond `max_connections`. TLS has registered it already."""
        if transport.get_extra_info("ssl_object") is not None:
            self._tls = PiecewiseTlsTransport(transport)
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
        """Notify the request being answered, which may be an earlier one than the newest."""
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
        if self._unparsed_bytes:
            data = self._receive_body(data)
        if self.phase is CLOSE or not data:
            return
        if self._has_handler and self.phase is REQUEST:
            end = data.find(b"\r\n\r\n") + 4
            self._raw_head = raw = data[:end]
            head = self._limiter.head_cache.get(raw)
            is_free = self.cycle is None and not self.flow.write_paused
            if head is not None and is_free and len(data) - end == head.length:
                self._begin_cached_request(head, data[end:])
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
                self.reject("max_header_bytes", self._head_too_large_error())
            elif self.phase is BODY and isinstance(self.cycle, HttpRequest) and self.cycle.keep_alive:
                self._unparsed_bytes = max(0, self._length - self._body_bytes)

    def _receive_body(self, data: bytes) -> bytes:
        """Take the rest of a body past the parser, which would copy it. Returns what follows the body."""
        left = self._unparsed_bytes
        body, rest = (data, b"") if len(data) <= left else (data[:left], data[left:])
        self._unparsed_bytes -= len(body)
        self.on_body(body)
        if not self._unparsed_bytes and self.phase is BODY:
            self.on_message_complete()
            self._renew_parser()
        return rest

    def _renew_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def _parse_data(self, data: bytes) -> None:
        """Feed the parser, which stops at each request that asks for a protocol upgrade."""
        rest: bytes | memoryview = data
        end = self._feed_parser(rest)
        while end is not None and self.phase is not CLOSE:
            rest = memoryview(rest)[end:]
            self._raw_head = b""
            head = self._head_without_upgrade()
            self._renew_parser()  # one that has read `Connection: close` reads no head after that
            self._feed_parser(head)
            end = self._feed_parser(rest)

    def _feed_parser(self, data: bytes | memoryview) -> int | None:
        """Feed the parser; returns where it stopped, None if it read everything."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            end: int = upgrade.args[0]
            return end
        return None

    # ---- callbacks of the parser

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._head_bytes = self._body_bytes = self._body_bytes_at_since = self._length = 0
        self._problem, self._upgrading = None, False
        self._host = self._origin = self._fetch_site = None
        if self.phase is not CLOSE:
            self.phase, self.since = HEAD, self._limiter.now

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header. Trailers are dropped."""
        if self.phase is not HEAD:
            return
        name = name.lower()
        self.headers.append((name, value))
        if name in _NOTED_HEADERS:
            self._note_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin the request, or queue it behind earlier ones."""
        if self.phase is CLOSE:
            return
        if (
            self._head_bytes + self._data_bytes > self._limiter.max_head_bytes
            and self._head_size() > self._limiter.max_head_bytes
        ):
            raise self._head_too_large_error()
        version, method = self.parser.get_http_version(), self.parser.get_method()
        if version not in _VERSIONS:
            raise InvalidArgument(f"HTTP/{version} is not supported: send the request as HTTP/1.1.")
        if self._problem is not None:
            raise self._problem
        if self._host is None and version == "1.1":
            raise InvalidArgument("The request has no Host header: HTTP/1.1 requires one.")
        if self._upgrading and method != _CONNECT and self.parser.should_upgrade():
            return  # its head is parsed again without the upgrade
        if len(self.pipeline) >= MAX_PIPELINED:
            self._close_after_earlier_requests()
            return
        # Before it begins, since it may be answered at once.
        self.phase, self.since = BODY, self._limiter.now
        self.body_started_at = self.since
        self._head_bytes = self._unsent_at_check = (
            0  # a client that sends another request has read the responses
        )
        if method == _CONNECT:
            self._begin_prediction("", _tunnel_error())
            self.phase = CLOSE  # the rest of the input would be for the tunnel
            return
        cross_origin = self._limiter.cross_origin
        rejection = cross_origin.find_violation(self._host, self._origin, self._fetch_site)
        if rejection is not None:
            self._limiter.rejections["cross_origin"] += 1
            self._begin_prediction(self._request_path(), rejection)
        elif not self._has_handler or (method == _OPTIONS and self._origin in cross_origin.origins):
            self._begin_app_request()  # the application answers all preflight requests
        elif self._handler.can_handle(method.decode(), path := self._request_path()):
            self._begin_prediction(path)
        else:
            self._begin_app_request()

    def on_body(self, body: bytes) -> None:
        if self.phase is CLOSE:
            return
        size = len(body)
        self._body_bytes += size
        if self.cycle.response_complete:
            return
        self._count_held(size)
        if self.phase is CLOSE:  # rejected for lack of memory
            return
        if isinstance(self.cycle, HttpRequest):
            self._append_body(self.cycle, body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.phase is not BODY:
            return
        cycle = self.cycle
        if self.expect_100_continue and not cycle.response_started:
            cycle.keep_alive = self._is_persistent()
        self.phase, self.since = REQUEST, self._limiter.now
        # The next request has another head; an idle connection keeps none.
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
        """Close the connection once the current request is answered."""
        if self.phase is not HANDSHAKE:
            super().shutdown()
        elif self._handshake is not None:
            self._handshake.cancel()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Start the next request if it has arrived."""
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
        if self._tls is not None:
            self._tls.paused = True
        super().pause_writing()
        self._measure_unsent()

    def resume_writing(self) -> None:
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
        """Drop the references to the newest request once it is complete and answered."""
        newest = self.cycle
        if newest is not None and newest.response_complete and self.phase is not BODY:
            self.cycle = self._active = None

    def _begin_app_request(self) -> None:
        """Pass a request to the application, or queue it."""
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
            # A client answered early may leave out the body: then the next request has no known start.
            self.cycle.keep_alive = False
        if not self._limiter.keeps_alive:
            self.cycle.keep_alive = False
        if self.cycle is not self._active:
            self._count_held(self._head_size())

    # ---- predictions

    def _begin_prediction(self, path: str, rejection: ServingError | None = None) -> None:
        """Pass a request to the handler, or queue it; with a `rejection` it is answered with that."""
        if self.transport.is_closing():
            self.phase = CLOSE  # the previous response closes the connection
            return
        parser, expects = self.parser, self.expect_100_continue
        method, version = parser.get_method().decode(), parser.get_http_version()
        head = RequestHead(
            method,
            path,
            self.headers,
            length=self._length,
            version=version,
            rejection=rejection,
            response_headers=self._limiter.cross_origin.response_headers(self._origin),
        )
        keep_alive = not expects and self._is_persistent()
        if keep_alive and self._length and self._raw_head and rejection is None:
            self._limiter.head_cache.remember(self._raw_head, head)
        request = HttpRequest(head, self, client=self.client, keep_alive=keep_alive)
        request.waiting_for_100_continue = expects
        free, self.cycle = self._can_start_next, request
        if free:
            self._start_prediction(request)
        else:
            self.pipeline.appendleft((request, None))
            if self.flow.write_paused:
                self.flow.pause_reading()
            self._count_held(self._head_size())

    def _begin_cached_request(self, head: RequestHead, body: bytes) -> None:
        """Pass a request to the handler that arrived in one piece with a cached head."""
        request = self.cycle = HttpRequest(head, self, client=self.client)
        request.body, request.more_body = body, False
        self.since = self.body_started_at = self._limiter.now
        self._unsent_at_check = 0
        self._start_prediction(request)

    @property
    def _can_start_next(self) -> bool:
        """Whether all earlier requests are answered and the client has read the responses."""
        newest = self.cycle
        return (newest is None or newest.response_complete) and not self.flow.write_paused

    def _start_prediction(self, request: HttpRequest) -> None:
        self._active = request
        if request.head.rejection is not None:
            if self._has_handler:
                self._handler.on_request_error(request, request.head.rejection)
            else:
                request.respond_error(request.head.rejection)
            return
        try:
            self._handler.on_request_head(request)
        except Exception:
            self._respond_internal_error(request)
        if request.response_complete:
            return
        if not request.more_body or self._body_bytes > self._max_body_bytes:
            self._complete_body(request)
        elif request.waiting_for_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _append_body(self, request: HttpRequest, body: bytes) -> None:
        if request.response_complete:
            return
        if request.body_parts is not None:
            request.body_parts.append(body)
        elif request.body:
            request.body_parts = [request.body, body]
        else:
            request.body = body
        if request is self._active:
            if self._body_bytes > self._max_body_bytes:
                self._complete_body(request)
        elif self._body_bytes > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def _complete_body(self, request: HttpRequest) -> None:
        if request.body_parts is not None:
            request.body, request.body_parts = b"".join(request.body_parts), None
        if request.head.encoding and 0 < len(request.body) <= self._max_body_bytes:
            self._decompress_body(request)
        else:
            self._pass_to_handler(request)

    def _pass_to_handler(self, request: HttpRequest) -> None:
        if self.held_bytes:
            self._uncount_held(request)
        try:
            self._handler.on_request_complete(request)
        except Exception:
            self._respond_internal_error(request)

    def _decompress_body(self, request: HttpRequest) -> None:
        """Decompress the body: at once, or in several turns of the event loop."""
        try:
            decompressor = BodyDecompressor(request.head.encoding, request.body, self._max_body_bytes)
        except ServingError as error:
            self._handler.on_request_error(request, error)
            return
        uncounted = len(request.body) - self._held.get(request, 0)
        if not self._decompress_step(request, decompressor, uncounted):
            self._limiter.decompressions.add(functools.partial(self._decompress_step, request, decompressor))

    def _decompress_step(
        self, request: HttpRequest, decompressor: BodyDecompressor, uncounted: int = 0
    ) -> bool:
        """Returns whether decompression is over.

        `uncounted` are bytes of the body not yet in `held_bytes`.
        """
        if request.response_complete:
            return True
        before = decompressor.size
        try:
            is_whole = decompressor.step()
            if not is_whole:
                self._count_decompressed(request, decompressor.size - before + uncounted)
                return False
            request.body = decompressor.body
        except ServingError as error:
            self._uncount_held(request)
            self._handler.on_request_error(request, error)
        except Exception:
            self._respond_internal_error(request)
        else:
            self._pass_to_handler(request)
        return True

    def _count_decompressed(self, request: HttpRequest, size: int) -> None:
        """Count decompressed bytes. Raises Unavailable if that exceeds the limit."""
        limiter = self._limiter
        self._held[request] = self._held.get(request, 0) + size
        self.held_bytes += size
        limiter.count_arriving(size)
        if limiter.exceeds_arriving_bytes and limiter.arriving_bytes > self.held_bytes:
            raise limiter.overload_error("there is no room to unpack this one")

    def _respond_internal_error(self, request: HttpRequest) -> None:
        logger.exception("a request could not be answered")
        request.respond_error(Internal("Internal error encountered."))

    def _is_persistent(self) -> bool:
        parser = self.parser
        lasting = parser.get_http_version() != "1.0" and parser.get_method() != _CONNECT
        return lasting and self._limiter.keeps_alive and bool(parser.should_keep_alive())

    def _request_path(self) -> str:
        return (_parse_path_cached if len(self.url) <= _MAX_CACHED_PATH_BYTES else _parse_path)(self.url)

    # ---- timeouts

    def check_timeouts(self, now: float) -> None:
        """Reject the request or close the connection if its client is too slow."""
        settings = self._limiter.settings
        if self.phase is HANDSHAKE:
            if now - self.since >= settings.header_timeout:
                self._limiter.rejections["header_timeout"] += 1
                self.shutdown()
        elif self._is_reading_too_slowly(now):
            self._limiter.rejections["answer_timeout"] += 1
            self.transport.abort()
        elif self.transport.is_closing():
            pass  # until the client has read the rest
        elif self.is_answering or self.pipeline or (self.phase is BODY and self.flow.read_paused):
            # The server's time: the client's next request, if it has begun, gets the full timeouts.
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
                        "The head of the request did not arrive within "
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
        """Bytes per second at which the client reads (infinite in the first second), and since when."""
        seconds = self._limiter.now - self._response_started_at
        pace = (self._response_bytes - self.unsent_bytes) / seconds if seconds >= 1 else math.inf
        return pace, self._response_started_at

    def abort_connection(self) -> None:
        """Close the connection with everything its client has not read."""
        self._limiter.rejections["unsent_bytes"] += 1
        self._limiter.change_unsent(-self.unsent_bytes)
        self.unsent_bytes, self._responses_dropped = 0, True
        self.loop.call_soon(self.transport.abort)  # not within a write of this connection

    # ---- rejecting

    def reject(self, why: str, error: ServingError) -> None:
        """Answer with an error where possible, and close after a moment in which the client can read it.

        `why` is the key in `rejections`: the setting that was exceeded, or another word.
        """
        self._limiter.rejections[why] += 1
        self._problem = None  # its traceback would keep the connection alive
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
        """Half-close where possible: a reset would overtake the response."""
        if self.transport.can_write_eof():
            self.flow.resume_reading()
            self.transport.write_eof()
        else:
            self.transport.close()

    def _reject_malformed(self, error: httptools.HttpParserError) -> None:
        """Reject what the parser does not accept."""
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
            self.reject(
                "syntax",
                InvalidArgument(f"The request is not valid HTTP/1.1: {told or 'it cannot be parsed'}."),
            )

    def _has_earlier_request(self) -> bool:
        """Whether a request before the one being read is still unanswered."""
        running = self._active
        if running is None or running.response_complete:
            return False
        return self.phase is not BODY or running is not self.cycle

    def _close_after_earlier_requests(self) -> None:
        """Answer the complete requests, then close; the rest of the input is ignored."""
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
        if isinstance(cycle, HttpRequest):
            cycle.handle_disconnect()
        elif cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    # ---- memory

    @property
    def releasable_bytes(self) -> int:
        """Bytes that `reject_pending_requests` would free."""
        running = self._active
        if running is None or running.more_body:
            return self.held_bytes
        return self.held_bytes - self._held.get(running, 0)

    def reject_pending_requests(self, error: ServingError) -> None:
        """Drop requests that have not begun. `error` answers the first if none is being answered."""
        for cycle, _ in self.pipeline:
            self._uncount_held(cycle)
        self.pipeline.clear()
        self.reject("arriving_bytes", error)

    def _count_held(self, size: int) -> None:
        """Count bytes of the newest request."""
        self._held[self.cycle] = self._held.get(self.cycle, 0) + size
        self.held_bytes += size
        self._limiter.count_arriving(size)

    def _uncount_held(self, cycle: Cycle) -> None:
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
                self._problem = InvalidArgument("The request has two Host headers: HTTP/1.1 requires one.")
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
        """The head without its request for an upgrade, for which the parser would skip the body."""
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

    def _head_too_large_error(self) -> HeadTooLarge:
        limit = self._limiter.max_head_bytes
        return HeadTooLarge(f"The head of the request is over {limit} bytes (setting max_header_bytes).")


def _tunnel_error() -> Unimplemented:
    return Unimplemented("CONNECT is not supported: this server is not a proxy.")


def _parse_path(url: bytes) -> str:
    path = httptools.parse_url(url).path.decode("ascii")
    return urllib.parse.unquote(path) if "%" in path else path


_parse_path_cached = functools.lru_cache(_MAX_CACHED_PATHS)(_parse_path)


def _minimum_bytes(seconds: float, settings: ServerSettings) -> float:
    """Bytes that must be transferred in this time."""
    return max(1.0, seconds * settings.min_bytes_per_second)
