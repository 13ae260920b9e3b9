"""A batcher for models that take several calls at a time, such as those in containers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

from serving.node.batcher import Batcher, BatchExecutor, BatchLimits, BatchOutcome, Predict
from serving.node.request import NodeRequest
from serving.node.request_marks import RequestMarks
from serving.runtimes.instance_batch import Batch


class ConcurrentBatcher(Batcher):
    """The same with up to `concurrency` groups under way; the executor takes as many calls at a time.

    `is_active` says that no more can begin.
    """

    def __init__(
        self,
        predict: Predict,
        executor: BatchExecutor,
        limits: BatchLimits,
        *,
        concurrency: int,
        marks: RequestMarks,
        answer: Callable[[Sequence[NodeRequest], Batch | Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(predict, executor, limits, marks=marks, answer=answer, clock=clock)
        self._concurrency = concurrency
        self._running = 0

    def _run_next_group(self) -> None:
        while self._running < self._concurrency and (group := self._take_group()):
            self._running += 1
            self._count_call(group)
            self._current_group = (*self._current_group, *group)
            self._executor.run(
                functools.partial(self._predict_group, group), functools.partial(self._finish_one, group)
            )
        self.is_active = self._running == self._concurrency

    def _finish_one(self, finished: Sequence[NodeRequest], outcomes: list[BatchOutcome]) -> None:
        self._running -= 1
        self._current_group = tuple(request for request in self._current_group if request not in finished)
        for group, outcome in outcomes:
            self._answer(group, outcome)
        self._run_next_group()
