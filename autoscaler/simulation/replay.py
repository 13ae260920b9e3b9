"""Replays traces: the loop of `autoscaler.scaling_loop` with simulated versions and a virtual clock."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from autoscaler.decision import Capacity, Decision, Grant, ScalingSpec, allocate_nodes, decide_node_count
from autoscaler.simulation.result import SimulationConditions, SimulationResult, wait_percentile
from autoscaler.simulation.simulated_nodes import ReplayStats, SimulatedNode, compute_drain_end
from autoscaler.simulation.simulated_version import SimulatedVersion
from autoscaler.simulation.traces import TrafficTrace

ProgressCallback = Callable[[float], None]

# So much longer than its traces, in seconds, a replay goes on at most until all nodes are gone.
_LONGEST_TAIL = 24 * 3600.0
# More than any nodes can take, in bytes.
_UNLIMITED_BYTES = 1 << 62


def simulate_traces(
    traces: Sequence[TrafficTrace],
    policy: ScalingSpec,
    conditions: SimulationConditions,
    progress: ProgressCallback = lambda _: None,
) -> SimulationResult:
    """Replay traces, one per version and with keys of their own, all scaled by the same policy.

    Deterministic but for `policy_seconds`. `progress` gets the replayed part of the traces, often.
    """
    return _Replay(traces, policy, conditions).run(progress)


class _Replay:
    """As in the real loop, a version is decided for when a request wakes it, and then once a tick."""

    def __init__(
        self, traces: Sequence[TrafficTrace], policy: ScalingSpec, conditions: SimulationConditions
    ) -> None:
        self._policy = policy
        self._conditions = conditions
        self._length = max((trace.length for trace in traces), default=0.0)
        self._stats = ReplayStats()
        self._decisions = 0
        self._policy_nanoseconds = 0
        starts = itertools.cycle(conditions.start_seconds)
        self._versions = {
            trace.key: SimulatedVersion(trace, policy, conditions, starts, self._stats) for trace in traces
        }
        self._awake: dict[str, SimulatedVersion] = {}
        # (when, order, version): its next request wakes a version. None: memory comes free.
        self._alarms: list[tuple[float, int, SimulatedVersion | None]] = []
        self._order = itertools.count()

    def run(self, progress: ProgressCallback) -> SimulationResult:
        now, next_tick = 0.0, self._conditions.tick
        for version in self._versions.values():
            self._sleep_if_idle(version)
        self._reconcile(list(self._awake.values()), now)
        while self._awake or self._alarms:
            if self._awake and (not self._alarms or next_tick <= self._alarms[0][0]):
                now = next_tick
                self._reconcile(list(self._awake.values()), now)
                if self._is_over(now):
                    break
            else:
                was_asleep = not self._awake
                now = self._advance_to_alarm()
                if not was_asleep:
                    continue
            next_tick = now + self._conditions.tick
            progress(min(now / self._length, 1.0) if self._length else 1.0)
        return self._build_result(now)

    def _is_over(self, now: float) -> bool:
        """Whether nothing more will happen within the tail."""
        if now < self._length:
            return False
        return now > self._length + _LONGEST_TAIL or (
            not self._alarms and all(version.is_settled for version in self._awake.values())
        )

    def _advance_to_alarm(self) -> float:
        """Come to the next alarm, and look at those whom it concerns."""
        now, _, version = heapq.heappop(self._alarms)
        if version is not None:
            self._awake[version.key] = version
        self._reconcile([version] if version else [one for one in self._awake.values() if one.short], now)
        return now

    # ---- looking, deciding, acting

    def _reconcile(self, versions: Sequence[SimulatedVersion], now: float) -> None:
        for version in self._awake.values():
            version.advance(now)
        began = time.perf_counter_ns()
        decisions = {version.key: self._decide_version(version, now) for version in versions}
        grants = self._grant_nodes(decisions)
        self._policy_nanoseconds += time.perf_counter_ns() - began
        self._decisions += len(decisions)
        for key, grant in grants.items():
            self._apply_grant(self._versions[key], decisions.get(key), grant, now)

    def _decide_version(self, version: SimulatedVersion, now: float) -> Decision:
        decision = decide_node_count(self._policy, version.observe(now), version.state, now)
        version.state = decision.state
        return decision

    def _grant_nodes(self, decisions: Mapping[str, Decision]) -> Mapping[str, Grant]:
        """What can be had of what is wanted; memory is looked at only when somebody wants to grow."""
        demands = [self._versions[key].build_demand(decision.nodes) for key, decision in decisions.items()]
        if all(demand.wanted <= demand.nodes for demand in demands):
            return {demand.key: Grant(nodes=demand.wanted) for demand in demands}
        others = [
            version.build_demand(version.fleet.count)
            for key, version in self._awake.items()
            if key not in decisions
        ]
        return allocate_nodes([*demands, *others], self._compute_capacity())

    def _compute_capacity(self) -> Capacity:
        memory, each = self._conditions.memory_bytes, self._conditions.node_bytes
        if memory is None:
            return Capacity(free=_UNLIMITED_BYTES)
        draining = sum(len(version.fleet.draining) for version in self._awake.values())
        return Capacity(free=max(0, memory - self._stats.nodes * each), returning=draining * each)

    def _apply_grant(
        self, version: SimulatedVersion, decision: Decision | None, grant: Grant, now: float
    ) -> None:
        if decision is not None:
            version.short = grant.nodes < decision.nodes
        if grant.nodes != version.fleet.count:
            gone = version.scale(grant.nodes, now)
            self._schedule_memory_release(gone, now)
        self._sleep_if_idle(version)

    def _schedule_memory_release(self, leaving: Iterable[SimulatedNode], now: float) -> None:
        """See to it that those who lack memory are looked at when these nodes have given theirs back."""
        if self._conditions.memory_bytes is not None:
            for node in leaving:
                end = compute_drain_end(node, self._conditions.service_seconds) if node.inside else now
                self._set_alarm(end, None)

    def _sleep_if_idle(self, version: SimulatedVersion) -> None:
        """A version sleeps until its next request if it has nothing; else it is looked at each tick."""
        if not version.is_asleep:
            self._awake[version.key] = version
            return
        self._awake.pop(version.key, None)
        if version.next_arrival < math.inf:
            self._set_alarm(version.next_arrival, version)

    def _set_alarm(self, when: float, version: SimulatedVersion | None) -> None:
        heapq.heappush(self._alarms, (when, next(self._order), version))

    def _build_result(self, now: float) -> SimulationResult:
        for version in self._versions.values():
            version.end_replay(now)
        stats, conditions = self._stats, self._conditions
        waits = sorted(stats.waits)
        instant = stats.computed - len(waits)
        computing = stats.computed * conditions.service_seconds
        idle = max(0.0, stats.ready_seconds - computing)
        return SimulationResult(
            versions=len(self._versions),
            seconds=now,
            requests=stats.requests,
            answered=stats.answered,
            refused=stats.refused,
            timed_out=stats.timed_out,
            cold_starts=stats.cold_starts,
            held=stats.held,
            wait_p50=wait_percentile(waits, instant, 0.5),
            wait_p99=wait_percentile(waits, instant, 0.99),
            wait_max=wait_percentile(waits, instant, 1.0),
            nodes_started=stats.nodes_started,
            most_nodes=stats.most_nodes,
            node_seconds=stats.node_seconds,
            idle_share=idle / stats.node_seconds if stats.node_seconds else 0.0,
            looks=self._decisions,
            policy_seconds=self._policy_nanoseconds / 1e9,
        )
