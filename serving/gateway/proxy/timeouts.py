"""When the time of requests is out: a timer for all that have equally much, not one for each."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol, TypeVar

from serving.errors import Cancelled, DeadlineExceeded

T = TypeVar("T")


class Deadline:
    """Waits until the deadline of one request, and no longer than its client does.

    `deadline` is on the event loop's clock; `timeout` the seconds that the request had.
    """

    __slots__ = ("_awaited", "_deadline", "_loop", "_timeout", "gone")

    def __init__(self, deadline: float, timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._timeout = timeout
        self._awaited: asyncio.Future[Any] | None = None
        self.gone = False

    @property
    def remaining(self) -> float:
        """Seconds left."""
        return self._deadline - self._loop.time()

    async def wait(self, future: asyncio.Future[T]) -> T:
        """The future's result. Raises DeadlineExceeded or Cancelled when it comes too late."""
        if future.done():
            return future.result()
        if self.gone:
            raise client_gone_error()
        timer = self._loop.call_at(
            self._deadline, self._fail_future, future, deadline_exceeded_error(self._timeout)
        )
        self._awaited = future
        try:
            return await future
        finally:
            self._awaited = None
            timer.cancel()

    def cancel(self, *, is_late: bool = False) -> None:
        """The client is gone, `late` if its own deadline was past."""
        self.gone = True
        if self._awaited is not None:
            self._fail_future(
                self._awaited, deadline_exceeded_error(self._timeout) if is_late else client_gone_error()
            )

    def _fail_future(self, future: asyncio.Future[Any], error: Exception) -> None:
        if not future.done():
            future.set_exception(error)


def drop_tracebacks(error: BaseException | None) -> None:
    """Let go of the frames that an error came through, and its causes.

    A future keeps the error that it raised, and the frames keep the future, and the request with its body:
    only the garbage collector would find that.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def deadline_exceeded_error(timeout: float) -> DeadlineExceeded:
    """The error for a request that had so many seconds."""
    return DeadlineExceeded(f"The request was not answered within {timeout:g} s (setting request_timeout).")


def client_gone_error() -> Cancelled:
    """The error for a request that nobody waits for any more."""
    return Cancelled("The client closed the connection.")


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
