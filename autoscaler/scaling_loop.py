"""The autoscaler: sees what each version has and is asked for, decides, and has the pool do it.

The decisions are made in `decision.py`; here is what they are made from, and what becomes of them. Versions
that sleep cost nothing: only those that have nodes, requests or a lower bound are looked at.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

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
from autoscaler.version_scaler import VersionScaler

logger = logging.getLogger(__name__)

# Seconds after which the autoscaler is in trouble if it has not decided.
_TICK_DEADLINE = 10.0
# The name of what keeps nodes of all versions from starting.
_STARTS_TROUBLE = "starts of nodes"


class Autoscaler:
    """One per gateway. It decides from `start` on; every method is called on the event loop.

    `tick` is the time between two looks in seconds. `free_memory` tells the bytes that are free on the
    machine, `memory_bytes` how many nodes may take in all (0: what is free). `on_trouble` is called with a
    version's key and why its nodes cannot be started, "" once one could.
    """

    def __init__(
        self,
        activator: Activator,
        pool: NodePool,
        *,
        tick: float,
        free_memory: Callable[[], int],
        memory_bytes: int,
        on_trouble: Callable[[str, str], None],
        supervisor: Supervisor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._activator = activator
        self._pool = pool
        self._tick = tick
        self._free_memory = free_memory
        self._memory_bytes = memory_bytes
        self._on_trouble = on_trouble
        self._supervisor = supervisor
        self._clock = clock
        self._started = self._last_tick_at = clock()
        self._versions: dict[str, VersionScaler] = {}
        self._awake: dict[str, None] = {}  # a set in the order of waking
        self._recently_active: set[str] = set()
        self._scaling: dict[str, asyncio.Task[None]] = {}
        self._postponed: set[str] = set()
        self._activity = asyncio.Event()

    # ---- which versions there are

    def track_version(
        self, spec: NodeSpec, scaling: ScalingSpec, *, memory: int, start_seconds: float | None
    ) -> None:
        """Scale a version from now on, or by other rules than before.

        `memory` is what a node of it takes, in bytes, and `start_seconds` how long one takes to start, as
        far as is known.
        """
        tracked = self._versions.get(spec.key)
        if tracked is None:
            meter = self._activator.meter_of(spec)
            tracked = VersionScaler(spec, scaling, meter, self._started, memory=memory)
            if start_seconds is not None:
                tracked.starts.append((True, start_seconds))
            self._versions[spec.key] = tracked
        tracked.spec, tracked.scaling = spec, scaling
        if tracked.floor or self._pool.nodes(spec.key):
            self._activate(spec.key)

    async def forget_version(self, key: str) -> None:
        """Stop a version's nodes; whoever waits for one is told so. Requests inside nodes finish."""
        self._activator.retire_version(key)
        tracked = self._versions.pop(key, None)
        self._awake.pop(key, None)
        if key in self._scaling:
            await asyncio.wait([self._scaling[key]])
        nodes = self._pool.nodes(key)
        if tracked is not None:
            await self._pool.scale(tracked.spec, 0)
        for node in nodes:
            await node.gone.wait()

    def recently_active(self) -> set[str]:
        """The versions that may have been used since this was called last: all others slept."""
        found, self._recently_active = self._recently_active, set(self._awake)
        return found

    @property
    def versions(self) -> Mapping[str, VersionScaler]:
        """What is known of each version, by key."""
        return self._versions

    # ---- what happens

    def wake(self, spec: NodeSpec) -> StartEstimate:
        """See `Waker`."""
        now = self._clock()
        tracked = self._versions.get(spec.key)
        if tracked is None:
            raise StartFailedError("The version is not served.")
        self._recently_active.add(spec.key)
        failures, nodes = tracked.failures, _live_nodes(self._pool.nodes(spec.key))
        if failures.permanent and failures.is_blocked(now) and not nodes:
            raise StartFailedError(failures.reason, failures.retry_delay(now))
        self._activate(spec.key)
        tracked.wake_requested = True  # even if the request goes away at once: the next one comes
        if spec.key in self._scaling:
            self._postponed.add(spec.key)
        elif not nodes and not tracked.shortage_reason and not failures.is_blocked(now):
            # In this very turn of the event loop: nothing is quicker than a wake-up. Where nothing can be
            # started, not for each of a thousand requests: the next tick looks again.
            self.reconcile(spec.key)
        return tracked.estimate_start(nodes, self._pool.can_fork(spec), now)

    def on_refused(self, key: str, error: NodeError) -> None:
        """See `Waker`."""
        tracked = self._versions.get(key)
        if tracked is not None:
            tracked.record_refusal(f"{type(error).__name__}: {error}")

    def on_node_changed(self, node: Node) -> None:
        """A pool's listener; to be told after the activator."""
        tracked = self._versions.get(node.key)
        if node.state is NodeState.READY and tracked is not None:
            tracked.record_ready(node)
            self._supervisor.clear_trouble(_STARTS_TROUBLE)
            self._on_trouble(node.key, "")
        elif node.state is NodeState.GONE:
            if tracked is not None:
                self._on_node_gone(tracked, node, self._clock())
            # Its place, or its memory, may be what somebody waits for, be it of a version that was deleted.
            asyncio.get_running_loop().call_soon(self.reconcile, node.key)

    def _on_node_gone(self, tracked: VersionScaler, node: Node, now: float) -> None:
        tracked.record_end(node, now)
        if node.crashed:
            if node.starved:
                self._supervisor.report_trouble(_STARTS_TROUBLE, f"No node can be started: {node.reason}")
            tracked.record_crash(node, now)
            self._fail_waiting_if_permanent(tracked, now)

    def _fail_waiting_if_permanent(self, tracked: VersionScaler, now: float) -> None:
        """Tell the owner, once trying again at once has not helped, and those who wait if no node is left."""
        failures, key = tracked.failures, tracked.spec.key
        if failures.permanent:
            if not _live_nodes(self._pool.nodes(key)):
                self._activator.fail_waiting(
                    key, StartFailedError(failures.reason, failures.retry_delay(now))
                )
            self._on_trouble(key, failures.reason)

    # ---- looking, deciding, acting

    def start(self) -> BackgroundLoop:
        """Look at every version that is awake, once a tick, from now on."""
        self._last_tick_at = self._clock() - self._tick  # now is the first time
        return self._supervisor.start_loop(
            "autoscaler", self._next_tick, self._reconcile_awake, within=_TICK_DEADLINE
        )

    async def _next_tick(self) -> None:
        await asyncio.sleep(max(0.0, self._tick - (self._clock() - self._last_tick_at)))
        if not self._awake:
            self._activity.clear()
            await self._activity.wait()

    async def _reconcile_awake(self) -> None:
        self._last_tick_at = self._clock()
        self._reconcile_versions(list(self._awake))

    def reconcile(self, key: str | None = None) -> None:
        """Decide for all versions that are awake, or for one and those that wait for room; have it done.

        Never raises: neither a request nor a node must suffer from what goes wrong here. The next tick looks
        again.
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
            tracked = self._versions.get(key)
            if key in self._scaling:
                self._postponed.add(key)  # it is looked at when that is done
            elif tracked is not None:
                decisions[key] = self._decide_version(tracked, now)
        for key, grant in self._grant_nodes(decisions).items():
            self._apply_grant(key, decisions.get(key), grant)

    def _decide_version(self, tracked: VersionScaler, now: float) -> Decision:
        nodes = self._pool.nodes(tracked.spec.key)
        tracked.forget_failures_if_stable(nodes, now)
        observation = tracked.observe(nodes, self._pool.cpu_seconds, now)
        decision = decide_node_count(tracked.scaling, observation, tracked.state, now)
        tracked.state = decision.state
        return _limit_after_failures(decision, tracked, _live_nodes(nodes), now)

    def _grant_nodes(self, decisions: Mapping[str, Decision]) -> Mapping[str, Grant]:
        """What can be had of what is wanted; memory is looked at only when somebody wants to grow."""
        demands = [
            self._demand_of(self._versions[key], decision.nodes) for key, decision in decisions.items()
        ]
        if all(demand.wanted <= demand.nodes for demand in demands):
            return {demand.key: Grant(nodes=demand.wanted) for demand in demands}
        others = [self._demand_of(self._versions[key], None) for key in self._awake if key not in decisions]
        return allocate_nodes([*demands, *others], self._free_capacity([*demands, *others]))

    def _demand_of(self, tracked: VersionScaler, wanted: int | None) -> Demand:
        nodes = _live_nodes(self._pool.nodes(tracked.spec.key))
        needs = tracked.memory_per_node(nodes)
        return Demand(
            key=tracked.spec.key,
            title=tracked.spec.title,
            wanted=len(nodes) if wanted is None else wanted,
            nodes=len(nodes),
            memory=int(needs * RESERVE),
            releases=needs,
            floor=tracked.floor,
            # Of what is just being scaled nothing is taken away, or two would scale it at the same time.
            busy=tracked.meter.level > 0
            or tracked.spec.key in self._scaling
            or any(node.state is NodeState.STARTING for node in nodes),
            idle_since=tracked.idle_since(nodes),
        )

    def _free_capacity(self, demands: Iterable[Demand]) -> Capacity:
        """Free memory, less what nodes that are still loading, or about to start, will take of it."""
        taken = loading = returning = 0
        for demand in demands:
            nodes, tracked = self._pool.nodes(demand.key), self._versions[demand.key]
            needs = tracked.memory_per_node(nodes)
            ordered = tracked.desired - demand.nodes if demand.key in self._scaling else 0
            coming, going = max(0, ordered), max(0, -ordered)
            taken += needs * (len(nodes) + coming)
            loading += needs * (sum(node.state is NodeState.STARTING for node in nodes) + coming)
            returning += needs * (sum(node.state is NodeState.DRAINING for node in nodes) + going)
        free = self._free_memory() - loading
        if self._memory_bytes:
            free = min(free, self._memory_bytes - taken)
        return Capacity(free=max(0, free), returning=returning)

    def _apply_grant(self, key: str, decision: Decision | None, grant: Grant) -> None:
        tracked = self._versions[key]
        present = len(_live_nodes(self._pool.nodes(key)))
        if decision is None and grant.nodes == present:
            return  # it was only asked what it can do without
        wanted, reason = (decision.nodes, decision.reason) if decision is not None else (0, "")
        reason = grant.reason or reason
        # What was stopped for another version is not short of anything.
        short = present <= grant.nodes < wanted
        if tracked.record_decision(grant.nodes, reason, present, short=short):
            logger.info("%s: %s", tracked.spec.title, reason)
        if grant.nodes != present:
            self._scale_pool(tracked, grant.nodes)
        elif tracked.floor or tracked.meter.level or self._pool.nodes(key):
            self._activate(key)
        else:
            self._awake.pop(key, None)

    def _scale_pool(self, tracked: VersionScaler, count: int) -> None:
        self._activate(tracked.spec.key)
        key = tracked.spec.key

        async def scale_pool() -> None:
            try:
                await self._pool.scale(tracked.spec, count)
            except Exception as error:
                logger.exception("%s: cannot be scaled to %d nodes", tracked.spec.title, count)
                if count > len(_live_nodes(self._pool.nodes(key))):
                    now, reason, starved = (
                        self._clock(),
                        f"Cannot start a process: {error}",
                        is_shortage(error),
                    )
                    if starved:
                        self._supervisor.report_trouble(_STARTS_TROUBLE, f"No node can be started: {reason}")
                    tracked.record_start_failure(reason, now, starved=starved)
                    self._fail_waiting_if_permanent(tracked, now)

        def on_scaled(_: asyncio.Task[None]) -> None:
            del self._scaling[key]
            if key in self._postponed:
                self._postponed.discard(key)
                self.reconcile(key)

        task = self._supervisor.start_task("scaling", scale_pool(), title=tracked.spec.title)
        self._scaling[key] = task
        task.add_done_callback(on_scaled)

    def _activate(self, key: str) -> None:
        """Look at a version at every tick from now on."""
        self._awake[key] = None
        self._recently_active.add(key)
        self._activity.set()


def _limit_after_failures(
    decision: Decision, tracked: VersionScaler, living: Sequence[Node], now: float
) -> Decision:
    """What may be done of a decision: after failed starts nothing too early, and one node at a time."""
    failures = tracked.failures
    if not (failures.count or failures.shortage) or decision.nodes <= len(living):
        return decision
    blocked = failures.is_blocked(now)
    one_more = not blocked and all(node.state is NodeState.READY for node in living)
    why = failures.shortage or failures.reason
    reason = f"{why} Tried again {'later' if blocked else 'with one node first'}."
    return dataclasses.replace(decision, nodes=len(living) + one_more, reason=reason)


def _live_nodes(nodes: Sequence[Node]) -> list[Node]:
    """Those that are there or on their way."""
    return [node for node in nodes if node.state in (NodeState.STARTING, NodeState.READY)]
