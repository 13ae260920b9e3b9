"""What versions have done, as Triton tells it, from what the gateway and the nodes have counted."""

from __future__ import annotations

import time
from collections.abc import Mapping

from serving.gateway.control.status import ClusterStatus
from serving.gateway.observability.prediction_stats import PredictionStats, StatsSnapshot
from serving.gateway.state.records import VersionRecord
from serving.latency_histograms import HistogramSnapshot
from serving.protocols.triton_extensions import InferenceStatistics, StatisticDuration

# What a request waits for before its model computes: a place in a node, a node, and others in the node.
_WAITING = ("queue", "start", "load", "warm", "wait")
_NEVER = HistogramSnapshot((), 0.0)


class ModelStatistics:
    """Looks them up."""

    def __init__(self, overview: ClusterStatus, tallies: PredictionStats) -> None:
        self._status = overview
        self._stats = tallies

    def get_statistics(self, record: VersionRecord) -> InferenceStatistics:
        """Those of a version; all 0 while it had no request."""
        tally, view = self._stats.find_version(record.uid), self._status.get_version(record)
        if tally is None:
            return InferenceStatistics(record.name.version)
        told = (
            tally.take_snapshot(node.notes for node in view.nodes)
            if view is not None
            else tally.take_snapshot(())
        )
        return _build_statistics(record.name.version, told, time.time() - time.monotonic())


def _build_statistics(version: str, told: StatsSnapshot, epoch: float) -> InferenceStatistics:
    """`epoch` is when the monotonic clock was 0, in seconds since 1970."""
    phases: Mapping[str, HistogramSnapshot] = dict(told.phases)
    count = sum(phases.get("encode", _NEVER).counts)

    def sum_phases(*names: str) -> StatisticDuration:
        return StatisticDuration(count, sum(phases.get(name, _NEVER).seconds for name in names))

    return InferenceStatistics(
        version,
        last_inference_ms=int(epoch * 1000) + told.last if told.last else 0,
        rows=told.rows,
        calls=told.calls,
        success=sum_phases(*_WAITING, "parse", "infer", "encode"),
        fail=StatisticDuration(max(0, sum(told.statuses.values()) - count)),
        queue=sum_phases(*_WAITING),
        read=sum_phases("parse"),
        compute=sum_phases("infer"),
        write=sum_phases("encode"),
    )
