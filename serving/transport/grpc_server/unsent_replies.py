"""Bounds the bytes and age of replies that clients have not read.

gRPC keeps a whole reply until all of it is written to the connection's socket; the task of the call lasts
until then. It does not report how much is written, and no call can be ended while its reply is being sent.
But the socket may be shut down: to gRPC it is as if the client had left, and it frees everything of the call.
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
from serving.transport.grpc_server.call import parse_peer

# Seconds between two checks of the replies' age.
_CHECK_INTERVAL = 1.0
# A client has so many times `answer_timeout` to read a reply of any length, as over HTTP.
_ANSWER_TIMEOUTS = 10
_DESCRIPTORS = "/dev/fd"

# Clients are named as gRPC names peers.
CloseConnections = Callable[[Set[str]], None]


class _UnsentReply(NamedTuple):
    client: str
    size: int
    since: float


class UnsentReplies:
    """All unsent replies, the oldest first. No timer runs while there are none.

    `close` closes the connections of clients.
    """

    def __init__(
        self,
        settings: ServerSettings,
        close: CloseConnections,
        clock: Callable[[], float],
        refused: Counter[str],
    ) -> None:
        self._max_bytes = settings.unsent_bytes
        self._seconds = settings.answer_timeout
        self._min_bytes_per_second = settings.min_bytes_per_second
        self._close = close
        self._clock = clock
        self._refused = refused
        self._replies: dict[asyncio.Task[object], _UnsentReply] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.bytes = 0

    def add(self, call: asyncio.Task[object], client: str, size: int) -> None:
        """Count a reply that was handed to gRPC until the call's task is done."""
        self._replies[call] = _UnsentReply(client, size, self._clock())
        self.bytes += size
        call.add_done_callback(self._forget_call)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_INTERVAL, self._on_timer)
        if self.bytes > self._max_bytes:
            self._evict_oldest()

    def enforce_timeouts(self, now: float) -> None:
        """Close the connections of clients that take too long to read a reply."""
        late = {
            one.client for one in self._replies.values() if now - one.since >= self._allowed_seconds(one.size)
        }
        self._close_clients(late, "answer_timeout")

    def _allowed_seconds(self, size: int) -> float:
        most = _ANSWER_TIMEOUTS * self._seconds
        return (
            min(most, max(self._seconds, size / self._min_bytes_per_second))
            if self._min_bytes_per_second
            else most
        )

    def _evict_oldest(self) -> None:
        """Close connections, those of the oldest replies first, until the others are within the limit."""
        answers = list(self._replies.values())
        sizes: Counter[str] = Counter()
        for one in answers:
            sizes[one.client] += one.size
        late: set[str] = set()
        left = self.bytes
        for one in answers[:-1]:  # a single reply may have any size
            if left <= self._max_bytes:
                break
            if one.client not in late:
                late.add(one.client)
                left -= sizes[one.client]
        self._close_clients(late, "unsent_bytes")

    def _close_clients(self, clients: Set[str], why: str) -> None:
        """Close connections; replies on them no longer count."""
        for call in [call for call, one in self._replies.items() if one.client in clients]:
            self._forget_call(call)
        if clients:
            self._refused[why] += len(clients)
            self._close(clients)

    def _forget_call(self, call: asyncio.Task[object]) -> None:
        answer = self._replies.pop(call, None)
        if answer is not None:
            self.bytes -= answer.size

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self.enforce_timeouts(self._clock())
        finally:
            if self._replies:
                self._timer = asyncio.get_running_loop().call_later(_CHECK_INTERVAL, self._on_timer)


def shut_down_connections(port: int, clients: Set[str]) -> None:
    """Shut down the sockets of clients of a port of this process, whoever owns them."""
    wanted = {
        _normalize_address(*address) for client in clients if (address := parse_peer(client)) is not None
    }
    for entry in Path(_DESCRIPTORS).iterdir():
        with contextlib.suppress(OSError), _duplicate_socket(int(entry.name)) as found:
            if found.getsockname()[1:2] == (port,) and _normalize_address(*found.getpeername()[:2]) in wanted:
                found.shutdown(socket.SHUT_RDWR)


def _duplicate_socket(descriptor: int) -> socket.socket:
    """Duplicate it, since another thread may close the descriptor meanwhile. Raises OSError."""
    duplicate = os.dup(descriptor)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:  # it is no socket
        os.close(duplicate)
        raise


def _normalize_address(host: str, port: int) -> tuple[str, int]:
    """Map an address to one of the forms in which it may be written."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), port
