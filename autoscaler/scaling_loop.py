"""The autoscaler: observes each version, decides how many nodes it should have, and has the pool scale it.

The decisions are made in `decision.py`. Versions that sleep cost nothing: only those that have nodes,
requests or a lower bound take part in a tick.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoscaler.activator import Activator, StartEstimate
from autoscaler.decision import (
    RESERVE,
    Capacity,
    Decision,
    Demand,
    Grant,
    ScalingSpec,
    allocate_nodes,
    decide_node_count,
)
from autoscaler.errors import NodeError, StartFailedError, is_shortage
from autoscaler.pools import Node, NodePool, NodeSpec, NodeState
from autoscaler.supervision import BackgroundLoop, Supervisor
from autoscaler.version_scaler import ScalingEventListener, VersionScaler, ignore_event

logger = logging.getLogger(__name__)

# Seconds without a decision after which the autoscaler is in trouble.
_TICK_DEADLINE = 10.0
# The name of the trouble that keeps nodes of all versions from starting.
_STARTS_TROUBLE = "starts of nodes"


BeforeStart = Callable[[str], Awaitable[None]]
"""Is called with the key of a version."""


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """Bytes of nodes that must not be stopped, of those that are wanted and have no room, and of all."""

    needed: int
    missing: int
    total: int


class Autoscaler:
    """Decides from `start` on; one per gateway. Every method is called on the event loop.

    `tick` is the time between two rounds in seconds. Nodes may take `memory_bytes` in all (0: what the pool
    has free). `on_trouble` is called with a version's key and why its nodes cannot be started, "" once one
    could, `on_event` with each decision and failure of any version. `before_start` is awaited before nodes of
    a version are started, while requests wait for them; it raises StartFailedError, and may change what
    `track_version` was called with.
    """

    def __init__(
        self,
        activator: Activator,
        pool: NodePool,
        *,
        tick: float,
        memory_bytes: int,
        on_trouble: Callable[[str, str], None],
        supervisor: Supervisor,
        clock: Callable[[], float] = time.monotonic,
        on_event: ScalingEventListener = ignore_event,
        before_start: BeforeStart | None = None,
    ) -> None:
        self._activator = activator
        self._pool = pool
        self._tick = tick
        self._memory_bytes = memory_bytes
        self._on_trouble = on_trouble
        self._supervisor = supervisor
        self._clock = clock
        self._on_event = on_event
        self._before_start = before_start
        self._started = self._last_tick_at = clock()
        self._versions: dict[str, VersionScaler] = {}
        self._awake: dict[str, None] = {}  # a set in the order of waking
        self._recently_active: set[str] = set()
        self._scaling: dict[str, asyncio.Task[None]] = {}
        self._postponed: set[str] = set()
        self._activity = asyncio.Event()

    # ---- versions

    def track_version(
        self, spec: NodeSpec, scaling: ScalingSpec, *, memory: int, start_seconds: float | None
    ) -> None:
        """Scale a version from now on, or by other rules than before.

        `memory` is what a node of it takes, in bytes, and `start_seconds` how long one takes to start, as far
        as is known.
        """
        scaler = self._versions.get(spec.key)
        if scaler is None:
            meter = self._activator.meter_of(spec)
            scaler = VersionScaler(
                spec, scaling, meter, self._started, memory=memory, on_event=self._on_event
            )
            if start_seconds is not None:
                scaler.starts.append((True, start_seconds))
            self._versions[spec.key] = scaler
        scaler.spec, scaler.scaling = spec, scaling
        if scaler.floor or self._pool.nodes(spec.key):
            self._mark_awake(spec.key)

    async def stop_version(self, key: str) -> None:
        """Drain a version's nodes; requests that wait for one fail, requests inside nodes finish."""
        self._activator.retire_version(key)
        scaler = self._versions.pop(key, None)
        self._awake.pop(key, None)
        if key in self._scaling:
            await asyncio.wait([self._scaling[key]])
        nodes = self._pool.nodes(key)
        if scaler is not None:
            await self._pool.scale(scaler.spec, 0)
        for node in nodes:
            await node.gone.wait()

    def pop_recently_active(self) -> set[str]:
        """The versions that may have been used since the last call: all others slept."""
        found, self._recently_active = self._recently_active, set(self._awake)
        return found

    @property
    def awake(self) -> Collection[str]:
        """The versions that have nodes or requests, or are about to."""
        return self._awake.keys()

    @property
    def versions(self) -> Mapping[str, VersionScaler]:
        return self._versions

    # ---- events

    def wake(self, spec: NodeSpec) -> StartEstimate:
        """Implements `Waker`."""
        now = self._clock()
        scaler = self._versions.get(spec.key)
        if scaler is None:
            raise StartFailedError("The version is not served.")
        self._recently_active.add(spec.key)
        failures, nodes = scaler.failures, _live_nodes(self._pool.nodes(spec.key))
        if failures.permanent and failures.is_blocked(now) and not nodes:
            raise StartFailedError(failures.reason, failures.retry_delay(now))
        self._mark_awake(spec.key)
        scaler.wake_requested = True  # even if the request is refused at once: the next one comes
        if spec.key in self._scaling:
            self._postponed.add(spec.key)
        elif not nodes and not scaler.shortage_reason and not failures.is_blocked(now):
            # In this iteration of the event loop, for the shortest wake-up. Where nothing can be started, not
            # for each of a thousand requests: the next tick tries again.
            self.reconcile(spec.key)
        return scaler.estimate_start(nodes, self._pool.can_fork(spec), now)

    def on_refused(self, key: str, error: NodeError) -> None:
        """Implements `Waker`."""
        scaler = self._versions.get(key)
        if scaler is not None:
            scaler.record_refusal(f"{type(error).__name__}: {error}")

    def on_node_changed(self, node: Node) -> None:
        """Implements `NodeListener`; to be called after the activator."""
        scaler = self._versions.get(node.key)
        if node.state is NodeState.READY and scaler is not None:
            scaler.record_ready(node)
            self._supervisor.clear_trouble(_STARTS_TROUBLE)
            self._on_trouble(node.key, "")
        elif node.state is NodeState.GONE:
            if scaler is not None:
                self._on_node_gone(scaler, node, self._clock())
            # Another version may wait for its memory, also when its own version was deleted.
            asyncio.get_running_loop().call_soon(self.reconcile, node.key)

    def _on_node_gone(self, scaler: VersionScaler, node: Node, now: float) -> None:
        scaler.record_end(node, now)
        if node.crashed:
            if node.starved:
                self._supervisor.report_trouble(_STARTS_TROUBLE, f"No node can be started: {node.reason}")
            scaler.record_crash(node, now)
            self._fail_waiting_if_permanent(scaler, now)

    def _fail_waiting_if_permanent(self, scaler: VersionScaler, now: float) -> None:
        """Report repeated start failures, and fail the waiting requests if no node is left."""
        failures, key = scaler.failures, scaler.spec.key
        if failures.permanent:
            if not _live_nodes(self._pool.nodes(key)):
                self._activator.fail_waiting(
                    key, StartFailedError(failures.reason, failures.retry_delay(now))
                )
            self._on_trouble(key, failures.reason)

    # ---- decisions

    def start(self) -> BackgroundLoop:
        """Start the background loop that decides for every awake version once a tick."""
        self._last_tick_at = self._clock() - self._tick  # the first round is now
        return self._supervisor.start_loop(
            "autoscaler", self._wait_for_tick, self._reconcile_awake, within=_TICK_DEADLINE
        )

    async def _wait_for_tick(self) -> None:
        await asyncio.sleep(max(0.0, self._tick - (self._clock() - self._last_tick_at)))
        if not self._awake:
            self._activity.clear()
            await self._activity.wait()

    async def _reconcile_awake(self) -> None:
        self._last_tick_at = self._clock()
        self._reconcile_versions(list(self._awake))

    def reconcile(self, key: str | None = None) -> None:
        """Decide for all awake versions, or for one and those that wait for room, and scale them.

        Never raises: an error here must not fail a request or a node. The next tick tries again.
        """
        try:
            short = [name for name in self._awake if self._versions[name].shortage_reason]
            self._reconcile_versions(list(self._awake) if key is None else [*short, key])
        except Exception as error:
            self._supervisor.report_error("autoscaler", error)

    def _reconcile_versions(self, keys: Iterable[str]) -> None:
        now = self._clock()
        decisions: dict[str, Decision] = {}
        for key in dict.fromkeys(keys):
            scaler = self._versions.get(key)
            if key in self._scaling:
                self._postponed.add(key)  # it is decided again when that is done
            elif scaler is not None:
                decisions[key] = self._decide_version(scaler, now)
        for key, grant in self._grant_nodes(decisions).items():
            self._apply_grant(key, decisions.get(key), grant)

    def _decide_version(self, scaler: VersionScaler, now: float) -> Decision:
        nodes = self._pool.nodes(scaler.spec.key)
        scaler.forget_failures_if_stable(nodes, now)
        observation = scaler.observe(nodes, self._pool.cpu_seconds, now)
        decision = decide_node_count(scaler.scaling, observation, scaler.state, now)
        scaler.state = decision.state
        return _limit_after_failures(decision, scaler, _live_nodes(nodes), now)

    def _grant_nodes(self, decisions: Mapping[str, Decision]) -> Mapping[str, Grant]:
        """What can be granted of what is wanted; free memory is read only when a version wants to grow."""
        demands = [
            self._demand_of(self._versions[key], decision.nodes) for key, decision in decisions.items()
        ]
        if all(demand.wanted <= demand.nodes for demand in demands):
            return {demand.key: Grant(nodes=demand.wanted) for demand in demands}
        others = [self._demand_of(self._versions[key], None) for key in self._awake if key not in decisions]
        return allocate_nodes([*demands, *others], self._compute_capacity([*demands, *others]))

    def sum_memory_demand(self) -> MemoryDemand:
        """What nodes need and want of the memory that they may have."""
        needed = missing = taken = 0
        for key in self._awake:
            scaler = self._versions[key]
            demand = self._demand_of(scaler, None)
            per_node = scaler.memory
            needed += per_node * (demand.nodes if demand.busy else min(demand.nodes, demand.floor))
            missing += demand.memory * scaler.missing_nodes
            taken += per_node * demand.nodes
        total = self._pool.available_memory() + taken
        return MemoryDemand(needed, missing, min(total, self._memory_bytes) if self._memory_bytes else total)

    def _demand_of(self, scaler: VersionScaler, wanted: int | None) -> Demand:
        nodes = _live_nodes(self._pool.nodes(scaler.spec.key))
        needs = scaler.memory_per_node(nodes)
        return Demand(
            key=scaler.spec.key,
            title=scaler.spec.title,
            wanted=len(nodes) if wanted is None else wanted,
            nodes=len(nodes),
            memory=int(needs * RESERVE),
            releases=needs,
            floor=scaler.floor,
            # A version that is being scaled is not evicted: it would be scaled twice at the same time.
            busy=scaler.meter.level > 0
            or scaler.spec.key in self._scaling
            or any(node.state is NodeState.STARTING for node in nodes),
            idle_since=scaler.idle_since(nodes),
        )

    def _compute_capacity(self, demands: Iterable[Demand]) -> Capacity:
        """Free memory, less what nodes that are loading, or about to start, will take of it."""
        taken = loading = returning = 0
        for demand in demands:
            nodes, scaler = self._pool.nodes(demand.key), self._versions[demand.key]
            needs = scaler.memory_per_node(nodes)
            ordered = scaler.desired - demand.nodes if demand.key in self._scaling else 0
            coming, going = max(0, ordered), max(0, -ordered)
            taken += needs * (len(nodes) + coming)
            loading += needs * (sum(node.state is NodeState.STARTING for node in nodes) + coming)
            returning += needs * (sum(node.state is NodeState.DRAINING for node in nodes) + going)
        free = self._pool.available_memory() - loading
        if self._memory_bytes:
            free = min(free, self._memory_bytes - taken)
        return Capacity(free=max(0, free), returning=returning)

    def _apply_grant(self, key: str, decision: Decision | None, grant: Grant) -> None:
        scaler = self._versions[key]
        present = len(_live_nodes(self._pool.nodes(key)))
        if decision is None and grant.nodes == present:
            return  # it took part only as a possible victim
        wanted, reason = (decision.nodes, decision.reason) if decision is not None else (0, "")
        reason = grant.reason or reason
        # A version that was stopped for another one has no shortage.
        short = present <= grant.nodes < wanted
        scaler.missing_nodes = wanted - grant.nodes if short else 0
        if scaler.record_decision(grant.nodes, reason, present, short=short):
            logger.info("%s: %s", scaler.spec.title, reason)
        if grant.nodes != present:
            self._scale_pool(scaler, grant.nodes)
        elif scaler.floor or scaler.meter.level or self._pool.nodes(key):
            self._mark_awake(key)
        else:
            self._awake.pop(key, None)

    def _scale_pool(self, scaler: VersionScaler, count: int) -> None:
        self._mark_awake(scaler.spec.key)
        key = scaler.spec.key

        async def scale_pool() -> None:
            try:
                if self._before_start is not None and count > len(_live_nodes(self._pool.nodes(key))):
                    await self._before_start(key)
                await self._pool.scale(scaler.spec, count)
            except StartFailedError as error:
                logger.warning("%s: %s", scaler.spec.title, error.reason)
                now = self._clock()
                scaler.record_start_failure(error.reason, now, starved=False)
                self._fail_waiting_if_permanent(scaler, now)
            except Exception as error:
                logger.exception("%s: cannot be scaled to %d nodes", scaler.spec.title, count)
                if count > len(_live_nodes(self._pool.nodes(key))):
                    now, reason, starved = (
                        self._clock(),
                        f"Cannot start a process: {error}",
                        is_shortage(error),
                    )
                    if starved:
                        self._supervisor.report_trouble(_STARTS_TROUBLE, f"No node can be started: {reason}")
                    scaler.record_start_failure(reason, now, starved=starved)
                    self._fail_waiting_if_permanent(scaler, now)

        def on_scaled(_: asyncio.Task[None]) -> None:
            del self._scaling[key]
            if key in self._postponed:
                self._postponed.discard(key)
                self.reconcile(key)

        task = self._supervisor.start_task("scaling", scale_pool(), title=scaler.spec.title)
        self._scaling[key] = task
        task.add_done_callback(on_scaled)

    def _mark_awake(self, key: str) -> None:
        """Include a version in every tick from now on."""
        self._awake[key] = None
        self._recently_active.add(key)
        self._activity.set()


def _limit_after_failures(
    decision: Decision, scaler: VersionScaler, live: Sequence[Node], now: float
) -> Decision:
    """Limit growth after failed starts: not before the backoff ends, and one node at a time."""
    failures = scaler.failures
    if not (failures.count or failures.shortage) or decision.nodes <= len(live):
        return decision
    blocked = failures.is_blocked(now)
    one_more = not blocked and all(node.state is NodeState.READY for node in live)
    why = failures.shortage or failures.reason
    reason = f"{why} Tried again {'later' if blocked else 'with one node first'}."
    return dataclasses.replace(decision, nodes=len(live) + one_more, reason=reason)


def _live_nodes(nodes: Sequence[Node]) -> list[Node]:
    """Those that are starting or ready."""
    return [node for node in nodes if node.state in (NodeState.STARTING, NodeState.READY)]
