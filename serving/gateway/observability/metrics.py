"""Renders `/metrics` for Prometheus.

Gauges are read at the moment of a scrape. Counted as they happen are only starts of nodes and refused
requests, which are rare, and predictions, in plain integers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from autoscaler.activator import StartEstimate, Waker
from autoscaler.errors import NodeError, QueueFullError, RetiredError, StartFailedError, TooLateError
from autoscaler.placement.server_load import ServerLoad
from autoscaler.pools import MemoryUsage, Node, NodeSpec, NodeState
from serving.gateway.control.status import (
    COLD,
    FORKED,
    ServerStatus,
    VersionSnapshot,
)
from serving.gateway.observability.metric_definitions import (
    COLD_START,
    METRIC_DEFINITIONS,
    PHASES,
    VERSION_LABELS,
    HopCounts,
    MetricsSnapshot,
    ServerCounts,
    SuggestionCounts,
    version_label_values,
)
from serving.gateway.observability.prediction_stats import PhaseHistograms, PredictionStats, StatsSnapshot
from serving.gateway.observability.request_log import LogCounts
from serving.gateway.thread_pool import ThreadPool
from serving.latency_histograms import BOUNDS
from serving.names import VersionName

# Seconds to wait for the counts of log records.
_LOG_COUNTS_TIMEOUT = 1.0
# Scrapes that may wait for another.
_QUEUE = 15

# Every Prometheus reads the plain text format.
_RENDER, CONTENT_TYPE = choose_encoder("")


async def _no_log_counts() -> Sequence[LogCounts]:
    return ()


@dataclass(frozen=True, slots=True)
class MetricSources:
    """Counts of other components.

    `spans` and `audit` are by result, `errors` by the background loop or kind of task, `refused` (connections
    and requests that the server rejected) by reason.
    """

    spans: Callable[[], Mapping[str, int]] = dict
    audit: Callable[[], Mapping[str, int]] = dict
    logs: Callable[[], Coroutine[Any, Any, Sequence[LogCounts]]] = _no_log_counts
    errors: Callable[[], Mapping[str, int]] = dict
    refused: Callable[[], Mapping[str, int]] = dict
    suggestions: Callable[[], SuggestionCounts] = lambda: SuggestionCounts({}, 0.0)
    server_load: Callable[[], ServerLoad] = ServerLoad
    hops: Callable[[], HopCounts] = lambda: HopCounts({}, 0.0)
    server_counts: Callable[[], ServerCounts] = ServerCounts


@dataclass(frozen=True, slots=True)
class StartSummary:
    """Starts of nodes of one version, forked or cold: `seconds` are means by phase, `total` among them."""

    how: str
    count: int
    seconds: Mapping[str, float]


class Metrics:
    def __init__(
        self, status: ServerStatus, stats: PredictionStats, sources: MetricSources | None = None
    ) -> None:
        self._status = status
        self._stats = stats
        self._sources = sources or MetricSources()
        self._thread = ThreadPool("metrics", 1, queue=_QUEUE)
        self._logs: Sequence[LogCounts] = ()
        self._log_counts_task: asyncio.Task[Sequence[LogCounts]] | None = None
        self._starts: dict[str, prometheus_client.Histogram] = {}
        self._refused: dict[str, Counter[str]] = {}
        self._changes = 0
        self._rendered_starts: tuple[object, bytes] = (None, b"")
        self._phases = _PhaseTextCache()

    def on_node_changed(self, node: Node) -> None:
        """A listener of the pool."""
        if node.state is NodeState.GONE:
            self._stats.absorb_node(node)
        if node.state is not NodeState.READY or node.ready_at is None:
            return
        starts = self._starts.setdefault(node.key, _new_start_histogram())
        how = FORKED if node.forked else COLD
        for phase, seconds in compute_start_durations(node, node.ready_at):
            starts.labels(phase, how).observe(seconds)
        self._changes += 1

    def count_refusal(self, key: str, error: NodeError) -> None:
        self._refused.setdefault(key, Counter())[_REFUSALS[type(error)]] += 1

    async def render_text(self) -> bytes:
        """All metrics, of the type CONTENT_TYPE; slow parts run in a thread."""
        versions = self._status.list_versions()
        self.retain_versions({record.uid for record in self._status.state.versions.values()})
        starts = [
            (version.name, self._starts[version.uid]) for version in versions if version.uid in self._starts
        ]
        snapshot = MetricsSnapshot(
            versions=versions,
            pilots=self._status.list_pilots(),
            refused={uid: dict(counts) for uid, counts in self._refused.items()},
            memory={},
            pilot_memory={},
            jobs=self._status.state.job_index,
            studies=self._status.state.studies,
            suggestions=self._sources.suggestions(),
            server_load=self._sources.server_load(),
            hops=self._sources.hops(),
            server_counts=self._sources.server_counts(),
            counts=dict(self._iter_stats(versions)),
            calls=dict(self._stats.api_calls),
            spans=self._sources.spans(),
            logs=await self._get_log_counts(),
            audit=self._sources.audit(),
            errors=self._sources.errors(),
            refused_connections=self._sources.refused(),
        )
        return await self._thread.run(self._render_snapshot, snapshot, starts, self._changes)

    async def _get_log_counts(self) -> Sequence[LogCounts]:
        """The current counts, or the last ones if the disk does not answer in time."""
        if self._log_counts_task is None or self._log_counts_task.done():
            self._log_counts_task = asyncio.create_task(self._sources.logs(), name="count of log records")
        await asyncio.wait((self._log_counts_task,), timeout=_LOG_COUNTS_TIMEOUT)
        if self._log_counts_task.done() and not self._log_counts_task.cancelled():
            self._logs = self._log_counts_task.result()
        return self._logs

    def summarize_starts(self, uid: str) -> Sequence[StartSummary]:
        """How long the starts of its nodes took since the server's start, forked ones first."""
        histogram = self._starts.get(uid)
        if histogram is None:
            return ()
        sums, counts = dict[tuple[str, str], float](), Counter[str]()
        for sample in next(iter(histogram.collect())).samples:
            phase, how = sample.labels.get("phase", ""), sample.labels.get("how", "")
            if sample.name.endswith("_sum"):
                sums[how, phase] = sample.value
            elif sample.name.endswith("_count"):
                counts[how] = int(sample.value)
        return [
            StartSummary(how, count, {phase: sums[how, phase] / count for one, phase in sums if one == how})
            for how in (FORKED, COLD)
            if (count := counts[how])
        ]

    def forget_version(self, uid: str) -> None:
        self._starts.pop(uid, None)
        self._refused.pop(uid, None)
        self._stats.forget_version(uid)

    def retain_versions(self, uids: set[str]) -> None:
        """Drop what is kept of all other versions."""
        self._starts = {uid: starts for uid, starts in self._starts.items() if uid in uids}
        self._refused = {uid: refused for uid, refused in self._refused.items() if uid in uids}
        self._stats.retain_versions(uids)

    def _iter_stats(self, versions: Sequence[VersionSnapshot]) -> Iterator[tuple[str, StatsSnapshot]]:
        for version in versions:
            stats = self._stats.find_version(version.uid)
            if stats is not None and stats.statuses:
                yield version.uid, stats.take_snapshot(node.counters for node in version.nodes)

    def _render_snapshot(
        self,
        snapshot: MetricsSnapshot,
        starts: Sequence[tuple[VersionName, prometheus_client.Histogram]],
        changes: int,
    ) -> bytes:
        measure = self._status.measure_memory
        memory = {
            version.uid: measure(pid for node in version.nodes if (pid := node.pid) is not None)
            for version in snapshot.versions
            if version.nodes
        }
        pilot_memory = {pilot.key: measure(pilot.pids) for pilot in snapshot.pilots}
        snapshot = replace(
            snapshot, memory=_drop_unmeasured(memory), pilot_memory=_drop_unmeasured(pilot_memory)
        )
        # Start histograms are most of the text, and change only when a node starts.
        key = (changes, [name for name, _ in starts])
        if self._rendered_starts[0] != key:
            self._rendered_starts = key, _render_metrics(_merge_start_histograms(starts))
        return (
            _render_metrics(_build_metrics(snapshot))
            + self._phases.render(snapshot)
            + self._rendered_starts[1]
        )


class RefusalCountingWaker:
    """A waker that counts refusals in the metrics and delegates to `waker`."""

    def __init__(self, waker: Waker, metrics: Metrics) -> None:
        self._waker = waker
        self._metrics = metrics

    def wake(self, spec: NodeSpec) -> StartEstimate:
        return self._waker.wake(spec)

    def on_refused(self, key: str, error: NodeError) -> None:
        self._metrics.count_refusal(key, error)
        self._waker.on_refused(key, error)


_LE = (*map(str, BOUNDS), "+Inf")

_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

_REFUSALS: Mapping[type[NodeError], str] = {
    QueueFullError: "queue_full",
    TooLateError: "too_late",
    StartFailedError: "start_failed",
    RetiredError: "deleted",
}


def compute_start_durations(node: Node, ready_at: float) -> Iterator[tuple[str, float]]:
    """Seconds of each phase of a node's start, and their total."""
    total = ready_at - node.asked_at - node.once_seconds
    load, warm = node.report.get("load_seconds", 0.0), node.report.get("warm_seconds", 0.0)
    yield "start", max(0.0, total - load - warm)
    yield "load", load
    yield "warm", warm
    yield "total", total


def _new_start_histogram() -> prometheus_client.Histogram:
    """The histogram of one version; the version's labels are added when it is rendered."""
    labels = COLD_START.labels[len(VERSION_LABELS) :]
    return prometheus_client.Histogram(
        COLD_START.name, COLD_START.help, labels, buckets=_BUCKETS, registry=None
    )


def _drop_unmeasured(found: Mapping[str, MemoryUsage | None]) -> dict[str, MemoryUsage]:
    return {key: memory for key, memory in found.items() if memory is not None}


def _build_metrics(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    for definition in METRIC_DEFINITIONS:
        if definition.collect is None:
            continue
        kind = GaugeMetricFamily if definition.kind == "gauge" else CounterMetricFamily
        metric = kind(definition.name, definition.help, labels=definition.labels)
        for labels, value in definition.collect(snapshot):
            metric.add_metric(labels, value)
        yield metric


class _PhaseTextCache:
    """Renders the phase histograms of predictions, again only for versions that changed."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[tuple[VersionName, PhaseHistograms], bytes]] = {}

    def render(self, snapshot: MetricsSnapshot) -> bytes:
        cached, self._texts = self._texts, {}
        for version in snapshot.versions:
            if version.uid in snapshot.counts:
                key = (version.name, snapshot.counts[version.uid].phases)
                entry = cached.get(version.uid)
                if entry is None or entry[0] != key:
                    entry = key, _strip_metadata(_render_metrics([_build_phase_metric(*key)]))
                self._texts[version.uid] = entry
        head = _render_metrics([Metric(PHASES.name, PHASES.help, PHASES.kind)])
        return head + b"".join(text for _, text in self._texts.values())


def _build_phase_metric(name: VersionName, phases: PhaseHistograms) -> Metric:
    metric = HistogramMetricFamily(PHASES.name, PHASES.help, labels=PHASES.labels)
    for phase, histogram in phases:
        sums = zip(_LE, itertools.accumulate(histogram.counts), strict=True)
        metric.add_metric((*version_label_values(name), phase), list(sums), histogram.seconds)
    return metric


def _strip_metadata(text: bytes) -> bytes:
    """A metric's samples, without its HELP and TYPE lines."""
    return text.split(b"\n", 2)[2]


def _merge_start_histograms(
    starts: Sequence[tuple[VersionName, prometheus_client.Histogram]],
) -> Iterator[Metric]:
    """The histograms of all versions as one metric."""
    metric = Metric(COLD_START.name, COLD_START.help, COLD_START.kind)
    for name, histogram in starts:
        labels = dict(zip(VERSION_LABELS, version_label_values(name), strict=True))
        for sample in next(iter(histogram.collect())).samples:
            if not sample.name.endswith("_created"):
                metric.add_sample(sample.name, {**labels, **sample.labels}, sample.value)
    yield metric


class _StaticCollector(Collector):
    """A collector of given metrics, for the encoder, in place of a registry."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _render_metrics(metrics: Iterable[Metric]) -> bytes:
    return _RENDER(_StaticCollector(metrics))
