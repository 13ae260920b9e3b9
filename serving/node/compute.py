"""A runtime behind its batcher, and the choice between event loop and compute thread.

A thread switch costs more than a very short prediction, so short ones run on the event loop and long ones in
the compute thread. Measured time decides; user code, whose duration may vary, never runs on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from serving.node.batcher import Batcher, BatchLimits, BatchOutcome, ConcurrentBatcher
from serving.node.request import NodeRequest
from serving.node.request_marks import CallMark, RequestMarks, mark_computed, mark_computing
from serving.runtimes import Runtime
from serving.runtimes.instance_batch import Batch

# Longer calls would delay the other requests of the event loop.
INLINE_BELOW_SECONDS = 0.001


class AdaptiveExecutor:
    """Computes on the event loop while calls are shorter than `INLINE_BELOW_SECONDS`, else in the thread.

    The model is never used by both at a time. `concurrency` is how many calls it takes at a time; with more
    than one, `thread` has as many threads, and nothing may be computed on the loop.
    """

    def __init__(
        self,
        thread: Executor,
        *,
        may_inline: bool,
        concurrency: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.concurrency = concurrency
        self._thread = thread
        self._may_inline = may_inline
        self._clock = clock
        self._last_seconds = math.inf
        self.typical_seconds: float | None = None  # moving average of seconds per call
        self._is_short = False
        self._other_work_count = 0

    @property
    def runs_inline(self) -> bool:
        """Whether the next call runs on the event loop."""
        return self._is_short and not self._other_work_count

    def run_other_work(self, work: Callable[[], None]) -> None:
        """Run other work with the model where the next call would run; called on the event loop."""
        if self.runs_inline:
            work()
            return
        loop = asyncio.get_running_loop()

        def compute() -> None:
            try:
                work()
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the node ends
                    loop.call_soon_threadsafe(self._finish_other_work)

        self._other_work_count += 1
        self._thread.submit(compute)

    def _finish_other_work(self) -> None:
        self._other_work_count -= 1

    def run(self, work: Callable[[], list[BatchOutcome]], done: Callable[[list[BatchOutcome]], None]) -> None:
        """Compute, record the duration, and pass the result to `done` on the event loop."""
        if self.runs_inline:
            done(self._run_timed(work))
            return
        loop = asyncio.get_running_loop()

        def compute() -> None:
            outcomes = self._run_timed(work)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(done, outcomes)

        self._thread.submit(compute)

    def record_duration(self, seconds: float) -> None:
        """Update the moving average.

        Of two calls in a row the shorter one counts, to ignore pauses of the machine.
        """
        seconds, self._last_seconds = min(seconds, self._last_seconds), seconds
        self.typical_seconds = typical = (
            seconds if self.typical_seconds is None else 0.8 * self.typical_seconds + 0.2 * seconds
        )
        self._is_short = self._may_inline and typical < INLINE_BELOW_SECONDS

    def _run_timed(self, work: Callable[[], list[BatchOutcome]]) -> list[BatchOutcome]:
        start = self._clock()
        outcomes = work()
        self.record_duration(self._clock() - start)
        return outcomes


class BatchedRuntime:
    """What a request reaches: the runtime with its batcher and its executor.

    `answer` gets the outcomes; see `Batcher`. `call_mark` is set during each call of the runtime.
    """

    def __init__(
        self,
        runtime: Runtime,
        executor: AdaptiveExecutor,
        limits: BatchLimits,
        marks: RequestMarks,
        answer: Callable[[Sequence[NodeRequest], Batch | Exception], None],
        *,
        call_mark: CallMark | None = None,
    ) -> None:
        self._runtime = runtime
        mark = call_mark or CallMark()
        self._executor = executor
        self._marks = marks
        batcher: Batcher
        if executor.concurrency > 1:
            self._predict = predict = mark.mark_concurrent_calls(runtime.predict)
            batcher = ConcurrentBatcher(
                predict, executor, limits, concurrency=executor.concurrency, marks=marks, answer=answer
            )
        else:
            self._predict = predict = mark.mark_calls(runtime.predict)
            batcher = Batcher(predict, executor, limits, marks=marks, answer=answer)
        self._batcher = batcher
        self.submit = batcher.submit
        self.set_max_batch_rows = batcher.set_max_batch_rows
        self.start_now = batcher.start_now
        self.start_soon = batcher.start_soon
        self._direct_calls = 0

    @property
    def can_predict_now(self) -> bool:
        """Whether a request can be computed at once, bypassing the queue."""
        return self._executor.runs_inline and not self._batcher.is_active

    def predict_now(self, request: NodeRequest) -> Batch:
        """Predict on the event loop; only while `can_predict_now`."""
        self._direct_calls += 1
        group = (request,)
        started = mark_computing(group, self._marks)
        try:
            return self._predict(request.instances, **request.parameters)
        finally:
            mark_computed(group, self._marks, started)
            self._executor.record_duration(request.infer_seconds)

    def collect_stats(self) -> dict[str, Any]:
        typical = self._executor.typical_seconds
        return {
            "framework": self._runtime.framework.name,
            "exact": self._runtime.exact,
            "calls": self._batcher.calls + self._direct_calls,
            "mergedRequests": self._batcher.merged_requests,
            "waiting": self._batcher.queue_length,
            "typicalCallMs": None if typical is None else round(typical * 1000, 3),
            "computesOn": "event loop" if self._executor.runs_inline else "compute thread",
        }
