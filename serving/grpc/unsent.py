"""Answers that wait until clients read them: there may not be too many bytes of them, nor for too long.

gRPC keeps an answer whole until all of it has gone into the connection's socket; so long the task of its call
lasts. It tells nobody how far it is, and lets nobody end a call whose answer is on its way. But the socket
may be shut down: to gRPC it is as if the client had left, and it frees all that was for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections import Counter
from collections.abc import Callable, Set
from pathlib import Path
from typing import NamedTuple

from serving.config import ServerSettings
from serving.grpc.call import client_of

# Seconds between two looks at how long answers have waited.
_EVERY = 1.0
# A client has so many times `answer_timeout` to read an answer, however long that is; so over HTTP.
_ANSWER_TIMEOUTS = 10
_DESCRIPTORS = "/dev/fd"

# Clients are named as gRPC names peers.
CloseConnections = Callable[[Set[str]], None]


class _Answer(NamedTuple):
    client: str
    size: int
    since: float


class UnsentAnswers:
    """All that wait, the oldest first. There is no timer while there are none.

    `close` ends the connections of clients.
    """

    def __init__(
        self,
        settings: ServerSettings,
        close: CloseConnections,
        clock: Callable[[], float],
        refused: Counter[str],
    ) -> None:
        self._most = settings.unsent_bytes
        self._seconds = settings.answer_timeout
        self._pace = settings.min_bytes_per_second
        self._close = close
        self._clock = clock
        self._refused = refused
        self._answers: dict[asyncio.Task[object], _Answer] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.bytes = 0

    def add(self, call: asyncio.Task[object], client: str, size: int) -> None:
        """The answer to a call is given to gRPC; it waits until the call's task is done."""
        self._answers[call] = _Answer(client, size, self._clock())
        self.bytes += size
        call.add_done_callback(self._remove)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY, self._look)
        if self.bytes > self._most:
            self._make_room()

    def look(self, now: float) -> None:
        """Close the connections of clients that take too long for an answer."""
        late = {
            one.client for one in self._answers.values() if now - one.since >= self._seconds_for(one.size)
        }
        self._end(late, "answer_timeout")

    def _seconds_for(self, size: int) -> float:
        most = _ANSWER_TIMEOUTS * self._seconds
        return min(most, max(self._seconds, size / self._pace)) if self._pace else most

    def _make_room(self) -> None:
        """Close connections, those of the oldest answers first, until the others are within the limit."""
        answers = list(self._answers.values())
        sizes: Counter[str] = Counter()
        for one in answers:
            sizes[one.client] += one.size
        late: set[str] = set()
        left = self.bytes
        for one in answers[:-1]:  # alone, an answer may be of any size that an answer may have
            if left <= self._most:
                break
            if one.client not in late:
                late.add(one.client)
                left -= sizes[one.client]
        self._end(late, "unsent_bytes")

    def _end(self, clients: Set[str], why: str) -> None:
        """Close connections; what waits on them counts no more."""
        for call in [call for call, one in self._answers.items() if one.client in clients]:
            self._remove(call)
        if clients:
            self._refused[why] += len(clients)
            self._close(clients)

    def _remove(self, call: asyncio.Task[object]) -> None:
        answer = self._answers.pop(call, None)
        if answer is not None:
            self.bytes -= answer.size

    def _look(self) -> None:
        self._timer = None
        try:
            self.look(self._clock())
        finally:
            if self._answers:
                self._timer = asyncio.get_running_loop().call_later(_EVERY, self._look)


def shut_down(port: int, clients: Set[str]) -> None:
    """End the connections of clients to a port of this process, below whoever has them."""
    wanted = {_normal(*address) for client in clients if (address := client_of(client)) is not None}
    for entry in Path(_DESCRIPTORS).iterdir():
        with contextlib.suppress(OSError), _socket(int(entry.name)) as found:
            if found.getsockname()[1:2] == (port,) and _normal(*found.getpeername()[:2]) in wanted:
                found.shutdown(socket.SHUT_RDWR)


def _socket(descriptor: int) -> socket.socket:
    """A duplicate, since another thread may close the descriptor meanwhile. Raises OSError."""
    duplicate = os.dup(descriptor)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:  # it is none
        os.close(duplicate)
        raise


def _normal(host: str, port: int) -> tuple[str, int]:
    """An address in one of the forms it may be written in."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), port
