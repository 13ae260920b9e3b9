"""A runtime behind its batcher, and the one decision of where it computes.

A thread hop costs more than a very short prediction takes, so short ones run on the event loop and long
ones in the compute thread. Measured time decides; user code, whose time can change, never runs on the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from serving.node.batcher import Batcher, Bounds, Outcome
from serving.node.watch import Watch
from serving.runtimes import Form, Runtime
from serving.runtimes.instances import Batch

# Longer calls would be felt by the other connections of the event loop.
INLINE_BELOW = 0.001


class MeasuredPlace:
    """The event loop while calls are shorter than `INLINE_BELOW` seconds, else the compute thread."""

    def __init__(
        self, thread: Executor, *, may_inline: bool, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._thread = thread
        self._may_inline = may_inline
        self._clock = clock
        self.typical: float | None = None  # seconds per call, the recent ones weighing most

    @property
    def inline(self) -> bool:
        """Whether the next call runs on the event loop."""
        return self._may_inline and self.typical is not None and self.typical < INLINE_BELOW

    def run(self, work: Callable[[], list[Outcome]], done: Callable[[list[Outcome]], None]) -> None:
        """Compute here or there, and learn from how long it took."""
        if self.inline:
            done(self._timed(work))
            return
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, self._timed, work)
        future.add_done_callback(lambda finished: done(finished.result()))

    def learn(self, seconds: float) -> None:
        """Take one measured call into account."""
        self.typical = seconds if self.typical is None else 0.8 * self.typical + 0.2 * seconds

    def _timed(self, work: Callable[[], list[Outcome]]) -> list[Outcome]:
        start = self._clock()
        outcomes = work()
        self.learn(self._clock() - start)
        return outcomes


class Servable:
    """What a request reaches: the runtime with its batcher and its place.

    `alone` says whether no other request can be on its way.
    """

    def __init__(
        self, runtime: Runtime, place: MeasuredPlace, bounds: Bounds, alone: Callable[[], bool]
    ) -> None:
        self._runtime = runtime
        self._place = place
        self._batcher = Batcher(runtime.predict, place, bounds)
        self._alone = alone
        self._calls = 0

    def form(self, parameters: Mapping[str, Any]) -> Form:
        """How instances are to be parsed for a request with these parameters."""
        return self._runtime.form(parameters)

    @property
    def idle(self) -> bool:
        """Whether a request can neither be merged nor has to wait, so that queueing it is only cost."""
        return self._place.inline and not self._batcher.active and self._alone()

    def predict_now(self, instances: Batch, parameters: Mapping[str, Any], watch: Watch) -> Batch:
        """The predictions, computed here and now; for when the servable is idle."""
        self._calls += 1
        watch.begin()
        start = time.perf_counter()
        try:
            return self._runtime.predict(instances, **parameters)
        finally:
            self._place.learn(time.perf_counter() - start)
            watch.end()

    def predict(
        self,
        instances: Batch,
        parameters: Mapping[str, Any],
        deadline: float,
        size: int,
        watch: Watch,
        *,
        alone: bool,
    ) -> asyncio.Future[Batch]:
        """The predictions to come; see `Batcher.submit`."""
        return self._batcher.submit(instances, parameters, deadline, size, watch, alone=alone)

    @property
    def prompt(self) -> bool:
        """Whether a request's answer comes within this turn of the event loop or the next few."""
        return self._place.inline

    def stats(self) -> dict[str, Any]:
        """Counts since the start, for people and dashboards."""
        typical = self._place.typical
        return {
            "framework": self._runtime.framework,
            "exact": self._runtime.exact,
            "calls": self._batcher.calls + self._calls,
            "mergedRequests": self._batcher.merged_requests,
            "waiting": self._batcher.waiting,
            "typicalCallMs": None if typical is None else round(typical * 1000, 3),
            "computesOn": "event loop" if self._place.inline else "compute thread",
        }
