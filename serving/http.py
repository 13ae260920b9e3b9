"""Runs an ASGI application on uvicorn with uvloop and httptools, and ends it the orderly way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from serving.errors import Unavailable

App = Callable[..., Awaitable[None]]
BACKLOG = 2048


class Server(uvicorn.Server):
    """Stops on SIGTERM and SIGINT: no new connections, requests in flight finish, then serve() returns."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Our own handlers: uvicorn would raise the signal again, and the process would not exit with 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self.server_state.connections)

    def stop(self) -> None:
        """Begin to stop; a second call does not wait for requests in flight."""
        self.force_exit = self.should_exit
        self.should_exit = True


def make_server(app: App, *, keep_alive: float, drain: float) -> Server:
    """A server for the application.

    `keep_alive` is how many seconds an idle connection stays open, `drain` how many requests in flight
    are given when the server stops.
    """
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=int(keep_alive),
            proxy_headers=False,
            timeout_graceful_shutdown=max(1, int(drain)),
        )
    )


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises Unavailable when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"Cannot listen on {host}:{port}: {error.strerror}. Choose another --port."
        ) from error
    listener.listen(BACKLOG)
    return listener


def listen_unix(path: Path) -> socket.socket:
    """A listening unix socket. Raises Unavailable when the path cannot be had."""
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


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run the program's main coroutine on uvloop; its result is the exit code."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
