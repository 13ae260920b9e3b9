"""Merges concurrent requests into one predict call, without ever waiting for more to arrive.

When the executor is free, all queued requests with the same parameters go into one call, up to a row limit. A
single request is never delayed; under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from serving.errors import DeadlineExceeded, ResourceExhausted
from serving.node.request import NodeRequest
from serving.node.request_marks import RequestMarks, mark_computed, mark_computing
from serving.runtimes.instance_batch import Batch, concatenate_batches, count_rows

Predict = Callable[..., Batch]
# The result of one predict call: its requests, and their predictions in one batch or the error.
BatchOutcome = tuple[Sequence[NodeRequest], Batch | Exception]


class BatchExecutor(Protocol):
    """Where calls are computed; one at a time."""

    def run(self, work: Callable[[], list[BatchOutcome]], done: Callable[[list[BatchOutcome]], None]) -> None:
        """Compute, then call `done` on the event loop with the result. `work` never raises."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much may be queued, and how many rows one batch may have (1: no batching)."""

    merge_rows: int
    queue_requests: int
    queue_bytes: int


class Batcher:
    """The queue in front of a runtime.

    `answer` is called on the event loop with requests and their predictions in one batch, or their error. It
    answers and finishes those that are not finished; it must not raise. `clock` is in seconds, the one of
    the requests' deadlines.
    """

    def __init__(
        self,
        predict: Predict,
        executor: BatchExecutor,
        limits: BatchLimits,
        *,
        marks: RequestMarks,
        answer: Callable[[Sequence[NodeRequest], Batch | Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._predict = predict
        self._executor = executor
        self._limits = limits
        self._marks = marks
        self._answer = answer
        self._clock = clock
        self._queue: deque[NodeRequest] = deque()
        self._queued_bytes = 0
        self._current_group: Sequence[NodeRequest] = ()
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._next_deadline = math.inf
        self.is_active = False  # whether anything waits or is being computed
        self.calls = 0
        self.merged_requests = 0

    @property
    def queue_length(self) -> int:
        return len(self._queue)

    def set_max_batch_rows(self, rows: int) -> None:
        """Set how many rows later batches may have; 1: no batching."""
        self._limits = replace(self._limits, merge_rows=rows)

    def submit(self, request: NodeRequest) -> None:
        """Queue a request; `start_now` or `start_soon` must follow. Raises ResourceExhausted when it is full.

        The request fails with DeadlineExceeded when its time runs out in the queue or in the call, else with
        what predict raised.
        """
        queue = self._queue
        if queue:
            self._check_capacity(request.body_size)
        queue.append(request)
        self._queued_bytes += request.body_size
        if request.deadline < self._next_deadline:
            self._set_deadline_timer(request.deadline)

    def start_soon(self) -> None:
        """Compute in the next iteration of the event loop: what arrives in this one can still join."""
        if not self.is_active:
            self.is_active = True
            asyncio.get_running_loop().call_soon(self._run_next_group)

    def start_now(self) -> None:
        """Compute the queue at once; for when all requests that arrived together are in it."""
        if not self.is_active and self._queue:
            self.is_active = True
            self._run_next_group()

    def _check_capacity(self, size: int) -> None:
        if len(self._queue) >= self._limits.queue_requests:
            raise ResourceExhausted(
                f"{len(self._queue)} requests are waiting already (setting queue_requests).", retry_after=1
            )
        if self._queued_bytes + size > self._limits.queue_bytes:
            raise ResourceExhausted(
                f"{self._queued_bytes} bytes of requests are waiting already (setting queue_bytes).",
                retry_after=1,
            )

    # ---- computing

    def _run_next_group(self) -> None:
        group = self._take_group()
        if not group:
            self.is_active = False
            return
        self._count_call(group)
        self._current_group = group
        self._executor.run(self._predict_current_group, self._finish_group)

    def _count_call(self, group: Sequence[NodeRequest]) -> None:
        self.calls += 1
        if len(group) > 1:
            self.merged_requests += len(group)

    def _take_group(self) -> list[NodeRequest]:
        """The next requests to compute together: the oldest, and those behind it that fit."""
        group: list[NodeRequest] = []
        queue, max_rows, now = self._queue, self._limits.merge_rows, self._clock()
        rows = size = 0
        while queue:
            request = queue[0]
            if not (request.is_finished or self._expire_if_late(request, now)):
                if group and (
                    rows + request.rows > max_rows
                    or request.never_batch
                    or not request.can_share_call(group[0])
                ):
                    break
                rows += request.rows
                group.append(request)
            size += queue.popleft().body_size
            if rows >= max_rows or (group and request.never_batch):
                break
        self._queued_bytes -= size
        return group

    def _expire_if_late(self, request: NodeRequest, now: float) -> bool:
        if request.deadline > now:
            return False
        self._answer(
            (request,), DeadlineExceeded("The request's time ran out while it waited for the model.")
        )
        return True

    def _predict_current_group(self) -> list[BatchOutcome]:
        return self._predict_group(self._current_group)

    def _predict_group(self, group: Sequence[NodeRequest]) -> list[BatchOutcome]:
        if len(group) > 1:
            merged = self._try_predict(group, concatenate_batches([request.instances for request in group]))
            if not isinstance(merged, Exception) and count_rows(merged) == sum(
                request.rows for request in group
            ):
                return [(group, merged)]
        # One by one, so that only the faulty request fails.
        return [((request,), self._try_predict((request,), request.instances)) for request in group]

    def _try_predict(self, group: Sequence[NodeRequest], instances: Batch) -> Batch | Exception:
        started = mark_computing(group, self._marks)
        try:
            return self._predict(instances, **group[0].parameters)
        except Exception as error:
            return error
        finally:
            mark_computed(group, self._marks, started)

    def _finish_group(self, outcomes: list[BatchOutcome]) -> None:
        self._current_group = ()
        for group, outcome in outcomes:
            self._answer(group, outcome)
        if self._queue:
            asyncio.get_running_loop().call_soon(self._run_next_group)
        else:
            self.is_active = False

    # ---- deadlines

    def _set_deadline_timer(self, deadline: float) -> None:
        """Set the one timer, which is shared by all requests, to this deadline."""
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._next_deadline = deadline
        seconds = max(0.0, deadline - self._clock())
        self._deadline_timer = asyncio.get_running_loop().call_later(seconds, self._expire_late_requests)

    def _expire_late_requests(self) -> None:
        self._deadline_timer, self._next_deadline = None, math.inf
        now = self._clock()
        later = math.inf
        for request in (*self._current_group, *self._queue):
            if request.is_finished:
                continue
            if request.deadline > now:
                later = min(later, request.deadline)
            else:
                self._answer(
                    (request,), DeadlineExceeded("The model did not answer within the request's time.")
                )
        if later < math.inf:
            self._set_deadline_timer(later)


class ConcurrentBatcher(Batcher):
    """For models that take several calls at a time, such as those in containers.

    Up to `concurrency` groups are under way, and the executor takes as many calls at a time. `is_active` says
    that no more can begin.
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
