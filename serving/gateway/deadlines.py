"""When the time of requests is out: a timer for all that have equally much, not one for each."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

logger = logging.getLogger(__name__)


class Hurried(Protocol):
    """A request that may not take for ever; `deadline` is on the event loop's clock."""

    deadline: float

    def expire(self) -> None:
        """Its time is out. It is forgotten already."""


class Allowance:
    """The requests under way that were given so many seconds, the earliest deadline first."""

    __slots__ = ("_all", "_lasts", "_loop", "_requests", "_seconds", "_timer")

    def __init__(self, seconds: float, everything: dict[float, Allowance], *, lasts: bool) -> None:
        self._seconds = seconds
        self._all = everything
        self._lasts = lasts
        self._loop = asyncio.get_running_loop()
        self._requests: dict[Hurried, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: Hurried) -> None:
        """A request begins, whose deadline is no earlier than those of the others."""
        self._requests[request] = None
        if self._timer is None:
            self._timer = self._loop.call_at(request.deadline, self._look)

    def remove(self, request: Hurried) -> None:
        """It needs no time any more."""
        del self._requests[request]
        if not self._requests and not self._lasts:
            self._end()

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._requests:
            first = next(iter(self._requests))
            if first.deadline > now:
                if self._timer is None:  # who was told may have begun with another request
                    self._timer = self._loop.call_at(first.deadline, self._look)
                return
            del self._requests[first]
            try:
                first.expire()
            except Exception:
                # Those behind it are not to wait for ever.
                logger.exception("a request could not be told that its time is out")
        if not self._lasts:
            self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._all.pop(self._seconds, None)


class Deadlines:
    """Those of all requests under way.

    Most have the `usual` seconds, and the timer for those is left to run: it fires once in that time,
    whatever the number of requests.
    """

    def __init__(self, usual: float) -> None:
        self._usual = usual
        self._allowances: dict[float, Allowance] = {}

    def of(self, seconds: float) -> Allowance:
        """Where a request is added at once that has so many seconds."""
        allowance = self._allowances.get(seconds)
        if allowance is None:
            lasts = seconds == self._usual
            allowance = self._allowances[seconds] = Allowance(seconds, self._allowances, lasts=lasts)
        return allowance

    def __len__(self) -> int:
        return len(self._allowances)
