"""Merges concurrent requests into one predict call, without ever waiting for more to come.

When the compute slot is free, everything that waits with the same parameters goes in one call, up to a
row limit. One request alone is never delayed; under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from serving.errors import DeadlineExceeded, ResourceExhausted
from serving.node.watch import UNWATCHED, Watch
from serving.runtimes.instances import Batch, concatenate, count, signature, split

Predict = Callable[..., Batch]
Outcome = Batch | Exception


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


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request in the queue. `size` is that of its body in bytes, `deadline` on the batcher's clock.

    One that is `alone` shares its call with no other.
    """

    instances: Batch
    parameters: Mapping[str, Any]
    deadline: float
    size: int
    answer: asyncio.Future[Batch]
    watch: Watch
    alone: bool
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", count(self.instances))


class Batcher:
    """The queue in front of a runtime.

    `clock` is in seconds and shared with the deadlines that callers give.
    """

    def __init__(
        self, predict: Predict, place: Place, bounds: Bounds, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._predict = predict
        self._place = place
        self._bounds = bounds
        self._clock = clock
        self._waiting: deque[Request] = deque()
        self._waiting_bytes = 0
        self._active = False
        self.calls = 0
        self.merged_requests = 0

    @property
    def active(self) -> bool:
        """Whether anything waits or is being computed."""
        return self._active

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    def submit(
        self,
        instances: Batch,
        parameters: Mapping[str, Any],
        deadline: float,
        size: int,
        watch: Watch = UNWATCHED,
        *,
        alone: bool = False,
    ) -> asyncio.Future[Batch]:
        """Queue a request; cancel the future to take it out again. `watch` is told when it is computed.

        Raises ResourceExhausted when the queue is full. The future fails with DeadlineExceeded when the
        request's turn comes too late, else with whatever predict raised.
        """
        self._refuse_overflow(size)
        loop = asyncio.get_running_loop()
        request = Request(instances, parameters, deadline, size, loop.create_future(), watch, alone)
        self._waiting.append(request)
        self._waiting_bytes += size
        if not self._active:
            # Not at once: what arrived in the same turn of the event loop can still join.
            self._active = True
            loop.call_soon(self._next)
        return request.answer

    def _refuse_overflow(self, size: int) -> None:
        if len(self._waiting) >= self._bounds.queue_requests:
            raise ResourceExhausted(
                f"{len(self._waiting)} requests are waiting already (setting queue_requests).", retry_after=1
            )
        if self._waiting and self._waiting_bytes + size > self._bounds.queue_bytes:
            raise ResourceExhausted(
                f"{self._waiting_bytes} bytes of requests are waiting already (setting queue_bytes).",
                retry_after=1,
            )

    def _next(self) -> None:
        group = self._take()
        if not group:
            self._active = False
            return
        self.calls += 1
        if len(group) > 1:
            self.merged_requests += len(group)
        self._place.run(lambda: self._compute(group), lambda outcomes: self._finish(group, outcomes))

    def _take(self) -> list[Request]:
        """The next requests to compute together: the oldest, and what fits with it."""
        group: list[Request] = []
        rows = 0
        key: tuple[object, ...] | None = None
        while self._waiting:
            request = self._waiting[0]
            if self._is_void(request):
                self._pop()
                continue
            if group:
                key = key or _key(group[0])
                full = rows + request.rows > self._bounds.merge_rows
                if full or request.alone or _key(request) != key:
                    break
            rows += request.rows
            group.append(self._pop())
            if rows >= self._bounds.merge_rows or request.alone:
                break
        return group

    def _pop(self) -> Request:
        request = self._waiting.popleft()
        self._waiting_bytes -= request.size
        return request

    def _is_void(self, request: Request) -> bool:
        """Whether nobody waits for the answer any more."""
        if request.answer.done():
            return True
        if request.deadline <= self._clock():
            request.answer.set_exception(
                DeadlineExceeded("The request's time ran out while it waited for the model.")
            )
            return True
        return False

    def _compute(self, group: Sequence[Request]) -> list[Outcome]:
        if len(group) > 1:
            merged = self._attempt(group, concatenate([request.instances for request in group]))
            if not isinstance(merged, Exception) and count(merged) == sum(request.rows for request in group):
                return list(split(merged, [request.rows for request in group]))
        # Alone, so that only the request that is at fault fails.
        return [self._attempt((request,), request.instances) for request in group]

    def _attempt(self, group: Sequence[Request], instances: Batch) -> Outcome:
        for watch in _watches(group):
            watch.begin()
        try:
            return self._predict(instances, **group[0].parameters)
        except Exception as error:
            return error
        finally:
            for watch in _watches(group):
                watch.end()

    def _finish(self, group: Sequence[Request], outcomes: Sequence[Outcome]) -> None:
        for request, outcome in zip(group, outcomes, strict=True):
            if request.answer.done():
                continue
            if isinstance(outcome, Exception):
                request.answer.set_exception(outcome)
            else:
                request.answer.set_result(outcome)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        else:
            self._active = False


def _watches(group: Sequence[Request]) -> list[Watch]:
    """Those of the requests that somebody still waits for: another request may hold the slot of one that was
    given up."""
    return [request.watch for request in group if not request.answer.cancelled()]


def _key(request: Request) -> tuple[object, ...]:
    """What requests must share to be answered by one call."""
    parameters = request.parameters
    return (
        signature(request.instances),
        orjson.dumps(parameters, option=orjson.OPT_SORT_KEYS) if parameters else b"",
    )
