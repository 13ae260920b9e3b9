"""How long the gateway waits for something on behalf of a client."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

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
