"""A runtime behind its batcher, and the one decision of where it computes.

A thread hop costs more than a very short prediction takes, so short ones run on the event loop and long
ones in the compute thread. Measured time decides; user code, whose time can change, never runs on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from serving.node.batcher import Batcher, Bounds, Outcome
from serving.node.request import Request
from serving.node.watch import Board, CallMark, begin, end
from serving.runtimes import Runtime
from serving.runtimes.instances import Batch

# Longer calls would be felt by the other requests of the event loop.
INLINE_BELOW = 0.001


class MeasuredPlace:
    """The event loop while calls are shorter than `INLINE_BELOW` seconds, else the compute thread.

    A model is used by one of them at a time.
    """

    def __init__(
        self, thread: Executor, *, may_inline: bool, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._thread = thread
        self._may_inline = may_inline
        self._clock = clock
        self._last = math.inf
        self.typical: float | None = None  # seconds per call, the recent ones weighing most
        self._short = False
        self._aside = 0

    @property
    def inline(self) -> bool:
        """Whether the next call runs on the event loop."""
        return self._short and not self._aside

    def do(self, work: Callable[[], None]) -> None:
        """Other work with the model, called on the event loop. It runs where the next call would."""
        if self.inline:
            work()
            return
        loop = asyncio.get_running_loop()

        def compute() -> None:
            try:
                work()
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the node ends
                    loop.call_soon_threadsafe(self._done_aside)

        self._aside += 1
        self._thread.submit(compute)

    def _done_aside(self) -> None:
        self._aside -= 1

    def run(self, work: Callable[[], list[Outcome]], done: Callable[[list[Outcome]], None]) -> None:
        """Compute here or there, and learn from how long it took."""
        if self.inline:
            done(self._timed(work))
            return
        loop = asyncio.get_running_loop()

        def compute() -> None:
            outcomes = self._timed(work)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(done, outcomes)

        self._thread.submit(compute)

    def learn(self, seconds: float) -> None:
        """Take one measured call into account.

        Of two in a row the shorter one counts: when the machine pauses, the model is not to blame.
        """
        seconds, self._last = min(seconds, self._last), seconds
        self.typical = typical = seconds if self.typical is None else 0.8 * self.typical + 0.2 * seconds
        self._short = self._may_inline and typical < INLINE_BELOW

    def _timed(self, work: Callable[[], list[Outcome]]) -> list[Outcome]:
        start = self._clock()
        outcomes = work()
        self.learn(self._clock() - start)
        return outcomes


class Servable:
    """What a request reaches: the runtime with its batcher and its place.

    `answer` is told what became of requests; see `Batcher`. `call_mark` tells of each call of the runtime.
    """

    def __init__(
        self,
        runtime: Runtime,
        place: MeasuredPlace,
        bounds: Bounds,
        marks: Board,
        answer: Callable[[Sequence[Request], Batch | Exception], None],
        *,
        call_mark: CallMark | None = None,
    ) -> None:
        self._runtime = runtime
        self._predict = predict = (call_mark or CallMark()).around(runtime.predict)
        self._place = place
        self._board = marks
        self._batcher = batcher = Batcher(predict, place, bounds, marks=marks, answer=answer)
        self.submit = batcher.submit
        self.merge_up_to = batcher.merge_up_to
        self.start = batcher.start
        self.start_soon = batcher.start_soon
        self._calls = 0

    @property
    def is_idle(self) -> bool:
        """Whether a request need not wait, so that to queue a lone one is only cost."""
        return self._place.inline and not self._batcher.active

    def predict_now(self, request: Request) -> Batch:
        """The predictions, computed here and now; for when the servable is idle."""
        self._calls += 1
        group = (request,)
        began = begin(group, self._board)
        try:
            return self._predict(request.instances, **request.parameters)
        finally:
            end(group, self._board, began)
            self._place.learn(request.infer)

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
