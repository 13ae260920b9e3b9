"""What is counted of predictions, per version: answers by status, bytes, and how long each phase took.

It costs a request a microsecond: plain integers, put into words only when somebody asks for metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.activator import Lease
from autoscaler.pools import Node
from serving.gateway.server_timing import paid
from serving.phases import (
    NODE_BYTES,
    NODE_CALLS,
    NODE_COUNTS,
    NODE_LAST,
    NODE_PHASES,
    NODE_ROWS,
    HistogramSnapshot,
    LatencyHistograms,
    as_cells,
)

# What the gateway knows of a request, in the order of its histograms. `queue`, `start`, `load` and `warm` are
# those of requests that had to wait for a node; `gateway` is what is left of `total` without all of that.
GATEWAY_PHASES = ("total", "gateway", "queue", "start", "load", "warm")
_TOTAL, _GATEWAY, _QUEUE = 0, 1, 2


class Fare(NamedTuple):
    """How one request has fared, in seconds: all of its time, and of that inside nodes; `waits` for nodes."""

    total: float
    inside: float
    waits: tuple[Lease, ...] = ()


Phases = tuple[tuple[str, HistogramSnapshot], ...]


@dataclass(frozen=True, slots=True)
class Told:
    """The counts of one version at one moment; phases that no request went through are left out.

    `compared` has the counts of `NODE_COUNTS`. `rows` are the instances that were answered, in `calls` of the
    model; `last` is when, in ms on the monotonic clock, 0 for never.
    """

    statuses: Mapping[int, int]
    limits: Mapping[str, int]
    bytes_in: int
    bytes_out: int
    phases: Phases
    compared: tuple[int, ...] = ()
    rows: int = 0
    calls: int = 0
    last: int = 0


class Tally:
    """The counts of one version."""

    __slots__ = ("_compared", "_nodes", "_phases", "_work", "bytes_in", "bytes_out", "limits", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.limits: dict[str, int] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self._phases = LatencyHistograms(len(GATEWAY_PHASES))
        self._nodes = LatencyHistograms(len(NODE_PHASES))
        self._compared = [0] * len(NODE_COUNTS)
        self._work = _Work()

    def answered(self, fare: Fare, status: int, bytes_in: int, bytes_out: int) -> None:
        """A node answered a request."""
        self._note(status)
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        total, inside, waits = fare
        waited = 0.0
        for lease in waits:
            for phase, (_, seconds) in enumerate(paid(lease), start=_QUEUE):
                waited += seconds
                if seconds or phase == _QUEUE:  # who waits for a place in a ready node pays for no start
                    self._phases.record(phase, seconds)
        self._phases.record(_TOTAL, total)
        self._phases.record(_GATEWAY, total - waited - inside)

    def refused(self, status: int, limit: str = "") -> None:
        """A request was answered without a node; `limit` is the setting whose share was used up."""
        self._note(status)
        if limit:
            self.limits[limit] = self.limits.get(limit, 0) + 1

    def _note(self, status: int) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def keep(self, notes: memoryview) -> None:
        """Take over what a node has counted that counts no more."""
        counted = as_cells(notes)
        self._nodes.merge(counted)
        self._compared = _added(self._compared, counted)
        self._work = self._work.adding(counted)

    def told(self, nodes: Iterable[bytes]) -> Told:
        """The counts as they are now; `nodes` are the notes of the living ones."""
        nodes = list(nodes)
        compared, work = self._compared, self._work
        for notes in nodes:
            counted = as_cells(memoryview(notes))
            compared, work = _added(compared, counted), work.adding(counted)
        return Told(
            dict(self.statuses),
            dict(self.limits),
            self.bytes_in,
            self.bytes_out,
            tuple(self._told_phases(nodes)),
            tuple(compared),
            *work,
        )

    def _told_phases(self, nodes: Iterable[bytes]) -> Iterator[tuple[str, HistogramSnapshot]]:
        inside = LatencyHistograms(len(NODE_PHASES))
        inside.merge(self._nodes.cells)
        for notes in nodes:
            inside.merge(as_cells(memoryview(notes)))
        for names, histograms in ((GATEWAY_PHASES, self._phases), (NODE_PHASES, inside)):
            for phase, name in enumerate(names):
                if any((found := histograms.read_phase(phase)).counts):
                    yield name, found


class _Work(NamedTuple):
    """What nodes have answered; see `Told`."""

    rows: int = 0
    calls: int = 0
    last: int = 0

    def adding(self, notes: Sequence[int]) -> _Work:
        """With what one more node has."""
        rows, calls = self.rows + notes[NODE_ROWS], self.calls + notes[NODE_CALLS]
        return _Work(rows, calls, max(self.last, notes[NODE_LAST]))


def _added(counts: Sequence[int], notes: Sequence[int]) -> list[int]:
    """The counts with those that a node has behind its histograms."""
    return [count + more for count, more in zip(counts, notes[-len(counts) :], strict=True)]


class Tallies:
    """Those of all versions, by uid; `calls` counts what reached no version, by method and status."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}
        self.calls: Counter[tuple[str, int]] = Counter()

    def get_or_create(self, uid: str) -> Tally:
        """That of a version, begun with its first request."""
        tally = self._tallies.get(uid)
        if tally is None:
            tally = self._tallies[uid] = Tally()
        return tally

    def node_gone(self, node: Node) -> None:
        """Keep what a node has counted that counts no more."""
        tally = self._tallies.get(node.key)
        if tally is not None and len(node.counters) == NODE_BYTES:
            tally.keep(node.counters)

    def find(self, uid: str) -> Tally | None:
        """That of a version; None if it never had a request."""
        return self._tallies.get(uid)

    def forget_version(self, uid: str) -> None:
        """A version is gone; what is still inside of it may yet be counted."""
        self._tallies.pop(uid, None)

    def forget_others(self, uids: set[str]) -> None:
        """Versions that are gone are told of no more."""
        self._tallies = {uid: tally for uid, tally in self._tallies.items() if uid in uids}
