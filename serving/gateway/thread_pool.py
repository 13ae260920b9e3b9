"""Threads for blocking work, a pool for each class of it: asyncio's own executor would be one for all."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from serving.errors import ResourceExhausted

P = ParamSpec("P")
T = TypeVar("T")

_RETRY_AFTER = 1.0


class ThreadPool:
    """Threads for one class of work, which can so delay no other; they end with the pool.

    `queue` is how many calls may wait for one of the `threads`, None where the callers bound that. A call
    that is cancelled while it waits is not made; one that has begun goes on to its end.
    """

    def __init__(self, name: str, threads: int, *, queue: int | None = None) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = None if queue is None else threading.Semaphore(threads + queue)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises. Raises ResourceExhausted when too many calls wait."""
        if self._free is not None and not self._free.acquire(blocking=False):
            raise ResourceExhausted(
                f"Too many requests of this kind ({self._name}) wait already; try again.",
                retry_after=_RETRY_AFTER,
            )
        try:
            future = self._executor.submit(functools.partial(work, *args, **kwargs))
        except BaseException:  # no thread can be started now
            if self._free is not None:
                self._free.release()
            raise
        if self._free is not None:
            free = self._free
            # Not when the caller stops waiting: a call that has begun keeps its thread until it ends.
            future.add_done_callback(lambda _: free.release())
        return await asyncio.wrap_future(future)
