"""Merges concurrent requests into one predict call, without ever waiting for more to come.

When the compute slot is free, everything that waits with the same parameters goes in one call, up to a
row limit. One request alone is never delayed; under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from serving.errors import DeadlineExceeded, ResourceExhausted
from serving.node.request import Request
from serving.node.watch import Board, begin, end
from serving.runtimes.instances import Batch, concatenate_batches, count_rows

Predict = Callable[..., Batch]
# What became of requests that were computed together, with the predictions for all of them in one piece.
Outcome = tuple[Sequence[Request], Batch | Exception]


class Place(Protocol):
    """Where calls are computed; one at a time."""

    def run(self, work: Callable[[], list[Outcome]], done: Callable[[list[Outcome]], None]) -> None:
        """Compute, then call `done` on the event loop with the result. `work` never raises."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may wait, and how many rows one merged call may have (1: no merging)."""

    merge_rows: int
    queue_requests: int
    queue_bytes: int


class Batcher:
    """The queue in front of a runtime.

    `answer` is called on the event loop with requests and what became of them: predictions for all in one
    piece, or an error for each. It answers those that are not over, after which they are; it must not raise.
    `clock` is in seconds and shared with the deadlines that requests have.
    """

    def __init__(
        self,
        predict: Predict,
        place: Place,
        bounds: Bounds,
        *,
        marks: Board,
        answer: Callable[[Sequence[Request], Batch | Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._predict = predict
        self._place = place
        self._bounds = bounds
        self._board = marks
        self._answer = answer
        self._clock = clock
        self._waiting: deque[Request] = deque()
        self._waiting_bytes = 0
        self._computing: Sequence[Request] = ()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self.active = False  # whether anything waits or is being computed
        self.calls = 0
        self.merged_requests = 0

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    def merge_up_to(self, rows: int) -> None:
        """From now on merged calls may have that many rows; 1: no merging."""
        self._bounds = replace(self._bounds, merge_rows=rows)

    def submit(self, request: Request) -> None:
        """Queue a request; `start` or `start_soon` is to follow. Raises ResourceExhausted when it is full.

        It fails with DeadlineExceeded when its turn or its answer comes too late, else with whatever predict
        raised.
        """
        waiting = self._waiting
        if waiting:
            self._refuse_overflow(request.size)
        waiting.append(request)
        self._waiting_bytes += request.size
        if request.deadline < self._alarm_at:
            self._set_alarm(request.deadline)

    def start_soon(self) -> None:
        """Compute, but not at once: what arrives in the same turn of the event loop can still join."""
        if not self.active:
            self.active = True
            asyncio.get_running_loop().call_soon(self._next)

    def start(self) -> None:
        """Compute what waits, now that all is there that came together."""
        if not self.active and self._waiting:
            self.active = True
            self._next()

    def _refuse_overflow(self, size: int) -> None:
        if len(self._waiting) >= self._bounds.queue_requests:
            raise ResourceExhausted(
                f"{len(self._waiting)} requests are waiting already (setting queue_requests).", retry_after=1
            )
        if self._waiting_bytes + size > self._bounds.queue_bytes:
            raise ResourceExhausted(
                f"{self._waiting_bytes} bytes of requests are waiting already (setting queue_bytes).",
                retry_after=1,
            )

    # ---- computing

    def _next(self) -> None:
        group = self._take()
        if not group:
            self.active = False
            return
        self.calls += 1
        if len(group) > 1:
            self.merged_requests += len(group)
        self._computing = group
        self._place.run(self._compute, self._finish)

    def _take(self) -> list[Request]:
        """The next requests to compute together: the oldest, and what fits with it."""
        group: list[Request] = []
        waiting, most, now = self._waiting, self._bounds.merge_rows, self._clock()
        rows = size = 0
        while waiting:
            request = waiting[0]
            if not (request.over or self._is_late(request, now)):
                if group and (rows + request.rows > most or request.alone or not request.fits(group[0])):
                    break
                rows += request.rows
                group.append(request)
            size += waiting.popleft().size
            if rows >= most or (group and request.alone):
                break
        self._waiting_bytes -= size
        return group

    def _is_late(self, request: Request, now: float) -> bool:
        if request.deadline > now:
            return False
        self._answer(
            (request,), DeadlineExceeded("The request's time ran out while it waited for the model.")
        )
        return True

    def _compute(self) -> list[Outcome]:
        group = self._computing
        if len(group) > 1:
            merged = self._attempt(group, concatenate_batches([request.instances for request in group]))
            if not isinstance(merged, Exception) and count_rows(merged) == sum(
                request.rows for request in group
            ):
                return [(group, merged)]
        # Alone, so that only the request that is at fault fails.
        return [((request,), self._attempt((request,), request.instances)) for request in group]

    def _attempt(self, group: Sequence[Request], instances: Batch) -> Batch | Exception:
        began = begin(group, self._board)
        try:
            return self._predict(instances, **group[0].parameters)
        except Exception as error:
            return error
        finally:
            end(group, self._board, began)

    def _finish(self, outcomes: list[Outcome]) -> None:
        self._computing = ()
        for group, outcome in outcomes:
            self._answer(group, outcome)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        else:
            self.active = False

    # ---- deadlines

    def _set_alarm(self, deadline: float) -> None:
        """Look after deadlines at this one, with one timer for all."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = deadline
        seconds = max(0.0, deadline - self._clock())
        self._alarm = asyncio.get_running_loop().call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        now = self._clock()
        later = math.inf
        for request in (*self._computing, *self._waiting):
            if request.over:
                continue
            if request.deadline > now:
                later = min(later, request.deadline)
            else:
                self._answer(
                    (request,), DeadlineExceeded("The model did not answer within the request's time.")
                )
        if later < math.inf:
            self._set_alarm(later)
