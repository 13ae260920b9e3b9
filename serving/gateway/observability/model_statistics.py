"""Inference statistics of versions in Triton's format, from the counts of the gateway and its nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping

from serving.gateway.control.status import ClusterStatus
from serving.gateway.observability.prediction_stats import PredictionStats, StatsSnapshot
from serving.gateway.state.records import VersionRecord
from serving.latency_histograms import HistogramSnapshot
from serving.protocols.triton_extensions import InferenceStatistics, StatisticDuration

# The phases that Triton counts as queue: waits for a slot, for a node, and inside the node.
_WAITING = ("queue", "start", "load", "warm", "wait")
_NEVER = HistogramSnapshot((), 0.0)


class ModelStatistics:
    def __init__(self, status: ClusterStatus, stats: PredictionStats) -> None:
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
