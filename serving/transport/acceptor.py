"""Accepts connections even when the process is out of file descriptors, which libuv would answer with resets.

Then new connections wait while idle ones are closed; after a second they get an error response.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable

from serving.errors import find_shortage
from serving.http_headers import encode_error_response

logger = logging.getLogger(__name__)

# Connections that are accepted in one turn of the event loop.
_ACCEPTS_PER_TURN = 100
# Seconds until the next attempt, and after which waiting connections are rejected.
_RETRY_SECONDS, _MAX_HOLD_SECONDS = 0.1, 1.0
# Errors of a single connection, which is gone again.
_CLIENT_ERRNOS = frozenset({errno.ECONNABORTED, errno.EPROTO})
# Bytes of a request that are read before the connection is closed.
_DISCARD_BYTES = 1 << 16


# Called at each attempt with the reason why no connection can be accepted; "" once one can.
ShortageCallback = Callable[[str], None]


def ignore_shortage(_: str) -> None: ...


class ConnectionAcceptor:
    """Accepts connections on a listening socket from `start` to `close`.

    `connect` makes the protocol of a connection; `make_room` closes idle ones. If given, `begin_tls` takes
    over each accepted socket.
    """

    def __init__(
        self,
        listening: socket.socket,
        connect: Callable[[], asyncio.BaseProtocol],
        *,
        make_room: Callable[[], None],
        on_shortage: ShortageCallback,
        begin_tls: Callable[[socket.socket], None] | None = None,
    ) -> None:
        self._listening = listening
        self._connect = connect
        self._make_room = make_room
        self._on_shortage = on_shortage
        self._begin_tls = begin_tls
        self._loop = asyncio.get_running_loop()
        self._reserve: int | None = None
        self._short_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._opening_tasks: set[asyncio.Task[object]] = set()

    def start(self) -> None:
        self._listening.setblocking(False)
        self._open_reserve()
        self._loop.add_reader(self._listening, self._accept_all)

    def close(self) -> None:
        """Accept no more; open connections stay."""
        self._loop.remove_reader(self._listening)
        if self._timer is not None:
            self._timer.cancel()
        for task in self._opening_tasks:
            task.cancel()
        self._close_reserve()

    def _accept_all(self) -> None:
        try:
            for _ in range(_ACCEPTS_PER_TURN):
                self._open_connection(self._listening.accept()[0])
        except BlockingIOError:  # no more connections wait
            if self._short_since is not None:
                logger.warning("connections are accepted again")
                self._short_since = None
                self._open_reserve()
                self._on_shortage("")
        except OSError as error:
            if error.errno not in _CLIENT_ERRNOS:
                self._pause_accepting(error)

    def _open_connection(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._begin_tls is not None:
            self._begin_tls(accepted)
            return
        opening = self._loop.connect_accepted_socket(self._connect, accepted)
        task = self._loop.create_task(opening, name="connection")
        self._opening_tasks.add(task)
        task.add_done_callback(self._on_connection_opened)

    def _on_connection_opened(self, task: asyncio.Task[object]) -> None:
        self._opening_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a connection could not be opened: %s", error)

    def _pause_accepting(self, error: OSError) -> None:
        """Stop accepting for a moment, and make room."""
        if self._short_since is None:
            self._short_since = self._loop.time()
            logger.error("no connection can be accepted: %s", error)
        self._on_shortage(f"No connection can be accepted: {error}")
        if self._loop.time() - self._short_since >= _MAX_HOLD_SECONDS:
            self._reject_waiting(error)
        self._make_room()
        self._loop.remove_reader(self._listening)
        self._timer = self._loop.call_later(_RETRY_SECONDS, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._loop.add_reader(self._listening, self._accept_all)
        self._accept_all()

    def _reject_waiting(self, error: OSError) -> None:
        """Answer waiting connections one after another, with the reserved descriptor."""
        shortage = find_shortage(error)
        answer = b"" if shortage is None or self._begin_tls is not None else encode_error_response(shortage)
        with contextlib.suppress(OSError):
            for _ in range(_ACCEPTS_PER_TURN):
                self._close_reserve()
                _reject_connection(self._listening.accept()[0], answer)
                self._open_reserve()
        self._open_reserve()

    def _open_reserve(self) -> None:
        if self._reserve is None:
            try:
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return  # until the next attempt

    def _close_reserve(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None


def _reject_connection(client: socket.socket, answer: bytes) -> None:
    with client, contextlib.suppress(OSError):
        client.setblocking(False)
        client.send(answer)
        client.shutdown(socket.SHUT_WR)
        # Unread input would make close() send a reset, which overtakes the response.
        client.recv(_DISCARD_BYTES)
