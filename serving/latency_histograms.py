"""Latency histograms of the phases of predictions, made of plain integers: cheap enough for every request.

A row of 64-bit integers holds one histogram per phase: a count for each upper bound, a count above the last,
and the sum in nanoseconds. A node keeps its row in memory shared with the gateway, so that nothing is sent
for it and nothing is lost when the node is killed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from typing import cast

# Upper bounds in seconds, from 0.05 ms on.
BOUNDS = (
    0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
    1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip

# Phases of a request in a node, in order. `wait`: until the model has finished earlier calls.
NODE_PHASES = ("parse", "wait", "infer", "encode")

_CELL_BYTES = 8
_SUM = len(BOUNDS) + 1
_WIDTH = _SUM + 1

# Counters behind the histograms: calls whose accelerated result was compared, and those that differed.
NODE_COUNTS = ("compared", "different")

# Between the two: the number of the model's current call, 0 while there is none.
NODE_CALL = len(NODE_PHASES) * _WIDTH
# Then the number of instances answered, of calls, and the time of the last call: in ms, monotonic clock.
NODE_ROWS, NODE_CALLS, NODE_LAST = range(NODE_CALL + 1, NODE_CALL + 4)

NODE_BYTES = (NODE_LAST + 1 + len(NODE_COUNTS)) * _CELL_BYTES


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """One phase.

    Requests by bucket (not cumulative; the last is above all bounds), and the sum of seconds.
    """

    counts: tuple[int, ...]
    seconds: float


class LatencyHistograms:
    """The histograms of some phases; `cells` may be memory shared with a node."""

    __slots__ = ("cells",)

    def __init__(self, phases: int, cells: MutableSequence[int] | None = None) -> None:
        self.cells: MutableSequence[int] = [0] * (phases * _WIDTH) if cells is None else cells

    def record(self, phase: int, seconds: float) -> None:
        """Count one request in the phase of this index."""
        cells, first = self.cells, phase * _WIDTH
        cells[first + bisect_left(BOUNDS, seconds)] += 1
        if seconds > 0:
            cells[first + _SUM] += int(seconds * 1e9)

    def record_many(self, phase: int, seconds: Sequence[float]) -> None:
        """Count several requests, at least one."""
        cells, first = self.cells, phase * _WIDTH
        least, most = bisect_left(BOUNDS, min(seconds)), bisect_left(BOUNDS, max(seconds))
        if least == most:
            cells[first + least] += len(seconds)
        else:
            for each in seconds:
                cells[first + bisect_left(BOUNDS, each)] += 1
        cells[first + _SUM] += max(0, int(sum(seconds) * 1e9))

    def merge(self, cells: Sequence[int]) -> None:
        """Add another row that begins with the same phases."""
        for index, count in enumerate(cells[: len(self.cells)]):
            self.cells[index] += count

    def read_phase(self, phase: int) -> HistogramSnapshot:
        first = phase * _WIDTH
        return HistogramSnapshot(tuple(self.cells[first : first + _SUM]), self.cells[first + _SUM] / 1e9)


def as_cells(shared: memoryview) -> MutableSequence[int]:
    """Shared memory as a row of integers."""
    # A memoryview has the methods that are used.
    return cast(MutableSequence[int], shared.cast("Q"))
