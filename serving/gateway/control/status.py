"""What there is at this moment, in copies that no later change touches: versions, nodes, pilots, memory."""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoscaler import machine
from autoscaler.activator import Activator
from autoscaler.pools import MemoryUsage, NodeState
from autoscaler.pools.local_pool import LocalPool
from autoscaler.pools.pilot_manager import PilotStatus
from autoscaler.scaling_loop import Autoscaler
from autoscaler.version_scaler import VersionScaler
from serving.gateway.state.records import CatalogState, VersionRecord
from serving.names import VersionName

FORKED, COLD = "forked", "cold"


class VersionCondition(enum.StrEnum):
    """How a version is: has a ready node, has none and needs none, waits for one, or waits in vain."""

    AWAKE = "awake"
    ASLEEP = "asleep"
    WAKING = "waking"
    FAILING = "failing"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """A node; `age` is in seconds since it was asked for, `in_flight` the requests inside.

    `notes` is what it has counted; see `serving.latency_histograms`.
    """

    id: str
    pid: int | None
    state: NodeState
    forked: bool
    age: float
    in_flight: int
    notes: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSnapshot:
    """A version that is scaled. All times are in seconds.

    `idle_seconds` is how long nothing has happened, `node_seconds` how long its nodes have lived, together,
    and `idle_node_seconds` how much of that they were ready with nothing to do. `request_seconds` is how
    long its requests have waited and run, together. `start_seconds` is what a node takes to start, by how:
    what was never measured is missing. `wakeups` are counted by how they ended,
    `hung_nodes` were killed because they hung. `exact` is that of Deployed.
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
        """How many nodes are in a state."""
        return sum(node.state is state for node in self.nodes)


class ClusterStatus:
    """Looks at the parts that know. `read` tells the catalog's state; `clock` is the autoscaler's.

    All methods are called on the event loop and take microseconds per version.
    """

    def __init__(
        self,
        read_state: Callable[[], CatalogState],
        activator: Activator,
        autoscaler: Autoscaler,
        pool: LocalPool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_state = read_state
        self._activator = activator
        self._autoscaler = autoscaler
        self._pool = pool
        self._clock = clock

    @property
    def state(self) -> CatalogState:
        """The catalog's."""
        return self._read_state()

    @property
    def now(self) -> float:
        """The time on the autoscaler's clock."""
        return self._clock()

    def get_tracked(self, record: VersionRecord) -> VersionScaler | None:
        """What the autoscaler keeps of a version; None if it is not scaled."""
        return self._autoscaler.versions.get(record.uid)

    def list_versions(self) -> list[VersionSnapshot]:
        """All that are scaled, by name."""
        views = (self.get_version(record) for record in self.state.versions_by_name())
        return [view for view in views if view is not None]

    def get_version(self, record: VersionRecord) -> VersionSnapshot | None:
        """One version; None if it is not scaled: it cannot be served, or not yet."""
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
            idle_node_seconds=tracked.idle_seconds,
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
                    notes=bytes(node.counters),
                )
                for node in nodes
            ),
        )

    def list_pilots(self) -> Sequence[PilotStatus]:
        """All that are to be lit, by key."""
        return self._pool.list_pilots()


def _determine_condition(tracked: VersionScaler, states: set[NodeState], queued: int) -> VersionCondition:
    if NodeState.READY in states:
        return VersionCondition.AWAKE
    if tracked.failures.permanent:
        return VersionCondition.FAILING
    if NodeState.STARTING in states or queued:
        return VersionCondition.WAKING
    return VersionCondition.ASLEEP


# ---- memory: to be called in a thread, for it takes milliseconds per big process


def measure_memory(pids: Iterable[int | None]) -> MemoryUsage | None:
    """What processes take together; None if nothing is known of any of them, because they are gone."""
    found = [memory for pid in pids if pid is not None and (memory := _measure_process(pid)) is not None]
    if not found:
        return None
    return MemoryUsage(
        private=sum(memory.private for memory in found),
        proportional=sum(memory.proportional for memory in found),
    )


def measure_pilot_memory(pilot: PilotStatus) -> MemoryUsage | None:
    """What a pilot takes together with the fork of it that waits to become a node."""
    return measure_memory((pilot.pid, pilot.spare))


def measure_gateway_memory() -> MemoryUsage | None:
    """What this process takes."""
    return measure_memory((os.getpid(),))


def _measure_process(pid: int) -> MemoryUsage | None:
    try:
        return machine.measure_memory(pid)
    except ProcessLookupError:
        return None
