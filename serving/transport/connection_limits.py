"""Limits all client connections share: their number, the memory of incomplete requests, their timeouts.

A `ConnectionLimiter` checks each connection once a second, a tenth of them at a time: no timer per request.
Its clock stands still while the event loop is blocked, so that no client is blamed for the server's own
delay.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Protocol

from serving.config import ServerSettings
from serving.errors import Unavailable
from serving.transport.content_encoding import DecompressionQueue
from serving.transport.cross_origin import UNENFORCED_POLICY, CrossOriginPolicy
from serving.transport.request_head import RequestHeadCache

# Ten checks a second, each of a tenth of the connections; one advances the clock by so many seconds at most.
SLICES = 10
_MAX_CHECK_SECONDS = 0.3
# Idle connections are closed when more than this share of `max_connections` is in use.
_CROWDED_SHARE = 0.9


class LimitedConnection(Protocol):
    """A client's connection, as far as it is limited; what the members say is in `HttpConnection`."""

    held_bytes: int
    unsent_bytes: int
    since: float
    body_started_at: float

    @property
    def is_idle(self) -> bool: ...

    @property
    def read_rate(self) -> tuple[float, float]: ...

    @property
    def releasable_bytes(self) -> int:
        """What `reject_pending_requests` frees."""

    def check_timeouts(self, now: float) -> None: ...

    def reject_pending_requests(self, error: Unavailable) -> None: ...

    def abort_connection(self) -> None: ...

    def shutdown(self) -> None: ...


class ConnectionLimiter:
    """All client connections of one server."""

    def __init__(
        self,
        settings: ServerSettings,
        max_connections: float = math.inf,
        cross_origin: CrossOriginPolicy = UNENFORCED_POLICY,
    ) -> None:
        self.settings = settings
        self.cross_origin = cross_origin
        self.max_connections = min(settings.max_connections, max_connections)
        self.max_head_bytes = settings.max_header_bytes
        self.now = 0.0  # seconds in which the event loop was not blocked, advanced at each check
        self.arriving_bytes = 0  # the sum of `held_bytes`
        self.unsent_bytes = 0  # the sum of `unsent_bytes`
        self.rejections: Counter[str] = Counter()  # by the setting that was exceeded
        self.head_cache = RequestHeadCache()
        self.keeps_alive = True  # whether connections may stay open after an answer
        self.decompressions = DecompressionQueue()
        self._slices: list[set[LimitedConnection]] = [set() for _ in range(SLICES)]
        self._slice_index = 0
        self._last_check: float | None = None

    @property
    def open_connections(self) -> int:
        return sum(map(len, self._slices))

    def add_connection(self, connection: LimitedConnection) -> int | None:
        """The slice of a new connection, to give to `remove_connection`; None beyond `max_connections`."""
        if self.open_connections >= self.max_connections:
            self.rejections["max_connections"] += 1
            return None
        number = min(range(SLICES), key=lambda number: len(self._slices[number]))
        self._slices[number].add(connection)
        return number

    def remove_connection(self, connection: LimitedConnection, number: int) -> None:
        self._slices[number].discard(connection)

    def stop_keeping_alive(self) -> None:
        """Close each connection with its next answer, which says so."""
        self.keeps_alive = False
        # Requests with a cached head keep their connection.
        self.head_cache = RequestHeadCache()

    def check_next_slice(self, time: float) -> None:
        """Check the next tenth of the connections; `time` is on the event loop's clock, in seconds."""
        if self._last_check is not None:
            self.now += min(time - self._last_check, _MAX_CHECK_SECONDS)
        self._last_check = time
        self._slice_index = (self._slice_index + 1) % SLICES
        for connection in tuple(self._slices[self._slice_index]):
            connection.check_timeouts(self.now)
        if self._slice_index == 0:
            self._close_surplus_idle()

    def count_arriving(self, size: int) -> None:
        self.arriving_bytes += size
        if self.exceeds_arriving_bytes:
            self._reject_oldest_request()

    @property
    def exceeds_arriving_bytes(self) -> bool:
        """Whether incomplete requests use more than `arriving_bytes`."""
        return self.arriving_bytes > self.settings.arriving_bytes

    def overload_error(self, why: str) -> Unavailable:
        limit = self.settings.arriving_bytes
        return Unavailable(
            f"Too many bytes of requests arrive or wait (setting arriving_bytes = {limit}), and {why}.",
            retry_after=1,
        )

    def change_unsent(self, change: int) -> None:
        self.unsent_bytes += change
        if change > 0 and self.unsent_bytes > self.settings.unsent_bytes:
            self._drop_slowest_readers()

    def _drop_slowest_readers(self) -> None:
        """Close the connections with the lowest read rate until the rest is within the limit."""
        readers = [one for members in self._slices for one in members if one.unsent_bytes]
        readers.sort(key=lambda one: one.read_rate, reverse=True)
        # A single response may have any size.
        while self.unsent_bytes > self.settings.unsent_bytes and len(readers) > 1:
            readers.pop().abort_connection()

    def _reject_oldest_request(self) -> None:
        """Reject the request that has been incomplete or queued for longest."""
        holding = [one for members in self._slices for one in members if one.held_bytes]
        if len(holding) > 1:  # a single body may have any size
            slowest = min(
                (one for one in holding if one.releasable_bytes),
                key=lambda one: (one.body_started_at, -one.releasable_bytes),
                default=None,  # all held bytes are bodies being decompressed
            )
            if slowest is not None:
                slowest.reject_pending_requests(self.overload_error("this one has done so for longest"))

    def _close_surplus_idle(self) -> None:
        """Close the connections idle for longest when most of the places are taken."""
        surplus = self.open_connections - math.floor(_CROWDED_SHARE * self.max_connections)
        if surplus > 0:
            self.close_idle(surplus)

    def close_idle(self, count: int, seconds: float = 0) -> None:
        """Close up to `count` of the connections idle for longest, for `seconds` at least."""
        idle = [one for members in self._slices for one in members if one.is_idle]
        for connection in sorted(idle, key=lambda one: one.since)[:count]:
            if self.now - connection.since >= seconds:
                connection.shutdown()
