"""How long the gateway waits for something on behalf of a client."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from serving.errors import Cancelled, DeadlineExceeded
from serving.wire import Receive

T = TypeVar("T")

# Most answers come sooner, and watching a client costs a task.
_WATCH_AFTER = 0.05


class Patience:
    """Waits until the deadline of one request, and no longer than its client does.

    `deadline` is on the event loop's clock; `receive` is the request's, its body already read.
    """

    __slots__ = ("_deadline", "_loop", "_receive", "_timeout")

    def __init__(self, receive: Receive, timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._timeout = timeout
        self._deadline = self._loop.time() + timeout

    @property
    def remaining(self) -> float:
        """Seconds left."""
        return self._deadline - self._loop.time()

    async def wait(self, future: asyncio.Future[T]) -> T:
        """The future's result. Raises DeadlineExceeded or Cancelled when it comes too late."""
        if future.done():
            return future.result()
        watchers: list[asyncio.Task[None]] = []
        timer = self._loop.call_later(
            min(_WATCH_AFTER, self.remaining),
            lambda: watchers.append(self._loop.create_task(self._watch(future))),
        )
        try:
            return await future
        finally:
            timer.cancel()
            for watcher in watchers:
                watcher.cancel()

    async def _watch(self, future: asyncio.Future[T]) -> None:
        """Fail the future when the client is gone or the time is out."""
        try:
            async with asyncio.timeout(self.remaining):
                while (await self._receive())["type"] != "http.disconnect":
                    pass
            error: Exception = Cancelled("The client closed the connection.")
        except TimeoutError:
            error = DeadlineExceeded(
                f"The request was not answered within {self._timeout:g} s (setting request_timeout)."
            )
        if not future.done():
            future.set_exception(error)
