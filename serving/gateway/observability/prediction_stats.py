"""Statistics of predictions, per version: replies by status, bytes, and a latency histogram for each phase.

Counting a request takes a microsecond: plain integers, rendered only for a scrape of the metrics.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.pools import Node
from serving.gateway.control.status import ServerStatus
from serving.gateway.proxy.observation import RequestTiming
from serving.gateway.proxy.server_timing import compute_wait_phases
from serving.gateway.state.records import VersionRecord
from serving.latency_histograms import (
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
from serving.protocols.triton_extensions import InferenceStatistics, StatisticDuration

# The gateway's phases of a request, in the order of the histograms. `queue`, `start`, `load` and `warm` only
# count requests that waited for a node; `gateway` is `total` without these and without the time inside nodes.
GATEWAY_PHASES = ("total", "gateway", "queue", "start", "load", "warm")
_TOTAL, _GATEWAY, _QUEUE = 0, 1, 2
_FIRST_ERROR = 400
_STARTED_PHASES = ("total", "queue")

PhaseHistograms = tuple[tuple[str, HistogramSnapshot], ...]
# The phases that Triton counts as queue: waits for a slot, for a node, and inside the node.
_WAITING = ("queue", "start", "load", "warm", "wait")
_NEVER = HistogramSnapshot((), 0.0)


@dataclass(frozen=True, slots=True)
class StatsSnapshot:
    """The counts of one version; phases without a request are left out.

    `started` has the total and the queue of the requests that waited for the start of a node; they are in
    `phases` too. `compared` has the counts of `NODE_COUNTS`. `rows` counts instances, `calls` calls of the
    model; `last` is the time of the last one in ms on the monotonic clock, 0 for never.
    """

    statuses: Mapping[int, int]
    limits: Mapping[str, int]
    bytes_in: int
    bytes_out: int
    phases: PhaseHistograms
    started: PhaseHistograms = ()
    compared: tuple[int, ...] = ()
    rows: int = 0
    calls: int = 0
    last: int = 0


class VersionStats:
    """The counts of one version."""

    __slots__ = (
        "_compared",
        "_node_phases",
        "_phases",
        "_started",
        "_work",
        "bytes_in",
        "bytes_out",
        "limits",
        "statuses",
    )

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.limits: dict[str, int] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self._phases = LatencyHistograms(len(GATEWAY_PHASES))
        self._started = LatencyHistograms(len(_STARTED_PHASES))
        self._node_phases = LatencyHistograms(len(NODE_PHASES))
        self._compared = [0] * len(NODE_COUNTS)
        self._work = _WorkCounts()

    def count_answer(self, timing: RequestTiming, status: int, bytes_in: int, bytes_out: int) -> None:
        self._count_status(status)
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        total, inside, waits = timing
        waited = queued = 0.0
        waited_for_start = False
        for lease in waits:
            waited_for_start = waited_for_start or lease.waited_for_start
            for phase, (_, seconds) in enumerate(compute_wait_phases(lease), start=_QUEUE):
                waited += seconds
                queued += seconds if phase == _QUEUE else 0.0
                if seconds or phase == _QUEUE:  # a wait for a slot of a ready node has no start
                    self._phases.record(phase, seconds)
        if waited_for_start:
            for phase, seconds in enumerate((total, queued)):
                self._started.record(phase, seconds)
        self._phases.record(_TOTAL, total)
        self._phases.record(_GATEWAY, total - waited - inside)

    def count_refusal(self, status: int, limit: str = "") -> None:
        """Count a request that no node answered; `limit` is the setting of the limit that it exceeded."""
        self._count_status(status)
        if limit:
            self.limits[limit] = self.limits.get(limit, 0) + 1

    def _count_status(self, status: int) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def absorb_node(self, counters: bytes) -> None:
        """Add the final counts of a node that is gone."""
        counted = as_cells(memoryview(counters))
        self._node_phases.merge(counted)
        self._compared = _add_counts(self._compared, counted)
        self._work = self._work.with_node(counted)

    def read_totals(self) -> array[int]:
        """Answers, those with a status of 400 or more, and then answers of nodes by total latency."""
        errors = sum(count for status, count in self.statuses.items() if status >= _FIRST_ERROR)
        counts = self._phases.read_phase(_TOTAL).counts
        return array("Q", (sum(self.statuses.values()), errors, *counts))

    def take_snapshot(self, nodes: Iterable[bytes]) -> StatsSnapshot:
        """The current counts; `nodes` are the counters of the living nodes."""
        nodes = list(nodes)
        compared, work = self._compared, self._work
        for counters in nodes:
            counted = as_cells(memoryview(counters))
            compared, work = _add_counts(compared, counted), work.with_node(counted)
        return StatsSnapshot(
            dict(self.statuses),
            dict(self.limits),
            self.bytes_in,
            self.bytes_out,
            tuple(self._merge_phases(nodes)),
            tuple(_list_phases(_STARTED_PHASES, self._started)),
            tuple(compared),
            *work,
        )

    def _merge_phases(self, nodes: Iterable[bytes]) -> Iterator[tuple[str, HistogramSnapshot]]:
        inside = LatencyHistograms(len(NODE_PHASES))
        inside.merge(self._node_phases.cells)
        for counters in nodes:
            inside.merge(as_cells(memoryview(counters)))
        for names, histograms in ((GATEWAY_PHASES, self._phases), (NODE_PHASES, inside)):
            yield from _list_phases(names, histograms)


def _list_phases(
    names: Iterable[str], histograms: LatencyHistograms
) -> Iterator[tuple[str, HistogramSnapshot]]:
    """Those that a request had."""
    for phase, name in enumerate(names):
        if any((found := histograms.read_phase(phase)).counts):
            yield name, found


class _WorkCounts(NamedTuple):
    """What nodes computed; see `StatsSnapshot`."""

    rows: int = 0
    calls: int = 0
    last: int = 0

    def with_node(self, counters: Sequence[int]) -> _WorkCounts:
        rows, calls = self.rows + counters[NODE_ROWS], self.calls + counters[NODE_CALLS]
        return _WorkCounts(rows, calls, max(self.last, counters[NODE_LAST]))


def _add_counts(counts: Sequence[int], counters: Sequence[int]) -> list[int]:
    """The counts plus those of a node, which follow its histograms."""
    return [count + more for count, more in zip(counts, counters[-len(counts) :], strict=True)]


class PredictionStats:
    """The statistics of all versions, by uid; `api_calls` counts other requests by method and status."""

    def __init__(self) -> None:
        self._versions: dict[str, VersionStats] = {}
        self.api_calls: Counter[tuple[str, int]] = Counter()

    def get_or_create(self, uid: str) -> VersionStats:
        stats = self._versions.get(uid)
        if stats is None:
            stats = self._versions[uid] = VersionStats()
        return stats

    def absorb_node(self, node: Node) -> None:
        """Add the final counts of a node that is gone."""
        stats = self._versions.get(node.key)
        counters = node.read_counters()
        if stats is not None and len(counters) == NODE_BYTES:
            stats.absorb_node(counters)

    def find_version(self, uid: str) -> VersionStats | None:
        """None if the version never had a request."""
        return self._versions.get(uid)

    def forget_version(self, uid: str) -> None:
        """Requests that are still in flight may create the statistics of the version again."""
        self._versions.pop(uid, None)

    def retain_versions(self, uids: set[str]) -> None:
        """Drop the statistics of all other versions."""
        self._versions = {uid: stats for uid, stats in self._versions.items() if uid in uids}


class ModelStatistics:
    """Inference statistics of versions in Triton's form, from the counts of the gateway and of nodes."""

    def __init__(self, status: ServerStatus, stats: PredictionStats) -> None:
        self._status = status
        self._stats = stats

    def get_statistics(self, record: VersionRecord) -> InferenceStatistics:
        """All 0 for a version that had no request."""
        stats, status = self._stats.find_version(record.uid), self._status.get_version(record)
        if stats is None:
            return InferenceStatistics(record.name.version)
        snapshot = stats.take_snapshot(() if status is None else (node.counters for node in status.nodes))
        return _build_statistics(record.name.version, snapshot, time.time() - time.monotonic())


def _build_statistics(version: str, snapshot: StatsSnapshot, epoch: float) -> InferenceStatistics:
    """`epoch` is when the monotonic clock was 0, in seconds since 1970."""
    phases: Mapping[str, HistogramSnapshot] = dict(snapshot.phases)
    count = sum(phases.get("encode", _NEVER).counts)

    def sum_phases(*names: str) -> StatisticDuration:
        return StatisticDuration(count, sum(phases.get(name, _NEVER).seconds for name in names))

    return InferenceStatistics(
        version,
        last_inference_ms=int(epoch * 1000) + snapshot.last if snapshot.last else 0,
        rows=snapshot.rows,
        calls=snapshot.calls,
        success=sum_phases(*_WAITING, "parse", "infer", "encode"),
        fail=StatisticDuration(max(0, sum(snapshot.statuses.values()) - count)),
        queue=sum_phases(*_WAITING),
        read=sum_phases("parse"),
        compute=sum_phases("infer"),
        write=sum_phases("encode"),
    )
