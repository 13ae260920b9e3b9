"""When the time of requests is out: a timer for all that have equally much, not one for each."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

logger = logging.getLogger(__name__)


class Expirable(Protocol):
    """A request that may not take for ever; `deadline` is on the event loop's clock."""

    deadline: float

    def expire(self) -> None:
        """Its time is out. It is forgotten already."""


class TimeoutBucket:
    """The requests under way that were given so many seconds, the earliest deadline first."""

    __slots__ = ("_all", "_lasts", "_loop", "_requests", "_seconds", "_timer")

    def __init__(self, seconds: float, buckets: dict[float, TimeoutBucket], *, is_permanent: bool) -> None:
        self._seconds = seconds
        self._all = buckets
        self._lasts = is_permanent
        self._loop = asyncio.get_running_loop()
        self._requests: dict[Expirable, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: Expirable) -> None:
        """A request begins, whose deadline is no earlier than those of the others."""
        self._requests[request] = None
        if self._timer is None:
            self._timer = self._loop.call_at(request.deadline, self._expire_due)

    def remove(self, request: Expirable) -> None:
        """It needs no time any more."""
        del self._requests[request]
        if not self._requests and not self._lasts:
            self._discard_bucket()

    def _expire_due(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._requests:
            first = next(iter(self._requests))
            if first.deadline > now:
                if self._timer is None:  # who was told may have begun with another request
                    self._timer = self._loop.call_at(first.deadline, self._expire_due)
                return
            del self._requests[first]
            try:
                first.expire()
            except Exception:
                # Those behind it are not to wait for ever.
                logger.exception("a request could not be told that its time is out")
        if not self._lasts:
            self._discard_bucket()

    def _discard_bucket(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._all.pop(self._seconds, None)


class TimeoutQueue:
    """Those of all requests under way.

    Most have the `usual` seconds, and the timer for those is left to run: it fires once in that time,
    whatever the number of requests.
    """

    def __init__(self, default_timeout: float) -> None:
        self._default_timeout = default_timeout
        self._buckets: dict[float, TimeoutBucket] = {}

    def bucket_for(self, seconds: float) -> TimeoutBucket:
        """Where a request is added at once that has so many seconds."""
        bucket = self._buckets.get(seconds)
        if bucket is None:
            is_permanent = seconds == self._default_timeout
            bucket = self._buckets[seconds] = TimeoutBucket(seconds, self._buckets, is_permanent=is_permanent)
        return bucket

    def __len__(self) -> int:
        return len(self._buckets)
