"""Request timings and crash marks in memory shared with the gateway, and the Server-Timing header.

The marks have a byte for each request that may be in flight. After a crash of the node they still show which
requests the model had computed, and which it was computing.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, MutableSequence, Sequence
from typing import ParamSpec, Protocol, TypeVar, cast

from autoscaler.node_memory import Mark, split_memory
from serving.errors import ModelFailed, describe_exception
from serving.http_headers import Headers
from serving.latency_histograms import (
    NODE_BYTES,
    NODE_CALL,
    NODE_CALLS,
    NODE_LAST,
    NODE_PHASES,
    NODE_ROWS,
    LatencyHistograms,
    as_cells,
)
from serving.node.request import NO_SLOT, NodeRequest

# Plain integers: they are written for every request.
_COMPUTING, _COMPUTED = Mark.COMPUTING.value, Mark.COMPUTED.value

Clock = Callable[[], float]

P = ParamSpec("P")
T = TypeVar("T")


class RequestMarks(Protocol):
    """The slots of the requests in flight: a `bytearray`, or an `mmap`."""

    def __len__(self) -> int:
        """The number of slots."""

    def __setitem__(self, slot: int, mark: int, /) -> None:
        """Mark a slot."""


def split_shared_memory(
    shared_memory: RequestMarks, slots: int
) -> tuple[RequestMarks, LatencyHistograms | None]:
    """The marks, and the histograms behind them; without `slots` all of it is marks."""
    if not slots:
        return shared_memory, None
    marks, counters = split_memory(memoryview(cast(bytearray, shared_memory)), slots, NODE_BYTES)
    return marks, LatencyHistograms(len(NODE_PHASES), as_cells(counters))


class CallMark:
    """The number of the current model call, in memory shared with the process that detects hangs.

    `histograms` has the cell for it behind them; None: the number is private to this process.
    """

    def __init__(self, histograms: LatencyHistograms | None = None) -> None:
        self._cells: MutableSequence[int] = [0] if histograms is None else histograms.cells
        self._index = 0 if histograms is None else NODE_CALL
        self._numbers = itertools.count(1)

    @property
    def current_call_number(self) -> int:
        """The number of the current call; 0 while there is none."""
        return self._cells[self._index]

    def mark_calls(self, call: Callable[P, T]) -> Callable[P, T]:
        """Wrap a function so that its calls are marked; only one of them may run at a time.

        Raises ModelFailed for a BaseException that is no Exception: it would silently end the compute thread
        or the event loop.
        """
        cells, index, numbers = self._cells, self._index, self._numbers

        def marked_call(*args: P.args, **kwargs: P.kwargs) -> T:
            cells[index] = next(numbers)
            try:
                return call(*args, **kwargs)
            except Exception:
                raise
            except BaseException as error:
                raise ModelFailed(describe_exception(error)) from error
            finally:
                cells[index] = 0

        return marked_call

    def mark_concurrent_calls(self, call: Callable[P, T]) -> Callable[P, T]:
        """The same for a function that several threads call: the number is that of the oldest call."""
        cells, index, numbers = self._cells, self._index, self._numbers
        running: set[int] = set()
        lock = threading.Lock()

        def marked_call(*args: P.args, **kwargs: P.kwargs) -> T:
            with lock:
                number = next(numbers)
                running.add(number)
                cells[index] = min(running)
            try:
                return call(*args, **kwargs)
            except Exception:
                raise
            except BaseException as error:
                raise ModelFailed(describe_exception(error)) from error
            finally:
                with lock:
                    running.remove(number)
                    cells[index] = min(running, default=0)

        return marked_call


def mark_computing(group: Sequence[NodeRequest], marks: RequestMarks, clock: Clock = time.monotonic) -> float:
    """Mark requests before a model call, also before a retry alone. Returns the time.

    Cancelled ones are skipped, here and in `mark_computed`: another request may hold their slot.
    """
    for request in group:
        if request.slot != NO_SLOT and not request.is_finished:
            marks[request.slot] = _COMPUTING
    return clock()


def mark_computed(
    group: Sequence[NodeRequest], marks: RequestMarks, started: float, clock: Clock = time.monotonic
) -> None:
    """Mark requests after a model call; `started` is what `mark_computing` returned."""
    for request in group:
        if request.slot != NO_SLOT and not request.is_finished:
            marks[request.slot] = _COMPUTED
    seconds = clock() - started
    for request in group:
        request.infer_seconds += seconds


def record_timing(
    histograms: LatencyHistograms, group: Sequence[NodeRequest], predicted: float, encoded: float
) -> None:
    """Count answered requests, predicted and encoded at these times.

    The phase `wait` is the time between parsing and encoding in which the model did not compute the request.
    """
    cells = histograms.cells
    cells[NODE_CALLS] += 1
    cells[NODE_LAST] = int(encoded * 1000)
    if len(group) == 1:
        cells[NODE_ROWS] += group[0].rows
        for phase, seconds in enumerate(_phase_seconds(group[0], predicted, encoded)):
            histograms.record(phase, seconds)
        return
    cells[NODE_ROWS] += sum([request.rows for request in group])
    parse, wait, infer, encode = range(len(NODE_PHASES))
    histograms.record_many(parse, [request.parsed_at - request.received_at for request in group])
    histograms.record_many(wait, [predicted - request.parsed_at - request.infer_seconds for request in group])
    histograms.record_many(infer, [request.infer_seconds for request in group])
    histograms.record_many(encode, [encoded - predicted] * len(group))


def server_timing_header(request: NodeRequest, predicted: float, encoded: float) -> Headers:
    """The request's phase times in milliseconds, as the header `Server-Timing`."""
    phases = zip(NODE_PHASES, _phase_seconds(request, predicted, encoded), strict=True)
    text = ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in phases)
    return ((b"server-timing", text.encode()),)


def _phase_seconds(
    request: NodeRequest, predicted: float, encoded: float
) -> tuple[float, float, float, float]:
    """In the order of NODE_PHASES."""
    parsed, infer = request.parsed_at, request.infer_seconds
    return parsed - request.received_at, predicted - parsed - infer, infer, encoded - predicted
