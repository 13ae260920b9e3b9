"""Runs an ASGI application on uvicorn with uvloop and httptools, with graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import resource
import signal
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, Protocol, cast

import uvicorn
from starlette.middleware.cors import CORSMiddleware

from serving.config import OFF, ServerSettings
from serving.errors import Unavailable
from serving.transport.acceptor import ConnectionAcceptor, ShortageCallback, ignore_shortage
from serving.transport.connection_limits import SLICES, ConnectionLimiter
from serving.transport.cross_origin import EXPOSED_HEADERS, UNENFORCED_POLICY, CrossOriginPolicy
from serving.transport.event_loop import end_process_within
from serving.transport.http_connection import HttpConnection
from serving.transport.request import HttpPredictionHandler
from serving.transport.tls import CertificateFiles

App = Callable[..., Awaitable[None]]
BACKLOG = 2048

logger = logging.getLogger(__name__)

# Share of the process's limit of open files that clients may use: nodes, models and logs need some too.
_CLIENT_SHARE_OF_FILES = 0.8
# Out of descriptors: how many connections are closed at a time, and how long they must have been idle.
_CLOSE_AT_ONCE, _MIN_IDLE_SECONDS = 10, 1.0
# Share of the stop timeout after which pending tasks are logged.
_REPORT_AFTER_SHARE = 0.9
# Ticks of uvicorn, ten per second, between two log lines about rejections.
_REPORT_EVERY_TICKS = 600


class GracefulServer(uvicorn.Server):
    """Stops on SIGTERM and SIGINT: no new connections, requests in flight finish, then serve() returns.

    With a `stop_delay` it goes on accepting connections for so many seconds before. The process ends
    `stop_timeout` seconds after the requests in flight even if shutdown hangs; None: no limit.
    """

    def __init__(
        self, config: uvicorn.Config, *, stop_delay: float = 0, stop_timeout: float | None = None
    ) -> None:
        super().__init__(config)
        self._stop_delay = stop_delay
        self._stop_timeout = stop_timeout
        self._is_asked_to_stop = False

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until stopped. A failed start is logged and sets `exit_code`."""
        with contextlib.suppress(SystemExit):  # uvicorn would exit with a status of its own
            await super().serve(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install our own handlers.

        Uvicorn would raise the signal again and the exit status would not be 0.
        """
        loop = asyncio.get_running_loop()

        def handle(*_: object) -> None:
            self._limit_stop_time()  # not on the event loop, which may hang
            loop.call_soon_threadsafe(self.stop)

        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def open_connections(self) -> int:
        return len(self.server_state.connections)

    failed = False

    def stop_with_error(self, reason: str) -> None:
        """Begin to stop because of an error; the process exits with 1."""
        if self.should_exit:
            return
        logger.critical("the server stops: %s", reason)
        self._limit_stop_time()
        self.failed = self.should_exit = True

    def _limit_stop_time(self) -> None:
        if self._stop_timeout is not None:
            # A second request to stop does not wait: neither for clients nor for requests in flight.
            drain = 0 if self.should_exit else self.config.timeout_graceful_shutdown or 0
            delay = 0 if self.should_exit or self._is_asked_to_stop else self._stop_delay
            seconds = delay + drain + self._stop_timeout
            end_process_within(seconds)
            loop = asyncio.get_event_loop()
            loop.call_soon_threadsafe(loop.call_later, _REPORT_AFTER_SHARE * seconds, _log_pending_tasks)

    @property
    def exit_code(self) -> int:
        """Valid once `serve` has returned: 0 if the server had started and was stopped regularly."""
        return 0 if self.started and not self.failed and not self.lifespan.shutdown_failed else 1

    def stop(self) -> None:
        """Begin to stop. Another call ends the delay, and the next does not wait for requests in flight."""
        if self._stop_delay and not self._is_asked_to_stop and not self.should_exit:
            self._is_asked_to_stop = True
            self.on_stop_delay()
            asyncio.get_running_loop().call_later(self._stop_delay, self._end_stop_delay)
            return
        self.force_exit = self.should_exit
        self.should_exit = True

    def on_stop_delay(self) -> None:
        """Called when the delay begins."""

    def _end_stop_delay(self) -> None:
        self.should_exit = True


def _log_pending_tasks() -> None:
    tasks = sorted(f"{task.get_name()} ({task.get_coro()!r})" for task in asyncio.all_tasks())
    logger.critical("shutdown timed out, the process exits; pending tasks: %s", ", ".join(tasks))


class CompanionServer(Protocol):
    """A server of another protocol that starts and stops with the HTTP server.

    `rejections` counts closed connections by the setting that was exceeded.
    """

    rejections: Counter[str]

    async def start(self, on_death: Callable[[str], None]) -> None:
        """Accept requests. `on_death` is called with the reason if the server stops unasked."""

    async def stop(self, grace: float) -> None:
        """Accept no more requests; returns once those in flight are done, within `grace` seconds.

        May be called again with a shorter time.
        """


class HttpServer(GracefulServer):
    """A server for untrusted clients: `limiter` bounds their connections; `companion` runs beside it.

    `on_stop_delay` is called when the server is asked to stop and has a delay, `on_stopping` before requests
    in flight are waited for.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        limiter: ConnectionLimiter,
        companion: CompanionServer | None,
        *,
        on_shortage: ShortageCallback,
        on_stop_delay: Callable[[], None],
        on_stopping: Callable[[], None],
        stop_delay: float,
        stop_timeout: float | None,
    ) -> None:
        super().__init__(config, stop_delay=stop_delay, stop_timeout=stop_timeout)
        self._on_stop_delay = on_stop_delay
        self._on_stopping = on_stopping
        self._limiter = limiter
        self._companion = companion
        self._on_shortage = on_shortage
        self._listeners: list[ConnectionAcceptor] = []
        self._reported_rejections: Counter[str] = Counter()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept connections."""
        await super().startup([])
        for listening in sockets or ():
            listener = ConnectionAcceptor(
                listening,
                self._make_connection,
                make_room=self._make_room,
                on_shortage=self._on_shortage,
                begin_tls=None
                if self.config.ssl is None
                else functools.partial(self._begin_tls, self.config.ssl),
            )
            listener.start()
            self._listeners.append(listener)
        if self._companion is not None:
            await self._companion.start(self.stop_with_error)

    async def open_private_connection(self, handler: HttpPredictionHandler) -> socket.socket:
        """A new connection to this server over a socket pair; `handler` answers its predictions.

        The server must have begun to start. The connection has a head cache of its own.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        limiter = ConnectionLimiter(self._limiter.settings)
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(
            lambda: HttpConnection(limiter, handler, **self._connection_arguments()), theirs
        )
        return ours

    def _connection_arguments(self) -> dict[str, Any]:
        """The arguments that uvicorn passes to each connection."""
        return {
            "config": self.config,
            "server_state": self.server_state,
            "app_state": self.lifespan.state,
        }

    def _make_connection(self) -> HttpConnection:
        connect = cast(Callable[..., HttpConnection], self.config.http_protocol_class)
        return connect(**self._connection_arguments())

    def _begin_tls(self, tls: ssl.SSLContext, accepted: socket.socket) -> None:
        self._make_connection().begin_handshake(accepted, tls)

    def _make_room(self) -> None:
        self._limiter.close_idle(_CLOSE_AT_ONCE, _MIN_IDLE_SECONDS)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        self._check_connections()
        if self.lifespan.error_occurred:
            self.stop_with_error("the application has ended.")
        if counter % _REPORT_EVERY_TICKS == 0 and (news := self.rejections - self._reported_rejections):
            counts = ", ".join(f"{why} {count}" for why, count in news.most_common())
            logger.warning("connections and requests rejected in the last minute: %s", counts)
            self._reported_rejections += news
        return await super().on_tick(counter)

    @property
    def rejections(self) -> Counter[str]:
        """Connections and requests rejected since the start, by the setting that was exceeded."""
        return self._limiter.rejections + (
            Counter() if self._companion is None else self._companion.rejections
        )

    def on_stop_delay(self) -> None:
        """Answer on, but have each client leave with its next answer."""
        self._on_stop_delay()
        self._limiter.stop_keeping_alive()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests in flight finish; timeouts for slow clients stay in force."""
        self._on_stopping()
        for listener in self._listeners:
            listener.close()
        looking = asyncio.create_task(self._check_connections_until_cancelled())
        if self._companion is not None:
            # uvicorn waits for these tasks before the application's shutdown.
            tasks = self.server_state.tasks
            stopping = asyncio.create_task(self._companion.stop(self.config.timeout_graceful_shutdown or 0))
            tasks.add(stopping)
            stopping.add_done_callback(tasks.discard)
        try:
            await super().shutdown(sockets)
        finally:
            looking.cancel()
            if self._companion is not None:
                await self._companion.stop(0)

    async def _check_connections_until_cancelled(self) -> None:
        while True:
            self._check_connections()
            await asyncio.sleep(1 / SLICES)

    def _check_connections(self) -> None:
        try:
            self._limiter.check_next_slice(asyncio.get_running_loop().time())
        except Exception:
            logger.exception("the timeouts of connections could not be checked; retrying")


def max_connections_per_port(settings: ServerSettings) -> int:
    """The connection limit of each port, within the process's limit of open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    ports = 1 if settings.grpc_port == OFF else 2
    return min(settings.max_connections, int(_CLIENT_SHARE_OF_FILES * files / ports))


def _do_nothing() -> None:
    pass


def make_http_server(
    app: App,
    *,
    settings: ServerSettings,
    drain: float,
    certificate: CertificateFiles | None = None,
    handler: HttpPredictionHandler | None = None,
    companion: CompanionServer | None = None,
    cross_origin: CrossOriginPolicy = UNENFORCED_POLICY,
    on_shortage: ShortageCallback = ignore_shortage,
    on_stop_delay: Callable[[], None] = _do_nothing,
    on_stopping: Callable[[], None] = _do_nothing,
    stop_delay: float = 0,
    stop_timeout: float | None = None,
) -> HttpServer:
    """A server for the application; `handler`, if given, answers predictions.

    `cross_origin` decides which requests are answered. `drain` is how many seconds requests in flight have
    when the server stops. With a `certificate` it speaks HTTPS. `on_shortage` is called while no connection
    can be accepted. A server that is asked to stop calls `on_stop_delay` and answers for `stop_delay` seconds
    more; then it calls `on_stopping` and waits for requests in flight. With a `stop_timeout` the process ends
    so many seconds after `drain` at the latest.
    """
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if cross_origin.origins:
        app = _add_cors(app, cross_origin)
    limiter = ConnectionLimiter(settings, max_connections_per_port(settings), cross_origin)
    config = uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], functools.partial(HttpConnection, limiter, handler)),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, int(drain)),
        ssl_certfile=certificate.chain if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )
    return HttpServer(
        config,
        limiter,
        companion,
        on_shortage=on_shortage,
        on_stop_delay=on_stop_delay,
        on_stopping=on_stopping,
        stop_delay=stop_delay,
        stop_timeout=stop_timeout,
    )


def _add_cors(app: App, policy: CrossOriginPolicy) -> App:
    """Wrap the application in CORS headers; it answers preflight requests for predictions too."""
    return CORSMiddleware(
        app,
        allow_origins=[origin.decode() for origin in policy.origins],
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=EXPOSED_HEADERS,
    )


def listen_tcp(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A listening TCP socket; `flag` sets its port. Raises Unavailable if the address cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"Cannot listen on {host}:{port}: {error.strerror}. Choose another {flag}."
        ) from error
    listener.listen(BACKLOG)
    return listener


def listen_unix(path: Path) -> socket.socket:
    """A listening unix socket. Raises Unavailable if the path cannot be bound."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"Cannot listen on the unix socket {path}: {error}. Choose another --uds."
        ) from error
    listener.listen(BACKLOG)
    return listener
