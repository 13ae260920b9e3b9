"""What happens on the server, in order: the last events, and those who read them as they come."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

from serving.errors import LimitReached, Unavailable
from serving.logs.sinks.cloud_logging_entries import format_rfc3339

# Events that are kept: how far behind a reader may be.
KEPT_EVENTS: Final = 1000
_MOST_AT_ONCE: Final = 64
_RETRY_AFTER: Final = 5
_MICROSECONDS: Final = 1_000_000


class EventKind(enum.StrEnum):
    """What an event tells of; `permission` lets a caller see it, on the resource that it is of."""

    SCALING = "scaling"
    NODE = "node"
    MODEL = "model"
    VERSION = "version"
    OPERATION = "operation"
    JOB = "job"

    @property
    def permission(self) -> str:
        return _PERMISSIONS[self]


_PERMISSIONS: Final[Mapping[EventKind, str]] = {
    EventKind.SCALING: "ml.versions.get",
    EventKind.NODE: "ml.versions.get",
    EventKind.MODEL: "ml.models.get",
    EventKind.VERSION: "ml.versions.get",
    EventKind.OPERATION: "ml.operations.get",
    EventKind.JOB: "ml.jobs.get",
}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that happened to `resource`; `target` is the model or version that an operation changes.

    `fields` are of JSON.
    """

    kind: EventKind
    resource: str
    fields: Mapping[str, Any]
    target: str = ""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """An occurrence with its time in its JSON, `data`; `id` is higher than that of any event before."""

    id: int
    kind: EventKind
    resource: str
    target: str
    data: bytes

    def concerns(self, parent: str) -> bool:
        """Whether it is of a resource or of one below it; "" is above all."""
        return not parent or any(
            name == parent or name.startswith(f"{parent}/") for name in (self.resource, self.target)
        )


class ReadingEndedError(Exception):
    """There are no more events for a reader; the message says why, `reason` in one word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class EventStream:
    """Keeps the last events and wakes their readers; called on the event loop.

    At most `max_readers` read at a time. `clock` is in seconds since the epoch. An id is a time in
    microseconds, so that it tells nobody how much happens that they may not see.
    """

    def __init__(
        self, max_readers: int, *, clock: Callable[[], float] = time.time, kept: int = KEPT_EVENTS
    ) -> None:
        self._max_readers = max_readers
        self._clock = clock
        self._kept = kept
        self._events: deque[ServerEvent] = deque()
        # Weak: one whose answer is never begun is closed by nobody.
        self._readers: weakref.WeakSet[EventReader] = weakref.WeakSet()
        self._last_id = 0
        self._forgotten_id = self.create_id()
        self.is_closed = False

    @property
    def forgotten_id(self) -> int:
        """Events up to this one are not kept."""
        return self._forgotten_id

    def create_id(self) -> int:
        """The id of the present: higher than that of any event so far, lower than that of the next one."""
        self._last_id = max(self._last_id + 1, int(self._clock() * _MICROSECONDS))
        return self._last_id

    def publish(self, occurrence: Occurrence) -> None:
        event_id = self.create_id()
        text = orjson.dumps({"time": format_rfc3339(event_id / _MICROSECONDS), **occurrence.fields})
        # A copy has the size of its text: what orjson returns keeps the 4 KiB that it was written to.
        data = bytes(memoryview(text))
        self._events.append(
            ServerEvent(event_id, occurrence.kind, occurrence.resource, occurrence.target, data)
        )
        for reader in self._readers:
            reader.wake()
        if len(self._events) > self._kept:
            self._forgotten_id = self._events.popleft().id
            # They hold no place any more, even if their clients never read why.
            self._readers -= {one for one in self._readers if not self.has_all_after(one.position)}

    def check_room(self) -> None:
        """Raises LimitReached while there are too many readers, Unavailable once the server stops."""
        if self.is_closed:
            raise Unavailable("The server is stopping.", retry_after=_RETRY_AFTER)
        if len(self._readers) >= self._max_readers:
            raise LimitReached(
                f"{len(self._readers)} readers follow the events already (setting event_readers).",
                setting="event_readers",
                retry_after=_RETRY_AFTER,
            )

    def open_reader(self, after: int | None) -> EventReader:
        """A reader of what comes after the event with this id, None: from now on; for a `with` block.

        What is not kept any more is passed over, and the reader says so. Raises as `check_room` does.
        """
        self.check_room()
        reader = EventReader(self, after)
        self._readers.add(reader)
        return reader

    def close_reader(self, reader: EventReader) -> None:
        self._readers.discard(reader)

    def read_after(self, event_id: int) -> Sequence[ServerEvent]:
        """The events after this one that are kept, the oldest first, at most some dozens."""
        newer = itertools.takewhile(lambda event: event.id > event_id, reversed(self._events))
        return list(newer)[::-1][:_MOST_AT_ONCE]

    def has_all_after(self, event_id: int) -> bool:
        """Whether all events after this id are kept; no id is higher than the last one."""
        return self._forgotten_id <= event_id <= self._last_id

    def close(self) -> None:
        """Let all readers end, and admit no more."""
        self.is_closed = True
        for reader in self._readers:
            reader.wake()


class EventReader:
    """Reads a stream from a position on; `has_gap`: events are missing between `after` and that."""

    def __init__(self, stream: EventStream, after: int | None) -> None:
        self._stream = stream
        self._news = asyncio.Event()
        self.has_gap = after is not None and not stream.has_all_after(after)
        if after is None:
            self.position = stream.create_id()
        else:
            self.position = stream.forgotten_id if self.has_gap else after
            self.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close_reader(self)

    def wake(self) -> None:
        self._news.set()

    async def read(self, seconds: float) -> Sequence[ServerEvent]:
        """The next events, none if there was none for so many seconds; `position` moves on.

        Raises ReadingEndedError.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        if self._stream.is_closed:
            raise ReadingEndedError("stopping", "The server is stopping.")
        if not self._stream.has_all_after(self.position):
            raise ReadingEndedError("slow", "The reader was too slow: events are gone that it has not read.")
        events = self._stream.read_after(self.position)
        self.position = events[-1].id if events else self._stream.create_id()
        if len(events) < _MOST_AT_ONCE:
            self._news.clear()
        return events
