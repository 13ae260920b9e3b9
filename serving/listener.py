"""Accepts connections of clients, also where there is no file descriptor for them.

libuv, when it has none, resets all connections that wait. Here they wait on while idle ones are closed, and
are told after a moment what the server is short of.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable

from serving.shortage import shortage_of
from serving.wire import raw_answer

logger = logging.getLogger(__name__)

# Connections that are accepted in one turn of the event loop.
_AT_A_TIME = 100
# Seconds until the next try, and after which those that wait are refused.
_PAUSE, _HELD_AT_MOST = 0.1, 1.0
# What concerns one connection, which is gone again.
_CLIENTS = frozenset({errno.ECONNABORTED, errno.EPROTO})
# Bytes of a request that are read before it is refused.
_UNREAD = 1 << 16


# Is told, at each try, why no connection can be accepted; "" once one can.
ShortageListener = Callable[[str], None]


def ignore_shortage(_: str) -> None:
    """Tell nobody."""


class Listener:
    """Accepts connections on a listening socket from `start` to `close`.

    `connect` makes the protocol of one, `make_room` is asked to close idle ones. With `secure` connections
    begin with TLS, and are its from then on.
    """

    def __init__(
        self,
        listening: socket.socket,
        connect: Callable[[], asyncio.Protocol],
        *,
        make_room: Callable[[], None],
        tell: ShortageListener,
        secure: Callable[[socket.socket], None] | None = None,
    ) -> None:
        self._listening = listening
        self._connect = connect
        self._make_room = make_room
        self._tell = tell
        self._secure = secure
        self._loop = asyncio.get_running_loop()
        self._reserve: int | None = None
        self._short_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[object]] = set()

    def start(self) -> None:
        """Accept connections from now on."""
        self._listening.setblocking(False)
        self._keep_reserve()
        self._loop.add_reader(self._listening, self._accept_all)

    def close(self) -> None:
        """Accept no more."""
        self._loop.remove_reader(self._listening)
        if self._timer is not None:
            self._timer.cancel()
        for task in self._opening:
            task.cancel()
        self._free_reserve()

    def _accept_all(self) -> None:
        try:
            for _ in range(_AT_A_TIME):
                self._open(self._listening.accept()[0])
        except BlockingIOError:  # nobody waits any more
            if self._short_since is not None:
                logger.warning("connections are accepted again")
                self._short_since = None
                self._keep_reserve()
                self._tell("")
        except OSError as error:
            if error.errno not in _CLIENTS:
                self._pause(error)

    def _open(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._secure is not None:
            self._secure(accepted)
            return
        opening = self._loop.connect_accepted_socket(self._connect, accepted)
        task = self._loop.create_task(opening, name="connection")
        self._opening.add(task)
        task.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[object]) -> None:
        self._opening.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a connection could not be opened: %s", error)

    def _pause(self, error: OSError) -> None:
        """Leave those that ask where they are, for a moment, and make room for them."""
        if self._short_since is None:
            self._short_since = self._loop.time()
            logger.error("no connection can be accepted: %s", error)
        self._tell(f"No connection can be accepted: {error}")
        if self._loop.time() - self._short_since >= _HELD_AT_MOST:
            self._refuse_all(error)
        self._make_room()
        self._loop.remove_reader(self._listening)
        self._timer = self._loop.call_later(_PAUSE, self._resume)

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._accept_all)
        self._accept_all()

    def _refuse_all(self, error: OSError) -> None:
        """Answer those that wait, one after the other, with the descriptor that is kept for it."""
        shortage = shortage_of(error)
        answer = b"" if shortage is None or self._secure is not None else raw_answer(shortage)
        with contextlib.suppress(OSError):
            for _ in range(_AT_A_TIME):
                self._free_reserve()
                _refuse(self._listening.accept()[0], answer)
                self._keep_reserve()
        self._keep_reserve()

    def _keep_reserve(self) -> None:
        if self._reserve is None:
            try:
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return  # at the next time

    def _free_reserve(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None


def _refuse(client: socket.socket, answer: bytes) -> None:
    with client, contextlib.suppress(OSError):
        client.setblocking(False)
        client.send(answer)
        client.shutdown(socket.SHUT_WR)
        client.recv(_UNREAD)  # what is left unread makes a reset of the end, which overtakes the answer
