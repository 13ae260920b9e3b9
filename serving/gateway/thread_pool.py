"""Threads for blocking work, one pool for each class of work; asyncio's default executor is shared by all."""

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
    """Threads for one class of work; they end with the pool.

    `queue` is how many calls may wait for one of the `threads`, None if the callers bound that. A call that
    is cancelled while it waits is not made; one that has begun runs to its end.
    """

    def __init__(self, name: str, threads: int, *, queue: int | None = None) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = None if queue is None else threading.Semaphore(threads + queue)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises what `work` raises, or ResourceExhausted when too many calls wait."""
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
            # Not when the caller is cancelled: a call that has begun keeps its thread until it ends.
            future.add_done_callback(lambda _: free.release())
        return await asyncio.wrap_future(future)
