"""Deadlines of requests: one timer for each timeout value instead of one for each request."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol, TypeVar

from serving.errors import Cancelled, DeadlineExceeded

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Deadline:
    """The deadline of one request, cut short when its client disconnects.

    `deadline` is on the event loop's clock, `timeout` the seconds that were given.
    """

    __slots__ = ("_deadline", "_loop", "_pending", "_timeout", "is_cancelled")

    def __init__(self, deadline: float, timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._timeout = timeout
        self._pending: asyncio.Future[Any] | None = None
        self.is_cancelled = False

    @property
    def remaining(self) -> float:
        return self._deadline - self._loop.time()

    async def wait(self, future: asyncio.Future[T]) -> T:
        """The future's result. Raises DeadlineExceeded or Cancelled if it is not done in time."""
        if future.done():
            return future.result()
        if self.is_cancelled:
            raise client_gone_error()
        timer = self._loop.call_at(self._deadline, self._expire, future)
        self._pending = future
        try:
            return await future
        finally:
            self._pending = None
            timer.cancel()

    def cancel(self, *, is_late: bool = False) -> None:
        """Stop waiting: the client has gone, `is_late` if its own deadline has passed."""
        self.is_cancelled = True
        if self._pending is not None:
            self._fail_future(
                self._pending, deadline_exceeded_error(self._timeout) if is_late else client_gone_error()
            )

    def _expire(self, future: asyncio.Future[Any]) -> None:
        self._fail_future(future, deadline_exceeded_error(self._timeout))

    def _fail_future(self, future: asyncio.Future[Any], error: Exception) -> None:
        if not future.done():
            future.set_exception(error)


def drop_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of its causes.

    A future keeps the error that it raised, and the error's frames keep the future and the request with its
    body: a cycle that only the garbage collector would find.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def deadline_exceeded_error(timeout: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"The request was not answered within {timeout:g} s (setting request_timeout).")


def client_gone_error() -> Cancelled:
    return Cancelled("The client closed the connection.")


class Expirable(Protocol):
    """A request with a deadline, on the event loop's clock."""

    deadline: float

    def expire(self) -> None:
        """The deadline has passed; the request was already removed from its bucket."""


class TimeoutBucket:
    """The requests in flight with the same timeout, the earliest deadline first."""

    __slots__ = ("_buckets", "_is_permanent", "_loop", "_requests", "_seconds", "_timer")

    def __init__(self, seconds: float, buckets: dict[float, TimeoutBucket], *, is_permanent: bool) -> None:
        self._seconds = seconds
        self._buckets = buckets
        self._is_permanent = is_permanent
        self._loop = asyncio.get_running_loop()
        self._requests: dict[Expirable, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: Expirable) -> None:
        """Add a request whose deadline is no earlier than those that are here."""
        self._requests[request] = None
        if self._timer is None:
            self._timer = self._loop.call_at(request.deadline, self._expire_due)

    def remove(self, request: Expirable) -> None:
        del self._requests[request]
        if not self._requests and not self._is_permanent:
            self._discard_bucket()

    def _expire_due(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._requests:
            first = next(iter(self._requests))
            if first.deadline > now:
                if self._timer is None:  # `expire` may have added a request
                    self._timer = self._loop.call_at(first.deadline, self._expire_due)
                return
            del self._requests[first]
            try:
                first.expire()
            except Exception:
                # The requests behind it must still expire.
                logger.exception("a request with a passed deadline could not be answered")
        if not self._is_permanent:
            self._discard_bucket()

    def _discard_bucket(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._buckets.pop(self._seconds, None)


class TimeoutQueue:
    """The buckets of all requests in flight.

    Most requests have the default timeout. The timer of that bucket is never cancelled: it fires once per
    timeout, however many requests there are.
    """

    def __init__(self, default_timeout: float) -> None:
        self._default_timeout = default_timeout
        self._buckets: dict[float, TimeoutBucket] = {}

    def bucket_for(self, seconds: float) -> TimeoutBucket:
        """The bucket of a timeout; add a request to it at once, else it may be discarded."""
        bucket = self._buckets.get(seconds)
        if bucket is None:
            is_permanent = seconds == self._default_timeout
            bucket = self._buckets[seconds] = TimeoutBucket(seconds, self._buckets, is_permanent=is_permanent)
        return bucket

    def __len__(self) -> int:
        return len(self._buckets)
