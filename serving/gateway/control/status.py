"""Snapshots of versions, nodes and pilots, and the memory of their processes."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.activator import Activator
from autoscaler.pools import MemoryUsage, NodePool, NodeState, PilotStatus
from autoscaler.scaling_loop import Autoscaler
from autoscaler.version_scaler import VersionScaler
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import VersionRecord
from serving.names import VersionName

FORKED, COLD = "forked", "cold"


class ReadinessState(enum.StrEnum):
    """FAILING: it is neither starting nor stopping, and cannot do its work."""

    READY = "ready"
    STARTING = "starting"
    STOPPING = "stopping"
    FAILING = "failing"


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the server should get requests, and why it should not."""

    state: ReadinessState = ReadinessState.READY
    reason: str = ""


class VersionCondition(enum.StrEnum):
    """AWAKE: a node is ready; ASLEEP: none is needed; WAKING: waits for one; FAILING: none can be started."""

    AWAKE = "awake"
    ASLEEP = "asleep"
    WAKING = "waking"
    FAILING = "failing"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """A node; `age` is in seconds since it was requested from the pool, `in_flight` counts its requests.

    `memory` is what it took when it was last measured, `counters` are those of `serving.latency_histograms`.
    """

    id: str
    pid: int | None
    state: NodeState
    forked: bool
    age: float
    in_flight: int
    memory: MemoryUsage | None
    counters: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSnapshot:
    """A version that the autoscaler tracks.

    `idle_seconds`: since its last request. `node_seconds`: the lifetimes of its nodes added up;
    `idle_node_seconds`: the part in which they were ready without a request. `request_seconds`: the times
    that its requests waited and ran, added up. `start_seconds`: how long a node takes to start, forked or
    cold, as far as measured. `wakeups` are counted by result; `hung_nodes` counts nodes killed because they
    hung. `exact` is that of `DeploymentInfo`.
    """

    name: VersionName
    uid: str
    exact: bool
    condition: VersionCondition
    desired: int
    running: int
    queued: int
    idle_seconds: float
    node_seconds: float
    idle_node_seconds: float
    request_seconds: float
    start_seconds: Mapping[str, float]
    wakeups: Mapping[str, int]
    hung_nodes: int
    reason: str
    nodes: tuple[NodeSnapshot, ...]

    def count_nodes(self, state: NodeState) -> int:
        return sum(node.state is state for node in self.nodes)

    @property
    def node_memory(self) -> int:
        """The bytes of its nodes' own pages, as far as they were measured."""
        return sum(node.memory.private for node in self.nodes if node.memory is not None)


class ServerScope(NamedTuple):
    """The server that a status tells of, where several share a database.

    `owners` are the servers that a version is placed on, none if it is on any.
    """

    server: str
    owners: Sequence[str]


class ServerStatus:
    """Reads the current state of versions, nodes and pilots of this server. `clock` is the autoscaler's.

    All methods but `measure_memory` are called on the event loop and take microseconds per version.
    """

    def __init__(
        self,
        read_state: Callable[[], CatalogState],
        activator: Activator,
        autoscaler: Autoscaler,
        pool: NodePool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_state = read_state
        self._activator = activator
        self._autoscaler = autoscaler
        self._pool = pool
        self._clock = clock

    @property
    def state(self) -> CatalogState:
        return self._read_state()

    @property
    def now(self) -> float:
        return self._clock()

    def get_tracked(self, record: VersionRecord) -> VersionScaler | None:
        """None if the autoscaler does not track the version."""
        return self._autoscaler.versions.get(record.uid)

    def is_asleep(self, record: VersionRecord) -> bool:
        """Whether a version that can be served has no node, and needs none."""
        tracked = self.get_tracked(record)
        return (
            tracked is not None
            and record.uid not in self._autoscaler.awake
            and not tracked.failures.permanent
        )

    def list_versions(self) -> list[VersionSnapshot]:
        """All versions that the autoscaler tracks, sorted by name."""
        snapshots = (self.get_version(record) for record in self.state.sorted_versions)
        return [snapshot for snapshot in snapshots if snapshot is not None]

    def get_version(self, record: VersionRecord) -> VersionSnapshot | None:
        """None if the autoscaler does not track the version: it cannot be served, or not yet."""
        tracked = self.get_tracked(record)
        if tracked is None:
            return None
        now = self._clock()
        nodes = self._pool.nodes(record.uid)
        queued = self._activator.count_waiting(record.uid)
        condition = _determine_condition(tracked, {node.state for node in nodes}, queued)
        starts = {FORKED: tracked.start_seconds(forked=True), COLD: tracked.start_seconds(forked=False)}
        return VersionSnapshot(
            name=record.name,
            uid=record.uid,
            exact=record.deployed is not None and record.deployed.exact,
            condition=condition,
            desired=tracked.desired,
            running=max(0, tracked.meter.level - queued),
            queued=queued,
            idle_seconds=0.0 if tracked.meter.level else max(0.0, now - tracked.idle_since(nodes)),
            node_seconds=tracked.node_seconds(nodes, now),
            idle_node_seconds=tracked.idle_node_seconds,
            request_seconds=tracked.meter.integral_at(now),
            start_seconds={how: seconds for how, seconds in starts.items() if seconds is not None},
            wakeups=dict(tracked.wakeups),
            hung_nodes=tracked.hung_nodes,
            reason=tracked.failures.reason if condition is VersionCondition.FAILING else tracked.reason,
            nodes=tuple(
                NodeSnapshot(
                    id=node.id,
                    pid=node.pid,
                    state=node.state,
                    forked=node.forked,
                    age=now - node.asked_at,
                    in_flight=node.in_flight,
                    memory=node.memory,
                    counters=node.read_counters(),
                )
                for node in nodes
            ),
        )

    def list_pilots(self) -> Sequence[PilotStatus]:
        """All pilots that should run, sorted by key."""
        return self._pool.list_pilots()

    def read_node_memory(self) -> int:
        """The bytes that all nodes took when they were last measured, of their own pages."""
        return sum(
            node.memory.private
            for uid in self._autoscaler.awake
            for node in self._pool.nodes(uid)
            if node.memory is not None
        )

    def read_free_memory(self) -> int:
        """The bytes that further nodes may take of the machine."""
        return self._pool.available_memory()

    def measure_memory(self, pids: Iterable[int]) -> MemoryUsage | None:
        """See `NodePool.measure_memory`: to be called in a thread."""
        return self._pool.measure_memory(pids)


def _determine_condition(tracked: VersionScaler, states: set[NodeState], queued: int) -> VersionCondition:
    if NodeState.READY in states:
        return VersionCondition.AWAKE
    if tracked.failures.permanent:
        return VersionCondition.FAILING
    if NodeState.STARTING in states or queued:
        return VersionCondition.WAKING
    return VersionCondition.ASLEEP
