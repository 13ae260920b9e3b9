"""What connections of clients are granted together: places, memory for what arrives, and their time.

A `Gate` looks at each connection once a second, a tenth of them at a time, and has those end that do not keep
to their time: no timer per request. Its clock stands still while the event loop is blocked, so that nobody is
blamed for what the server did not read.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from serving.config import FrontSettings
from serving.content_encoding import UnpackingQueue
from serving.cross_origin import UNPROTECTED, CrossOriginPolicy
from serving.errors import Unavailable
from serving.heads import Heads

if TYPE_CHECKING:
    from serving.connection import Connection

# Each look is at so much of the connections, ten times a second; the most seconds that one counts for.
SLICES = 10
_LOOK_AT_MOST = 0.3
# Idle connections make room when more than this share of the places is taken.
_CROWDED = 0.9


class Gate:
    """All connections of one server."""

    def __init__(
        self,
        settings: FrontSettings,
        most_connections: float = math.inf,
        cross_origin: CrossOriginPolicy = UNPROTECTED,
    ) -> None:
        self.settings = settings
        self.cross_origin = cross_origin
        self.most_connections = min(settings.max_connections, most_connections)
        self.most_head = settings.max_header_bytes
        self.now = 0.0  # seconds since the start in which the event loop was alive, in steps
        self.arriving = 0  # bytes that connections hold; see `Connection.held`
        self.unsent = 0  # bytes of answers that clients have not read, as far as that is known
        self.refused: Counter[str] = Counter()  # connections, by the setting that was not kept to
        self.heads = Heads()
        self.unpacking = UnpackingQueue()
        self._slices: list[set[Connection]] = [set() for _ in range(SLICES)]
        self._turn = 0
        self._last: float | None = None

    @property
    def open(self) -> int:
        """How many connections there are."""
        return sum(map(len, self._slices))

    def admit(self, connection: Connection) -> int | None:
        """The slice of a new connection; None when there is no place for it."""
        if self.open >= self.most_connections:
            self.refused["max_connections"] += 1
            return None
        number = min(range(SLICES), key=lambda number: len(self._slices[number]))
        self._slices[number].add(connection)
        return number

    def leave(self, connection: Connection, number: int) -> None:
        """A connection is closed."""
        self._slices[number].discard(connection)

    def look(self, time: float) -> None:
        """Look at the next tenth of the connections; `time` is on the event loop's clock, in seconds."""
        if self._last is not None:
            self.now += min(time - self._last, _LOOK_AT_MOST)
        self._last = time
        self._turn = (self._turn + 1) % SLICES
        for connection in tuple(self._slices[self._turn]):
            connection.look(self.now)
        if self._turn == 0:
            self._make_room()

    def arrived(self, size: int) -> None:
        """A connection holds so many bytes more."""
        self.arriving += size
        if self.is_full:
            self._refuse_slowest()

    @property
    def is_full(self) -> bool:
        """Whether connections hold more than they may together."""
        return self.arriving > self.settings.arriving_bytes

    def no_room(self, why: str) -> Unavailable:
        """The error for a request that there is no memory for."""
        limit = self.settings.arriving_bytes
        return Unavailable(
            f"Too many bytes of requests arrive or wait (setting arriving_bytes = {limit}), and {why}.",
            retry_after=1,
        )

    def count_unsent(self, change: int) -> None:
        """Answers that are not read have become so many bytes more."""
        self.unsent += change
        if change > 0 and self.unsent > self.settings.unsent_bytes:
            self._drop_slowest_readers()

    def _drop_slowest_readers(self) -> None:
        """Close those that have read least per second, until what is left is within the limit."""
        readers = [one for members in self._slices for one in members if one.unsent]
        readers.sort(key=lambda one: one.reading_pace, reverse=True)
        # Alone, an answer may be of any size that an answer may have.
        while self.unsent > self.settings.unsent_bytes and len(readers) > 1:
            readers.pop().drop_answers()

    def _refuse_slowest(self) -> None:
        """Let go of what has been arriving or waiting longest: healthy requests do not take long."""
        holding = [one for members in self._slices for one in members if one.held]
        if len(holding) > 1:  # alone, a body may be of any size that a request may have
            slowest = min(
                (one for one in holding if one.spare),
                key=lambda one: (one.begun, -one.spare),
                default=None,  # all that is held is being unpacked
            )
            if slowest is not None:
                slowest.make_room(self.no_room("this one has done so for longest"))

    def _make_room(self) -> None:
        """Close those that have been idle longest, so that others find a place."""
        surplus = self.open - math.floor(_CROWDED * self.most_connections)
        if surplus > 0:
            self.close_idle(surplus)

    def close_idle(self, count: int, seconds: float = 0) -> None:
        """Close so many of the connections that have been idle longest, for so long at least."""
        idle = [one for members in self._slices for one in members if one.idle]
        for connection in sorted(idle, key=lambda one: one.since)[:count]:
            if self.now - connection.since >= seconds:
                connection.shutdown()
