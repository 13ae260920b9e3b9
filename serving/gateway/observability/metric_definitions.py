"""The definition of every metric: its name, labels and help, and how its values are read from a snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autoscaler.placement.server_load import ServerLoad
from autoscaler.pools import MemoryUsage, NodeState, PilotState, PilotStatus
from serving.gateway.control.status import VersionCondition, VersionSnapshot
from serving.gateway.observability.prediction_stats import StatsSnapshot
from serving.gateway.observability.request_log import LogCounts
from serving.gateway.state.record_indexes import JobIndex
from serving.gateway.state.study_records import StudySnapshot
from serving.names import StudyName, VersionName
from serving.resources import JobState

_COMPLETED = "COMPLETED"

Samples = Iterable[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True)
class SuggestionCounts:
    """Requests to the processes that suggest trials, by result; `seconds` that the answered ones took."""

    results: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class HopCounts:
    """Predictions passed on to other servers, by how that ended; `seconds` of the hops that were answered."""

    outcomes: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """How many servers are wanted, None where another server decides that.

    `errors` are calls of Kubernetes about it that failed, by their verb.
    """

    desired: int | None = None
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """All values of one scrape.

    `refused`, `counts` (of predictions) and `memory` (of living nodes) are by uid of the version,
    `pilot_memory` by key, `calls` by method and status, `spans` and `audit` by result, `errors` by the
    background loop or kind of task, `refused_connections` by reason.
    """

    versions: Sequence[VersionSnapshot]
    pilots: Sequence[PilotStatus]
    refused: Mapping[str, Mapping[str, int]]
    memory: Mapping[str, MemoryUsage]
    pilot_memory: Mapping[str, MemoryUsage]
    jobs: JobIndex
    studies: Mapping[StudyName, StudySnapshot]
    suggestions: SuggestionCounts
    server_load: ServerLoad
    hops: HopCounts
    server_counts: ServerCounts
    counts: Mapping[str, StatsSnapshot]
    calls: Mapping[tuple[str, int], int]
    spans: Mapping[str, int]
    logs: Sequence[LogCounts]
    audit: Mapping[str, int]
    errors: Mapping[str, int]
    refused_connections: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """A metric; `kind` is gauge, counter or histogram.

    `collect` returns label values and value of each sample; None for histograms, which are counted as they
    happen.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    collect: Callable[[MetricsSnapshot], Samples] | None = None


# ---- values


def _per_version(
    values: Callable[[VersionSnapshot, MetricsSnapshot], Samples],
) -> Callable[[MetricsSnapshot], Samples]:
    """Collects samples of every version; the version's labels come first."""

    def collect(snapshot: MetricsSnapshot) -> Samples:
        for version in snapshot.versions:
            labels = version_label_values(version.name)
            for more, value in values(version, snapshot):
                yield (*labels, *more), value

    return collect


def version_label_values(name: VersionName) -> tuple[str, str, str]:
    """The values of VERSION_LABELS."""
    return name.project, name.model, name.version


def _desired_nodes(version: VersionSnapshot, _: MetricsSnapshot) -> Samples:
    yield (), version.desired


# A server may have hundreds of versions without nodes: their samples that would be 0 are left out.


def _nodes_by_state(version: VersionSnapshot, _: MetricsSnapshot) -> Samples:
    yield ("ready",), version.count_nodes(NodeState.READY)
    if version.nodes:
        yield ("starting",), version.count_nodes(NodeState.STARTING)
        yield ("draining",), version.count_nodes(NodeState.DRAINING)


def _running_requests(version: VersionSnapshot, _: MetricsSnapshot) -> Samples:
    if version.condition is not VersionCondition.ASLEEP:
        yield (), version.running


def _queued_requests(version: VersionSnapshot, _: MetricsSnapshot) -> Samples:
    if version.condition is not VersionCondition.ASLEEP:
        yield (), version.queued


def _wakeups_by_result(version: VersionSnapshot, _: MetricsSnapshot) -> Samples:
    # Starting at 0: otherwise rates would miss the first wake-up.
    for result in ("ready", "failed"):
        yield (result,), version.wakeups.get(result, 0)


def _hung_nodes(version: VersionSnapshot, _: MetricsSnapshot) -> Samples:
    return _unless_zero(version.hung_nodes)


def _node_seconds(version: VersionSnapshot, _: MetricsSnapshot) -> Samples:
    return _unless_zero(version.node_seconds)


def _idle_node_seconds(version: VersionSnapshot, _: MetricsSnapshot) -> Samples:
    return _unless_zero(version.idle_node_seconds)


def _request_seconds(version: VersionSnapshot, _: MetricsSnapshot) -> Samples:
    return _unless_zero(version.request_seconds)


def _unless_zero(value: float) -> Samples:
    if value:
        yield (), value


def _node_memory(version: VersionSnapshot, snapshot: MetricsSnapshot) -> Samples:
    return _memory_kinds(snapshot.memory.get(version.uid))


def _refused_requests(version: VersionSnapshot, snapshot: MetricsSnapshot) -> Samples:
    for reason, count in snapshot.refused.get(version.uid, {}).items():
        yield (reason,), count


def _predictions_by_status(version: VersionSnapshot, snapshot: MetricsSnapshot) -> Samples:
    if version.uid in snapshot.counts:
        for status, count in sorted(snapshot.counts[version.uid].statuses.items()):
            yield (str(status),), count


def _limited_predictions(version: VersionSnapshot, snapshot: MetricsSnapshot) -> Samples:
    if version.uid in snapshot.counts:
        for setting, count in sorted(snapshot.counts[version.uid].limits.items()):
            yield (setting,), count


def _acceleration_comparisons(version: VersionSnapshot, snapshot: MetricsSnapshot) -> Samples:
    if version.uid in snapshot.counts and any(snapshot.counts[version.uid].compared):
        compared, different = snapshot.counts[version.uid].compared
        yield ("equal",), compared - different
        yield ("different",), different


def _bytes_in(version: VersionSnapshot, snapshot: MetricsSnapshot) -> Samples:
    if version.uid in snapshot.counts:
        yield (), snapshot.counts[version.uid].bytes_in


def _bytes_out(version: VersionSnapshot, snapshot: MetricsSnapshot) -> Samples:
    if version.uid in snapshot.counts:
        yield (), snapshot.counts[version.uid].bytes_out


def _api_requests(snapshot: MetricsSnapshot) -> Samples:
    for (method, status), count in sorted(snapshot.calls.items()):
        yield (method, str(status)), count


def _trace_spans(snapshot: MetricsSnapshot) -> Samples:
    for result, count in snapshot.spans.items():
        yield (result,), count


def _log_records(snapshot: MetricsSnapshot) -> Samples:
    for logged in snapshot.logs:
        counts = logged.counts
        for result in ("sampled", "sent", "dropped"):
            yield (logged.kind.value, logged.address, result), getattr(counts, result)


def _log_records_waiting(snapshot: MetricsSnapshot) -> Samples:
    for logged in snapshot.logs:
        yield (logged.kind.value, logged.address), logged.counts.waiting


def _audit_lines(snapshot: MetricsSnapshot) -> Samples:
    for result in ("written", "dropped"):
        if result in snapshot.audit:
            yield (result,), snapshot.audit[result]


def _audit_lines_waiting(snapshot: MetricsSnapshot) -> Samples:
    if "waiting" in snapshot.audit:
        yield (), snapshot.audit["waiting"]


def _background_errors(snapshot: MetricsSnapshot) -> Samples:
    for task, count in sorted(snapshot.errors.items()):
        yield (task,), count


def _refused_connections(snapshot: MetricsSnapshot) -> Samples:
    for reason, count in sorted(snapshot.refused_connections.items()):
        yield (reason,), count


def _pilots_ready(snapshot: MetricsSnapshot) -> Samples:
    for pilot in snapshot.pilots:
        yield (pilot.key,), pilot.state is PilotState.READY


def _pilot_memory(snapshot: MetricsSnapshot) -> Samples:
    for pilot in snapshot.pilots:
        for kind, value in _memory_kinds(snapshot.pilot_memory.get(pilot.key)):
            yield (pilot.key, *kind), value


def _jobs_by_state(snapshot: MetricsSnapshot) -> Samples:
    found = snapshot.jobs.states
    # Starting at 0: an empty queue is not a server that is gone.
    for project in {project for project, _ in found}:
        for state in JobState:
            yield (project, state.value), found.get((project, state.value), 0)


def _job_records(snapshot: MetricsSnapshot) -> Samples:
    return snapshot.jobs.records.items()


def _trials_by_state(snapshot: MetricsSnapshot) -> Samples:
    found: Counter[tuple[str, str]] = Counter()
    for name, study in snapshot.studies.items():
        found[name.project, _COMPLETED] += len(study.packed_trials)
        found.update((name.project, str(trial.state)) for trial in study.open_trials.values())
    return found.items()


def _suggestions_by_result(snapshot: MetricsSnapshot) -> Samples:
    return (((result,), count) for result, count in snapshot.suggestions.results.items())


def _suggestion_seconds(snapshot: MetricsSnapshot) -> Samples:
    return _unless_zero(snapshot.suggestions.seconds)


def _hops_by_outcome(snapshot: MetricsSnapshot) -> Samples:
    return (((outcome,), count) for outcome, count in sorted(snapshot.hops.outcomes.items()))


def _hop_seconds(snapshot: MetricsSnapshot) -> Samples:
    return _unless_zero(snapshot.hops.seconds)


def _server_load(snapshot: MetricsSnapshot) -> Samples:
    yield (), snapshot.server_load.highest


def _server_resource_load(snapshot: MetricsSnapshot) -> Samples:
    yield ("memory",), snapshot.server_load.memory
    yield ("processors",), snapshot.server_load.processors


def _desired_servers(snapshot: MetricsSnapshot) -> Samples:
    if snapshot.server_counts.desired is not None:
        yield (), snapshot.server_counts.desired


def _server_scaling_errors(snapshot: MetricsSnapshot) -> Samples:
    return (((verb,), count) for verb, count in sorted(snapshot.server_counts.errors.items()))


def _memory_kinds(memory: MemoryUsage | None) -> Samples:
    if memory is not None:
        yield ("private",), memory.private
        yield ("proportional",), memory.proportional


# ---- the table; keep docs/metrics.md in step

VERSION_LABELS = ("project", "model", "version")

COLD_START = MetricDefinition(
    "pilotlight_cold_start_seconds",
    "histogram",
    (*VERSION_LABELS, "phase", "how"),
    "How long nodes took from being asked for to being ready, once for each node. The phases start (have a "
    "process), load (the model) and warm (first predictions) make up total. how=forked: from a pilot, which "
    "has the framework imported; cold: a new process.",
)

PHASES = MetricDefinition(
    "pilotlight_prediction_phase_seconds",
    "histogram",
    (*VERSION_LABELS, "phase"),
    "How long answered predictions took, from the last byte of the request to the answer of the node. "
    "total is made up of the others. queue: waited for a place in a node; start, load, warm: waited for "
    "a node to start; gateway: passed on; and in the node parse: read; wait: waited for the model; "
    "infer: computed; encode: written; what is left is the way to the node. queue, start, load and warm "
    "count only requests that waited for them.",
)

METRIC_DEFINITIONS = (
    MetricDefinition(
        "pilotlight_nodes_desired",
        "gauge",
        VERSION_LABELS,
        "Nodes the version should have, as last decided; `pilotlight why` tells the reason. 0: it may sleep.",
        _per_version(_desired_nodes),
    ),
    MetricDefinition(
        "pilotlight_nodes",
        "gauge",
        (*VERSION_LABELS, "state"),
        "Node processes that are there: ready take requests, starting will, draining finish what they have "
        "and end. starting and draining are left out while there is no node.",
        _per_version(_nodes_by_state),
    ),
    MetricDefinition(
        "pilotlight_requests_running",
        "gauge",
        VERSION_LABELS,
        "Requests inside nodes right now. Left out while the version sleeps.",
        _per_version(_running_requests),
    ),
    MetricDefinition(
        "pilotlight_requests_queued",
        "gauge",
        VERSION_LABELS,
        "Requests that wait for a node right now: during a wake-up, or because all nodes are full "
        "(node_concurrency). Left out while the version sleeps.",
        _per_version(_queued_requests),
    ),
    MetricDefinition(
        "pilotlight_predictions_total",
        "counter",
        (*VERSION_LABELS, "code"),
        "Answers to predictions, by HTTP status; 499: the client left before. Left out while there are none.",
        _per_version(_predictions_by_status),
    ),
    MetricDefinition(
        "pilotlight_limited_predictions_total",
        "counter",
        (*VERSION_LABELS, "setting"),
        "Predictions rejected with 429 by a rate or concurrency limit, by the setting that was exceeded. "
        "Left out while there are none.",
        _per_version(_limited_predictions),
    ),
    MetricDefinition(
        "pilotlight_acceleration_comparisons_total",
        "counter",
        (*VERSION_LABELS, "result"),
        "Accelerated predictions that were compared with the library's own. different: the version has used "
        "the library since. Left out while there are none.",
        _per_version(_acceleration_comparisons),
    ),
    PHASES,
    MetricDefinition(
        "pilotlight_prediction_request_bytes_total",
        "counter",
        VERSION_LABELS,
        "Bytes of the bodies of predictions that a node answered.",
        _per_version(_bytes_in),
    ),
    MetricDefinition(
        "pilotlight_prediction_response_bytes_total",
        "counter",
        VERSION_LABELS,
        "Bytes of the bodies of those answers.",
        _per_version(_bytes_out),
    ),
    MetricDefinition(
        "pilotlight_api_requests_total",
        "counter",
        ("method", "code"),
        "Answers to API calls by method and HTTP status, and to predictions that reached no version "
        "(projects.predict, or the method of another protocol). Whatever is no method of the API is other.",
        _api_requests,
    ),
    MetricDefinition(
        "pilotlight_log_records_total",
        "counter",
        ("kind", "destination", "result"),
        "Records of requests, access and console logs: sampled are all that were to be logged; sent were "
        "taken by their destination, dropped never will be, and the rest waits. It goes on over restarts of "
        "the server.",
        _log_records,
    ),
    MetricDefinition(
        "pilotlight_log_records_waiting",
        "gauge",
        ("kind", "destination"),
        "Log records that are on disk, or about to be, and not yet delivered.",
        _log_records_waiting,
    ),
    MetricDefinition(
        "pilotlight_audit_lines_total",
        "counter",
        ("result",),
        "Lines of the audit log: written, or dropped because the disk did not take them.",
        _audit_lines,
    ),
    MetricDefinition(
        "pilotlight_audit_lines_waiting",
        "gauge",
        (),
        "Lines of the audit log that are about to be written.",
        _audit_lines_waiting,
    ),
    MetricDefinition(
        "pilotlight_background_errors_total",
        "counter",
        ("task",),
        "Errors in what the server does in the background, by the loop or the kind of task. It goes on "
        "nevertheless; /readyz names loops that do not get over theirs.",
        _background_errors,
    ),
    MetricDefinition(
        "pilotlight_refused_connections_total",
        "counter",
        ("reason",),
        "Connections that were closed and requests that were refused before they were looked at, over HTTP "
        "and gRPC: by the setting that was not kept to, or cross_origin for those of web pages.",
        _refused_connections,
    ),
    MetricDefinition(
        "pilotlight_trace_spans_total",
        "counter",
        ("result",),
        "Spans of OpenTelemetry traces: sent, failed (the collector did not take them), or dropped because "
        "too many waited. Left out where traces are off.",
        _trace_spans,
    ),
    MetricDefinition(
        "pilotlight_request_seconds_total",
        "counter",
        VERSION_LABELS,
        "Seconds that requests have waited and run, all together. Its rate is the number of requests at a "
        "time, averaged: what nodes are scaled by.",
        _per_version(_request_seconds),
    ),
    COLD_START,
    MetricDefinition(
        "pilotlight_wakeups_total",
        "counter",
        (*VERSION_LABELS, "result"),
        "How often the version was woken from zero nodes: ready, a node came up; failed, none did after "
        "several tries.",
        _per_version(_wakeups_by_result),
    ),
    MetricDefinition(
        "pilotlight_hung_nodes_total",
        "counter",
        VERSION_LABELS,
        "Nodes that were killed because they hung: one call of the model took longer than call_timeout, or "
        "the process did not react. `pilotlight why` tells which. Left out while there are none.",
        _per_version(_hung_nodes),
    ),
    MetricDefinition(
        "pilotlight_node_seconds_total",
        "counter",
        VERSION_LABELS,
        "Seconds that node processes have lived, all together: what the version costs. Its rate is the "
        "number of nodes, averaged.",
        _per_version(_node_seconds),
    ),
    MetricDefinition(
        "pilotlight_idle_node_seconds_total",
        "counter",
        VERSION_LABELS,
        "The part of pilotlight_node_seconds_total in which nodes were ready and had no request. Its rate "
        "divided by that one's is the warm-idle share, the price of not waking up more often: "
        "idle_timeout sets it.",
        _per_version(_idle_node_seconds),
    ),
    MetricDefinition(
        "pilotlight_node_memory_bytes",
        "gauge",
        (*VERSION_LABELS, "kind"),
        "Memory of the living nodes. private: their own pages, freed when they end. proportional (PSS): "
        "besides, their share of pages they have in common with others, as with the pilot they were forked "
        "from; sums of it count no page twice.",
        _per_version(_node_memory),
    ),
    MetricDefinition(
        "pilotlight_refused_requests_total",
        "counter",
        (*VERSION_LABELS, "reason"),
        "Requests that were not served for want of a node. queue_full: too many waited; too_late: the next "
        "node would be ready later than the request can wait; start_failed: nodes cannot start; deleted: "
        "the version went meanwhile.",
        _per_version(_refused_requests),
    ),
    MetricDefinition(
        "pilotlight_pilot_lit",
        "gauge",
        ("pilot",),
        "1 if the pilot can fork nodes. While 0, nodes of its versions start cold.",
        _pilots_ready,
    ),
    MetricDefinition(
        "pilotlight_pilot_memory_bytes",
        "gauge",
        ("pilot", "kind"),
        "Memory of the pilot and of the fork it keeps ready: what quick starts cost while all sleeps. "
        "Kinds as above.",
        _pilot_memory,
    ),
    MetricDefinition(
        "pilotlight_jobs",
        "gauge",
        ("project", "state"),
        "Batch predictions by their state, those that have ended included as long as they are kept. Left out "
        "for projects that have none.",
        _jobs_by_state,
    ),
    MetricDefinition(
        "pilotlight_job_records_total",
        "counter",
        ("project", "result"),
        "Records of batch predictions that have ended: predicted, or refused and named in the errors files. "
        "A restart of the server goes on from the jobs that are kept.",
        _job_records,
    ),
    MetricDefinition(
        "pilotlight_trials",
        "gauge",
        ("project", "state"),
        "Trials of studies by their state. Left out for projects that have no studies.",
        _trials_by_state,
    ),
    MetricDefinition(
        "pilotlight_suggestions_total",
        "counter",
        ("result",),
        "Requests to the processes that suggest trials: answered, or failed, an error that clients saw.",
        _suggestions_by_result,
    ),
    MetricDefinition(
        "pilotlight_suggestion_seconds_total",
        "counter",
        (),
        "Seconds that the answered ones took, waiting and the start of a process included. Divided by their "
        "number it is the mean time of a suggestion.",
        _suggestion_seconds,
    ),
    MetricDefinition(
        "pilotlight_hops_total",
        "counter",
        ("outcome",),
        "Predictions that this server passed on to the owner of their version: answered there; declined, and "
        "answered here; lost with the connection; expired; cancelled by their client; dropped, for too many "
        "bytes of answers. Predictions themselves are counted by the server that answered.",
        _hops_by_outcome,
    ),
    MetricDefinition(
        "pilotlight_hop_seconds_total",
        "counter",
        (),
        "Seconds that the answered ones took on their way, without the time of the other server. Divided by "
        "their number it is the mean cost of a hop.",
        _hop_seconds,
    ),
    MetricDefinition(
        "pilotlight_server_load",
        "gauge",
        (),
        "The share of this server that its nodes need, of memory or of processors, whichever is more. Over "
        "1: they want more than there is. The sum over all servers, divided by the load that each should "
        "have, is how many servers there should be.",
        _server_load,
    ),
    MetricDefinition(
        "pilotlight_server_resource_load",
        "gauge",
        ("resource",),
        "The same by resource. memory: of nodes that are in use, or wanted and without room. processors: "
        "threads of nodes that compute or wait for a processor, averaged over a minute.",
        _server_resource_load,
    ),
    MetricDefinition(
        "pilotlight_servers_desired",
        "gauge",
        (),
        "Servers that there should be for the loads of all, within min_servers and max_servers. Only the "
        "server that does the work of all has it.",
        _desired_servers,
    ),
    MetricDefinition(
        "pilotlight_server_scaling_errors_total",
        "counter",
        ("verb",),
        "Calls of Kubernetes that failed by which the number of pods is read (get) and set (patch). It stays "
        "as it is then.",
        _server_scaling_errors,
    ),
)
