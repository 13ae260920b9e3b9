"""Judging whether requests may share calls while a version serves: one call of the model at a time.

A request waits for one such call at most, and the calls rest in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from serving.node.probe import Judging, Verdict

# A call is followed by a rest so many times as long.
_REST = 4

Here = Callable[[Callable[[], None]], object]
"""Runs work where calls compute."""


class Judgement:
    """A verdict in the making; `verdict` is there when nothing is left to be tried."""

    def __init__(self, judging: Judging) -> None:
        self._judging = judging
        self.verdict: Verdict | None = None

    def proceed(self, seconds: float) -> None:
        """Go on for that long, with one call at least."""
        begun = time.perf_counter()
        while self.verdict is None:
            try:
                next(self._judging)
            except StopIteration as end:
                self.verdict = end.value
            if time.perf_counter() - begun >= seconds:
                break


async def conclude(judgement: Judgement, here: Here) -> Verdict:
    """The verdict, arrived at between requests."""
    while judgement.verdict is None:
        seconds = await computed(here, lambda: judgement.proceed(0.0))
        await asyncio.sleep(_REST * seconds)
    return judgement.verdict


async def computed(here: Here, work: Callable[[], None]) -> float:
    """The seconds that work took where calls compute. `work` never raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[float] = loop.create_future()

    def compute() -> None:
        begun = time.perf_counter()
        work()
        seconds = time.perf_counter() - begun
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, seconds)

    def tell(seconds: float) -> None:
        if not done.done():
            done.set_result(seconds)

    here(compute)
    return await done
