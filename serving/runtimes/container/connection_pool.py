"""Connections to a container, each used by one thread at a time."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections import deque
from collections.abc import Callable, Iterator

from serving.runtimes.container.running_container import is_closed

# Seconds after which the container may close an idle connection.
_IDLE = 1.0


class ConnectionPool:
    """As many connections as are used at a time. Threads may share it."""

    def __init__(self, connect: Callable[[], http.client.HTTPConnection]) -> None:
        self._connect = connect
        self._idle: deque[tuple[http.client.HTTPConnection, float]] = deque()

    @contextlib.contextmanager
    def lease(self) -> Iterator[http.client.HTTPConnection]:
        """A connection that can be written to; it is closed if the block raises."""
        connection = self._take()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        finally:
            self._idle.append((connection, time.monotonic()))

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self._idle.pop()[0].close()

    def _take(self) -> http.client.HTTPConnection:
        """The one that was used last. Servers hang up on idle ones, and nothing is sent twice."""
        try:
            connection, used_at = self._idle.pop()
        except IndexError:
            return self._connect()
        if time.monotonic() - used_at > _IDLE or is_closed(connection):
            connection.close()  # it is opened again by its next request
        return connection
