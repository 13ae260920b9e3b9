"""Writes the history of the versions that are awake, once a second."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Collection

from autoscaler.pools import NodePool, NodeState
from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.gateway.observability.history import (
    GRAINS,
    Figures,
    Grain,
    VersionHistory,
    combine_figures,
    estimate_quantile,
)
from serving.gateway.observability.phase_sums import SAMPLE_SECONDS, PhaseSample, sample_phases
from serving.gateway.observability.prediction_stats import PredictionStats

# Of how many seconds "now" is.
RECENT_SECONDS = 10
_MINUTE = 60
_INTERVAL, _MAX_PAUSE = 1.0, 30.0
_MOST_MISSED = 10
# Seconds after which the history of a version that did nothing is empty, and dropped.
_FORGOTTEN_AFTER = 86_400


class HistoryRecorder:
    """Called on the event loop; `list_awake` returns the uids of versions that may be in use.

    `clock` is in seconds since the epoch. Left out, it is that of the server's start, and follows no change.
    """

    def __init__(
        self,
        list_awake: Callable[[], Collection[str]],
        pool: NodePool,
        stats: PredictionStats,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._list_awake = list_awake
        self._pool = pool
        self._stats = stats
        self._clock = _make_steady_clock() if clock is None else clock
        self._histories: dict[str, VersionHistory] = {}
        # Of each version the older sample is first.
        self._samples: dict[str, tuple[PhaseSample, ...]] = {}
        self._recorded_at = int(self._clock())
        self._forgetting_at = self._recorded_at + _FORGOTTEN_AFTER
        # Those of the last second too: their last answers may have come after it.
        self._awake: frozenset[str] = frozenset()

    def start(self, supervisor: Supervisor) -> BackgroundLoop:
        async def wait_interval() -> None:
            await asyncio.sleep(_INTERVAL - self._clock() % _INTERVAL)

        async def record() -> None:
            self.record_second()

        return supervisor.start_loop("history", wait_interval, record, within=_MAX_PAUSE)

    def read_figures(self, uid: str, grain: Grain) -> tuple[int, list[Figures]]:
        """When the first whole slot of the grain ends, and the figures of all, the oldest first."""
        history = self._histories.get(uid) or VersionHistory(self._recorded_at)
        return history.read(grain, self._recorded_at)

    def read_recent(self, uid: str) -> Figures | None:
        """The figures of the last seconds as those of one; None for a version without a history."""
        history = self._histories.get(uid)
        if history is None:
            return None
        return combine_figures(history.read(GRAINS[0], self._recorded_at, RECENT_SECONDS)[1])

    def read_last_minute(self, uid: str) -> list[Figures]:
        """The figures of each of its seconds, the oldest first; none for a version without a history."""
        history = self._histories.get(uid)
        return [] if history is None else history.read(GRAINS[0], self._recorded_at, _MINUTE)[1]

    def read_older_sample(self, uid: str) -> tuple[PhaseSample, float] | None:
        """The sums of some minutes ago, and how many seconds ago that was; None where all is more recent."""
        samples = self._samples.get(uid)
        return None if samples is None else (samples[0], self._recorded_at - samples[0].at)

    def forget_version(self, uid: str) -> None:
        self._histories.pop(uid, None)
        self._samples.pop(uid, None)

    def record_second(self) -> None:
        """Write what happened since the last call."""
        now, awake = int(self._clock()), frozenset(self._list_awake())
        for uid in awake | self._awake:
            history = self._histories.get(uid)
            if history is None:
                history = self._histories[uid] = VersionHistory(now)
            figures = self._take_figures(uid, history)
            if uid in self._awake:
                # Seconds in which the event loop did not come to this.
                for missed in range(max(self._recorded_at + 1, now - _MOST_MISSED), now):
                    history.record(missed, Figures(nodes=figures.nodes))
            history.record(now, figures)
            # Versions have different turns: each takes a tenth of a millisecond.
            if (now - hash(uid)) % SAMPLE_SECONDS == 0:
                self._sample_phases(uid, now)
        self._awake, self._recorded_at = awake, now
        if now >= self._forgetting_at:
            self._forgetting_at = now + _FORGOTTEN_AFTER
            kept = {
                uid: one for uid, one in self._histories.items() if now - one.last_second < _FORGOTTEN_AFTER
            }
            self._histories = kept
            self._samples = {uid: one for uid, one in self._samples.items() if uid in kept}

    def _sample_phases(self, uid: str, now: int) -> None:
        stats = self._stats.find_version(uid)
        if stats is not None:
            nodes = [node.read_counters() for node in self._pool.nodes(uid)]
            sample = sample_phases(now, stats, nodes)
            self._samples[uid] = (*self._samples.get(uid, ())[-1:], sample)

    def _take_figures(self, uid: str, history: VersionHistory) -> Figures:
        nodes = sum(node.state is NodeState.READY for node in self._pool.nodes(uid))
        stats = self._stats.find_version(uid)
        if stats is None:
            return Figures(nodes=nodes)
        totals, before = stats.read_totals(), history.totals
        if totals == before:
            return Figures(nodes=nodes)
        history.totals = totals
        requests, errors, *latencies = (
            totals
            if before is None
            else array("Q", (now - then for now, then in zip(totals, before, strict=True)))
        )
        return Figures(
            requests, errors, estimate_quantile(latencies, 0.5), estimate_quantile(latencies, 0.99), nodes
        )


def _make_steady_clock() -> Callable[[], float]:
    epoch = time.time() - time.monotonic()
    return lambda: epoch + time.monotonic()
