"""What the phases of a version's answers add up to: since the server was started, and in the last minutes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from serving.gateway.observability.prediction_stats import GATEWAY_PHASES, PhaseHistograms, VersionStats
from serving.latency_histograms import NODE_PHASES

# Two samples are kept, so that what is recent began at least so many seconds ago, and at most twice as many.
SAMPLE_SECONDS: Final = 300
_NAMES: Final = (*GATEWAY_PHASES, *NODE_PHASES)
_STARTED_NAMES: Final = ("total", "queue")


class PhaseSum(NamedTuple):
    """So many requests had a phase, and took so many seconds in all."""

    requests: float = 0
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        """In seconds; 0 without a request."""
        return self.seconds / self.requests if self.requests else 0.0


class PhaseSums(NamedTuple):
    """Phases by their names; `started` has those of the requests that waited for the start of a node."""

    all: dict[str, PhaseSum]
    started: dict[str, PhaseSum]

    def subtract_started(self, name: str) -> PhaseSum:
        """A phase of the requests that met a ready node."""
        whole, cold = self.all.get(name, PhaseSum()), self.started.get(name, PhaseSum())
        return PhaseSum(whole.requests - cold.requests, max(0.0, whole.seconds - cold.seconds))


def add_up_phases(phases: PhaseHistograms, started: PhaseHistograms) -> PhaseSums:
    return PhaseSums(_add_up(phases), _add_up(started))


def _add_up(phases: PhaseHistograms) -> dict[str, PhaseSum]:
    return {name: PhaseSum(sum(one.counts), one.seconds) for name, one in phases}


class PhaseSample:
    """Sums as they were at the time `at`, in 200 bytes."""

    __slots__ = ("_cells", "at")

    def __init__(self, at: int, sums: PhaseSums) -> None:
        self.at = at
        self._cells = array("d", _flatten(sums))

    def subtract_from(self, sums: PhaseSums) -> PhaseSums:
        """What came since."""
        cells = array("d", (now - then for now, then in zip(_flatten(sums), self._cells, strict=True)))
        pairs = [PhaseSum(*cells[place : place + 2]) for place in range(0, len(cells), 2)]
        names = len(_NAMES)
        return PhaseSums(_drop_empty(_NAMES, pairs[:names]), _drop_empty(_STARTED_NAMES, pairs[names:]))


def sample_phases(at: int, stats: VersionStats, nodes: Iterable[bytes]) -> PhaseSample:
    """`nodes` are the counters of the living nodes."""
    counted = stats.take_snapshot(nodes)
    return PhaseSample(at, add_up_phases(counted.phases, counted.started))


def _flatten(sums: PhaseSums) -> Iterator[float]:
    for names, found in ((_NAMES, sums.all), (_STARTED_NAMES, sums.started)):
        for name in names:
            yield from found.get(name, PhaseSum())


def _drop_empty(names: Sequence[str], sums: Sequence[PhaseSum]) -> dict[str, PhaseSum]:
    return {name: one for name, one in zip(names, sums, strict=True) if one.requests > 0}
