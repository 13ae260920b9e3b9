"""What Prometheus reads at `/metrics`.

Everything is looked up at the moment of a scrape. Only what would be forgotten until then is counted when it
happens: starts of nodes and refused requests, which are rare, and predictions, in plain integers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from autoscaler.activator import Outlook, Waker
from autoscaler.errors import NodeError, QueueFullError, RetiredError, StartFailedError, TooLateError
from autoscaler.pools import Memory, Node, NodeSpec, NodeState
from autoscaler.pools.pilots import PilotState, PilotStatus
from serving.gateway.catalog.jobs import has_ended
from serving.gateway.overview import (
    COLD,
    FORKED,
    Condition,
    Overview,
    VersionView,
    memory_of,
    memory_of_pilot,
)
from serving.gateway.records import JobRecord
from serving.gateway.tallies import Tallies, Told
from serving.names import VersionName
from serving.phases import BOUNDS, Histogram
from serving.resources import JobState

# Every Prometheus takes the plain text format.
_RENDER, CONTENT_TYPE = choose_encoder("")

Values = Iterable[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True)
class Scene:
    """What a scrape tells of. `refused`, `counts` (of requests) and `memory` (of living nodes) are by uid,
    `pilot_memory` by key, `calls` by method and status, `spans` by what became of them."""

    versions: Sequence[VersionView]
    pilots: Sequence[PilotStatus]
    refused: Mapping[str, Mapping[str, int]]
    memory: Mapping[str, Memory]
    pilot_memory: Mapping[str, Memory]
    jobs: Iterable[JobRecord]
    counts: Mapping[str, Told]
    calls: Mapping[tuple[str, int], int]
    spans: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name, whether it is a gauge, a counter or a histogram, its labels and what it means.

    `values` are its values in a scene, each with its labels, and `histograms` those of a histogram; None for
    what is counted when it happens.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    values: Callable[[Scene], Values] | None = None
    histograms: Callable[[Scene], Iterable[tuple[tuple[str, ...], Histogram]]] | None = None


# ---- values


def _each(values: Callable[[VersionView, Scene], Values]) -> Callable[[Scene], Values]:
    """The values of every version, with its labels before theirs."""

    def found(scene: Scene) -> Values:
        for view in scene.versions:
            labels = _labels(view.name)
            for more, value in values(view, scene):
                yield (*labels, *more), value

    return found


def _labels(name: VersionName) -> tuple[str, str, str]:
    return name.project, name.model, name.version


def _desired(view: VersionView, _: Scene) -> Values:
    yield (), view.desired


# A server may have hundreds of versions that sleep. What goes without saying of those is left out.


def _nodes(view: VersionView, _: Scene) -> Values:
    yield ("ready",), view.count(NodeState.READY)
    if view.nodes:
        yield ("starting",), view.count(NodeState.STARTING)
        yield ("draining",), view.count(NodeState.DRAINING)


def _running(view: VersionView, _: Scene) -> Values:
    if view.condition is not Condition.ASLEEP:
        yield (), view.running


def _queued(view: VersionView, _: Scene) -> Values:
    if view.condition is not Condition.ASLEEP:
        yield (), view.queued


def _wakeups(view: VersionView, _: Scene) -> Values:
    # From 0 on, for else the first one would not be seen as a change.
    for result in ("ready", "failed"):
        yield (result,), view.wakeups.get(result, 0)


def _node_seconds(view: VersionView, _: Scene) -> Values:
    return _counted(view.node_seconds)


def _idle_node_seconds(view: VersionView, _: Scene) -> Values:
    return _counted(view.idle_node_seconds)


def _request_seconds(view: VersionView, _: Scene) -> Values:
    return _counted(view.request_seconds)


def _counted(value: float) -> Values:
    if value:
        yield (), value


def _memory(view: VersionView, scene: Scene) -> Values:
    return _kinds(scene.memory.get(view.uid))


def _refused(view: VersionView, scene: Scene) -> Values:
    for reason, count in scene.refused.get(view.uid, {}).items():
        yield (reason,), count


def _statuses(view: VersionView, scene: Scene) -> Values:
    if view.uid in scene.counts:
        for status, count in sorted(scene.counts[view.uid].statuses.items()):
            yield (str(status),), count


def _bytes_in(view: VersionView, scene: Scene) -> Values:
    if view.uid in scene.counts:
        yield (), scene.counts[view.uid].bytes_in


def _bytes_out(view: VersionView, scene: Scene) -> Values:
    if view.uid in scene.counts:
        yield (), scene.counts[view.uid].bytes_out


def _phases(scene: Scene) -> Iterator[tuple[tuple[str, ...], Histogram]]:
    for view in scene.versions:
        if view.uid in scene.counts:
            for phase, histogram in scene.counts[view.uid].phases:
                yield (*_labels(view.name), phase), histogram


def _calls(scene: Scene) -> Values:
    for (method, status), count in sorted(scene.calls.items()):
        yield (method, str(status)), count


def _spans(scene: Scene) -> Values:
    for result, count in scene.spans.items():
        yield (result,), count


def _lit(scene: Scene) -> Values:
    for pilot in scene.pilots:
        yield (pilot.key,), pilot.state is PilotState.LIT


def _pilot_memory(scene: Scene) -> Values:
    for pilot in scene.pilots:
        for kind, value in _kinds(scene.pilot_memory.get(pilot.key)):
            yield (pilot.key, *kind), value


def _jobs(scene: Scene) -> Values:
    found = Counter((record.project, str(record.job.state)) for record in scene.jobs)
    # From 0 on, so that an empty queue is told from a server that is gone.
    for project in {project for project, _ in found}:
        for state in JobState:
            yield (project, state.value), found[project, state.value]


def _job_records(scene: Scene) -> Values:
    sums: Counter[tuple[str, ...]] = Counter()
    for record in scene.jobs:
        output = record.job.prediction_output
        if output is not None and has_ended(record):
            sums[record.project, "predicted"] += int(output.prediction_count or 0)
            sums[record.project, "refused"] += int(output.error_count or 0)
    return sums.items()


def _kinds(memory: Memory | None) -> Values:
    if memory is not None:
        yield ("private",), memory.private
        yield ("proportional",), memory.proportional


# ---- the table; docs/metrics.md has it too

_VERSION = ("project", "model", "version")

COLD_START = Family(
    "pilotlight_cold_start_seconds",
    "histogram",
    (*_VERSION, "phase", "how"),
    "How long nodes took from being asked for to being ready, once for each node. The phases start (have a "
    "process), load (the model) and warm (first predictions) make up total. how=forked: from a pilot, which "
    "has the framework imported; cold: a new process.",
)

FAMILIES = (
    Family(
        "pilotlight_nodes_desired",
        "gauge",
        _VERSION,
        "Nodes the version should have, as last decided; `pilotlight why` tells the reason. 0: it may sleep.",
        _each(_desired),
    ),
    Family(
        "pilotlight_nodes",
        "gauge",
        (*_VERSION, "state"),
        "Node processes that are there: ready take requests, starting will, draining finish what they have "
        "and end. starting and draining are left out while there is no node.",
        _each(_nodes),
    ),
    Family(
        "pilotlight_requests_running",
        "gauge",
        _VERSION,
        "Requests inside nodes right now. Left out while the version sleeps.",
        _each(_running),
    ),
    Family(
        "pilotlight_requests_queued",
        "gauge",
        _VERSION,
        "Requests that wait for a node right now: during a wake-up, or because all nodes are full "
        "(node_concurrency). Left out while the version sleeps.",
        _each(_queued),
    ),
    Family(
        "pilotlight_predictions_total",
        "counter",
        (*_VERSION, "code"),
        "Answers to predictions, by HTTP status; 499: the client left before. Left out while there are none.",
        _each(_statuses),
    ),
    Family(
        "pilotlight_prediction_phase_seconds",
        "histogram",
        (*_VERSION, "phase"),
        "How long answered predictions took, from the last byte of the request to the answer of the node. "
        "total is made up of the others. queue: waited for a place in a node; start, load, warm: waited for "
        "a node to start; gateway: passed on; and in the node parse: read; wait: waited for the model; "
        "infer: computed; encode: written; what is left is the way to the node. queue, start, load and warm "
        "count only requests that waited for them.",
        histograms=_phases,
    ),
    Family(
        "pilotlight_prediction_request_bytes_total",
        "counter",
        _VERSION,
        "Bytes of the bodies of predictions that a node answered.",
        _each(_bytes_in),
    ),
    Family(
        "pilotlight_prediction_response_bytes_total",
        "counter",
        _VERSION,
        "Bytes of the bodies of those answers.",
        _each(_bytes_out),
    ),
    Family(
        "pilotlight_api_requests_total",
        "counter",
        ("method", "code"),
        "Answers to API calls by method and HTTP status, and to predictions that reached no version "
        "(projects.predict). Whatever is no method of the API is other.",
        _calls,
    ),
    Family(
        "pilotlight_trace_spans_total",
        "counter",
        ("result",),
        "Spans of OpenTelemetry traces: sent, failed (the collector did not take them), or dropped because "
        "too many waited. Left out where traces are off.",
        _spans,
    ),
    Family(
        "pilotlight_request_seconds_total",
        "counter",
        _VERSION,
        "Seconds that requests have waited and run, all together. Its rate is the number of requests at a "
        "time, averaged: what nodes are scaled by.",
        _each(_request_seconds),
    ),
    COLD_START,
    Family(
        "pilotlight_wakeups_total",
        "counter",
        (*_VERSION, "result"),
        "How often the version was woken from zero nodes: ready, a node came up; failed, none did after "
        "several tries.",
        _each(_wakeups),
    ),
    Family(
        "pilotlight_node_seconds_total",
        "counter",
        _VERSION,
        "Seconds that node processes have lived, all together: what the version costs. Its rate is the "
        "number of nodes, averaged.",
        _each(_node_seconds),
    ),
    Family(
        "pilotlight_idle_node_seconds_total",
        "counter",
        _VERSION,
        "The part of pilotlight_node_seconds_total in which nodes were ready and had no request. Its rate "
        "divided by that one's is the warm-idle share, the price of not waking up more often: "
        "idle_timeout sets it.",
        _each(_idle_node_seconds),
    ),
    Family(
        "pilotlight_node_memory_bytes",
        "gauge",
        (*_VERSION, "kind"),
        "Memory of the living nodes. private: their own pages, freed when they end. proportional (PSS): "
        "besides, their share of pages they have in common with others, as with the pilot they were forked "
        "from; sums of it count no page twice.",
        _each(_memory),
    ),
    Family(
        "pilotlight_refused_requests_total",
        "counter",
        (*_VERSION, "reason"),
        "Requests that were not served for want of a node. queue_full: too many waited; too_late: the next "
        "node would be ready later than the request can wait; start_failed: nodes cannot start; deleted: "
        "the version went meanwhile.",
        _each(_refused),
    ),
    Family(
        "pilotlight_pilot_lit",
        "gauge",
        ("pilot",),
        "1 if the pilot can fork nodes. While 0, nodes of its versions start cold.",
        _lit,
    ),
    Family(
        "pilotlight_pilot_memory_bytes",
        "gauge",
        ("pilot", "kind"),
        "Memory of the pilot and of the fork it keeps ready: what quick starts cost while all sleeps. "
        "Kinds as above.",
        _pilot_memory,
    ),
    Family(
        "pilotlight_jobs",
        "gauge",
        ("project", "state"),
        "Batch predictions by their state, those that have ended included. Left out for projects that never "
        "had one.",
        _jobs,
    ),
    Family(
        "pilotlight_job_records_total",
        "counter",
        ("project", "result"),
        "Records of batch predictions that have ended: predicted, or refused and named in the errors files. "
        "It goes on over restarts of the server.",
        _job_records,
    ),
)


# ---- scrapes


class Metrics:
    """Counts what happens, and tells what there is; `spans` counts those of traces, where there are any."""

    def __init__(
        self, overview: Overview, tallies: Tallies, spans: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        self._overview = overview
        self._tallies = tallies
        self._spans = spans
        self._starts: dict[str, prometheus_client.Histogram] = {}
        self._refused: dict[str, Counter[str]] = {}
        self._changes = 0
        self._rendered: tuple[object, bytes] = (None, b"")

    def node_changed(self, node: Node) -> None:
        """A pool's listener."""
        if node.state is NodeState.GONE:
            self._tallies.node_gone(node)
        if node.state is not NodeState.READY or node.ready_at is None:
            return
        starts = self._starts.setdefault(node.key, _histogram())
        how = FORKED if node.forked else COLD
        for phase, seconds in phases(node, node.ready_at):
            starts.labels(phase, how).observe(seconds)
        self._changes += 1

    def refused(self, key: str, error: NodeError) -> None:
        """A request was not served."""
        self._refused.setdefault(key, Counter())[_REFUSALS[type(error)]] += 1

    async def text(self) -> bytes:
        """All metrics, of the type CONTENT_TYPE. What takes long is done in a thread."""
        versions = self._overview.versions()
        self.forget_others({record.uid for record in self._overview.state.versions.values()})
        starts = [(view.name, self._starts[view.uid]) for view in versions if view.uid in self._starts]
        scene = Scene(
            versions=versions,
            pilots=self._overview.pilots(),
            refused={uid: dict(counts) for uid, counts in self._refused.items()},
            memory={},
            pilot_memory={},
            jobs=self._overview.state.jobs.values(),
            counts=dict(self._counts(versions)),
            calls=dict(self._tallies.calls),
            spans=self._spans(),
        )
        return await asyncio.to_thread(self._render, scene, starts, self._changes)

    def forget_others(self, uids: set[str]) -> None:
        """Only these versions are left."""
        self._starts = {uid: starts for uid, starts in self._starts.items() if uid in uids}
        self._refused = {uid: refused for uid, refused in self._refused.items() if uid in uids}
        self._tallies.forget_others(uids)

    def _counts(self, versions: Sequence[VersionView]) -> Iterator[tuple[str, Told]]:
        for view in versions:
            tally = self._tallies.find(view.uid)
            if tally is not None and tally.statuses:
                yield view.uid, tally.told(node.notes for node in view.nodes)

    def _render(
        self, scene: Scene, starts: Sequence[tuple[VersionName, prometheus_client.Histogram]], changes: int
    ) -> bytes:
        memory = {
            view.uid: memory_of(node.pid for node in view.nodes) for view in scene.versions if view.nodes
        }
        pilot_memory = {pilot.key: memory_of_pilot(pilot) for pilot in scene.pilots}
        scene = replace(scene, memory=_known(memory), pilot_memory=_known(pilot_memory))
        # Histograms are most of the text, and change only when a node starts.
        key = (changes, [name for name, _ in starts])
        if self._rendered[0] != key:
            self._rendered = key, _text(_relabelled(starts))
        return _text(_told(scene)) + self._rendered[1]


class CountedWaker:
    """Hands on to `waker`, and has refusals counted on the way."""

    def __init__(self, waker: Waker, metrics: Metrics) -> None:
        self._waker = waker
        self._metrics = metrics

    def wake(self, spec: NodeSpec) -> Outlook:
        """See `Waker`."""
        return self._waker.wake(spec)

    def refused(self, key: str, error: NodeError) -> None:
        """See `Waker`."""
        self._metrics.refused(key, error)
        self._waker.refused(key, error)


_LE = (*map(str, BOUNDS), "+Inf")

_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

_REFUSALS: Mapping[type[NodeError], str] = {
    QueueFullError: "queue_full",
    TooLateError: "too_late",
    StartFailedError: "start_failed",
    RetiredError: "deleted",
}


def phases(node: Node, ready_at: float) -> Iterator[tuple[str, float]]:
    """How long each phase of a node's start took, in seconds, and all of them together."""
    total = ready_at - node.asked_at
    load, warm = node.report.get("load_seconds", 0.0), node.report.get("warm_seconds", 0.0)
    yield "start", max(0.0, total - load - warm)
    yield "load", load
    yield "warm", warm
    yield "total", total


def _histogram() -> prometheus_client.Histogram:
    """That of one version: its name comes in when it is told."""
    labels = COLD_START.labels[len(_VERSION) :]
    return prometheus_client.Histogram(
        COLD_START.name, COLD_START.help, labels, buckets=_BUCKETS, registry=None
    )


def _known(found: Mapping[str, Memory | None]) -> dict[str, Memory]:
    return {key: memory for key, memory in found.items() if memory is not None}


def _told(scene: Scene) -> Iterator[Metric]:
    for family in FAMILIES:
        if family.histograms is not None:
            yield _histograms(family, family.histograms(scene))
        if family.values is None:
            continue
        kind = GaugeMetricFamily if family.kind == "gauge" else CounterMetricFamily
        metric = kind(family.name, family.help, labels=family.labels)
        for labels, value in family.values(scene):
            metric.add_metric(labels, value)
        yield metric


def _histograms(family: Family, found: Iterable[tuple[tuple[str, ...], Histogram]]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    for labels, histogram in found:
        sums = zip(_LE, itertools.accumulate(histogram.counts), strict=True)
        metric.add_metric(labels, list(sums), histogram.seconds)
    return metric


def _relabelled(starts: Sequence[tuple[VersionName, prometheus_client.Histogram]]) -> Iterator[Metric]:
    """The histograms of all versions as one."""
    told = Metric(COLD_START.name, COLD_START.help, COLD_START.kind)
    for name, histogram in starts:
        version = dict(zip(_VERSION, _labels(name), strict=True))
        for sample in next(iter(histogram.collect())).samples:
            if not sample.name.endswith("_created"):
                told.add_sample(sample.name, {**version, **sample.labels}, sample.value)
    yield told


class _Told(Collector):
    """A collector of metrics that are there already. There is no registry: nothing else registers here."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _text(metrics: Iterable[Metric]) -> bytes:
    return _RENDER(_Told(metrics))
