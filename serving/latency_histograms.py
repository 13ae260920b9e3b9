"""How long the phases of predictions take: histograms of plain integers, cheap enough for every request.

A row of 64-bit integers holds one histogram per phase: how many took at most each bound, how many took
longer, and the nanoseconds they took together. A node keeps its row in memory that the gateway shares, so
that nothing is sent for it and nothing is lost when the node is killed.
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

# What a node does with a request, in order. `wait`: for the model, which works on others.
NODE_PHASES = ("parse", "wait", "infer", "encode")

_CELL_BYTES = 8
_SUM = len(BOUNDS) + 1
_WIDTH = _SUM + 1

# What a node counts behind the histograms: calls whose fast answer was compared, and those that differed.
NODE_COUNTS = ("compared", "different")

# Between the two it tells which call of its model is under way: by a number, 0 while there is none.
NODE_CALL = len(NODE_PHASES) * _WIDTH
# Then how many instances it has answered, in how many calls, and when last: in ms on the monotonic clock.
NODE_ROWS, NODE_CALLS, NODE_LAST = range(NODE_CALL + 1, NODE_CALL + 4)

NODE_BYTES = (NODE_LAST + 1 + len(NODE_COUNTS)) * _CELL_BYTES


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """What is known of one phase: requests by bucket (not summed up), the last one past all bounds."""

    counts: tuple[int, ...]
    seconds: float


class LatencyHistograms:
    """The histograms of some phases, in `cells` if they are given: those that a node shares."""

    __slots__ = ("cells",)

    def __init__(self, phases: int, cells: MutableSequence[int] | None = None) -> None:
        self.cells: MutableSequence[int] = [0] * (phases * _WIDTH) if cells is None else cells

    def record(self, phase: int, seconds: float) -> None:
        """Count one request: how long it spent in the phase of that index."""
        cells, first = self.cells, phase * _WIDTH
        cells[first + bisect_left(BOUNDS, seconds)] += 1
        if seconds > 0:
            cells[first + _SUM] += int(seconds * 1e9)

    def record_all(self, phase: int, seconds: Sequence[float]) -> None:
        """Count several requests, at least one: how long each spent in the phase."""
        cells, first = self.cells, phase * _WIDTH
        least, most = bisect_left(BOUNDS, min(seconds)), bisect_left(BOUNDS, max(seconds))
        if least == most:
            cells[first + least] += len(seconds)
        else:
            for each in seconds:
                cells[first + bisect_left(BOUNDS, each)] += 1
        cells[first + _SUM] += max(0, int(sum(seconds) * 1e9))

    def merge(self, cells: Sequence[int]) -> None:
        """Count all that another row has counted that begins with the same phases."""
        for index, count in enumerate(cells[: len(self.cells)]):
            self.cells[index] += count

    def read_phase(self, phase: int) -> HistogramSnapshot:
        """One phase as it is now."""
        first = phase * _WIDTH
        return HistogramSnapshot(tuple(self.cells[first : first + _SUM]), self.cells[first + _SUM] / 1e9)


def as_cells(shared: memoryview) -> MutableSequence[int]:
    """Shared memory as a row of integers."""
    # A view can do all that is needed of one.
    return cast(MutableSequence[int], shared.cast("Q"))
