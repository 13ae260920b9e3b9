"""Judging whether requests may share calls while a version serves: one call of the model at a time.

A request waits for one such call at most, and the calls rest in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from serving.node.batch_equivalence import BatchCheckSteps, BatchingDecision

# A call is followed by a rest so many times as long.
_REST_FACTOR = 4

SubmitWork = Callable[[Callable[[], None]], object]
"""Runs work where calls compute."""


class BatchEquivalenceCheck:
    """A verdict in the making; `verdict` is there when nothing is left to be tried."""

    def __init__(self, steps: BatchCheckSteps) -> None:
        self._steps = steps
        self.decision: BatchingDecision | None = None

    def run_for(self, seconds: float) -> None:
        """Go on for that long, with one call at least."""
        begun = time.perf_counter()
        while self.decision is None:
            try:
                next(self._steps)
            except StopIteration as end:
                self.decision = end.value
            if time.perf_counter() - begun >= seconds:
                break


async def finish_check(check: BatchEquivalenceCheck, submit_work: SubmitWork) -> BatchingDecision:
    """The verdict, arrived at between requests."""
    while check.decision is None:
        seconds = await run_and_time(submit_work, lambda: check.run_for(0.0))
        await asyncio.sleep(_REST_FACTOR * seconds)
    return check.decision


async def run_and_time(submit_work: SubmitWork, work: Callable[[], None]) -> float:
    """The seconds that work took where calls compute. `work` never raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[float] = loop.create_future()

    def run_timed() -> None:
        begun = time.perf_counter()
        work()
        seconds = time.perf_counter() - begun
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(set_result, seconds)

    def set_result(seconds: float) -> None:
        if not done.done():
            done.set_result(seconds)

    submit_work(run_timed)
    return await done
