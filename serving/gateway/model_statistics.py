"""What versions have done, as Triton tells it, from what the gateway and the nodes have counted."""

from __future__ import annotations

import time
from collections.abc import Mapping

from serving.gateway.overview import Overview
from serving.gateway.records import VersionRecord
from serving.gateway.tallies import Tallies, Told
from serving.phases import HistogramSnapshot
from serving.protocols.triton import InferenceStatistics, StatisticDuration

# What a request waits for before its model computes: a place in a node, a node, and others in the node.
_WAITING = ("queue", "start", "load", "warm", "wait")
_NEVER = HistogramSnapshot((), 0.0)


class ModelStatistics:
    """Looks them up."""

    def __init__(self, overview: Overview, tallies: Tallies) -> None:
        self._overview = overview
        self._tallies = tallies

    def of(self, record: VersionRecord) -> InferenceStatistics:
        """Those of a version; all 0 while it had no request."""
        tally, view = self._tallies.find(record.uid), self._overview.version(record)
        if tally is None:
            return InferenceStatistics(record.name.version)
        told = tally.told(node.notes for node in view.nodes) if view is not None else tally.told(())
        return _statistics(record.name.version, told, time.time() - time.monotonic())


def _statistics(version: str, told: Told, epoch: float) -> InferenceStatistics:
    """`epoch` is when the monotonic clock was 0, in seconds since 1970."""
    phases: Mapping[str, HistogramSnapshot] = dict(told.phases)
    count = sum(phases.get("encode", _NEVER).counts)

    def spent(*names: str) -> StatisticDuration:
        return StatisticDuration(count, sum(phases.get(name, _NEVER).seconds for name in names))

    return InferenceStatistics(
        version,
        last_inference_ms=int(epoch * 1000) + told.last if told.last else 0,
        rows=told.rows,
        calls=told.calls,
        success=spent(*_WAITING, "parse", "infer", "encode"),
        fail=StatisticDuration(max(0, sum(told.statuses.values()) - count)),
        queue=spent(*_WAITING),
        read=spent("parse"),
        compute=spent("infer"),
        write=spent("encode"),
    )
