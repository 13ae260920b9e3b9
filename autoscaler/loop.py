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

from autoscaler.activator import Activator, Outlook
from autoscaler.decision import (
    RESERVE,
    Capacity,
    Decision,
    Demand,
    Grant,
    ScalingSpec,
    allocate,
    decide,
)
from autoscaler.errors import NodeError, StartFailedError, is_shortage
from autoscaler.pools import Node, NodePool, NodeSpec, NodeState
from autoscaler.supervision import Loop, Supervisor
from autoscaler.tracking import Tracked

logger = logging.getLogger(__name__)

# Seconds after which the autoscaler is in trouble if it has not decided.
_LOOKED_WITHIN = 10.0
# The name of what keeps nodes of all versions from starting.
_STARTS = "starts of nodes"


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
        self._started = self._looked_at = clock()
        self._versions: dict[str, Tracked] = {}
        self._awake: dict[str, None] = {}  # a set in the order of waking
        self._stirred: set[str] = set()
        self._scaling: dict[str, asyncio.Task[None]] = {}
        self._missed: set[str] = set()
        self._stir = asyncio.Event()

    # ---- which versions there are

    def track(
        self, spec: NodeSpec, scaling: ScalingSpec, *, memory: int, start_seconds: float | None
    ) -> None:
        """Scale a version from now on, or by other rules than before.

        `memory` is what a node of it takes, in bytes, and `start_seconds` how long one takes to start, as
        far as is known.
        """
        tracked = self._versions.get(spec.key)
        if tracked is None:
            meter = self._activator.meter(spec)
            tracked = Tracked(spec, scaling, meter, self._started, memory=memory)
            if start_seconds is not None:
                tracked.starts.append((True, start_seconds))
            self._versions[spec.key] = tracked
        tracked.spec, tracked.scaling = spec, scaling
        if tracked.floor or self._pool.nodes(spec.key):
            self._rouse(spec.key)

    async def forget(self, key: str) -> None:
        """Stop a version's nodes; whoever waits for one is told so. Requests inside nodes finish."""
        self._activator.retire(key)
        tracked = self._versions.pop(key, None)
        self._awake.pop(key, None)
        if key in self._scaling:
            await asyncio.wait([self._scaling[key]])
        nodes = self._pool.nodes(key)
        if tracked is not None:
            await self._pool.scale(tracked.spec, 0)
        for node in nodes:
            await node.gone.wait()

    def stirred(self) -> set[str]:
        """The versions that may have been used since this was called last: all others slept."""
        found, self._stirred = self._stirred, set(self._awake)
        return found

    @property
    def versions(self) -> Mapping[str, Tracked]:
        """What is known of each version, by key."""
        return self._versions

    # ---- what happens

    def wake(self, spec: NodeSpec) -> Outlook:
        """See `Waker`."""
        now = self._clock()
        tracked = self._versions.get(spec.key)
        if tracked is None:
            raise StartFailedError("The version is not served.")
        self._stirred.add(spec.key)
        failures, nodes = tracked.failures, _living(self._pool.nodes(spec.key))
        if failures.final and failures.blocks(now) and not nodes:
            raise StartFailedError(failures.reason, failures.delay(now))
        self._rouse(spec.key)
        tracked.asked = True  # even if the request goes away at once: the next one comes
        if spec.key in self._scaling:
            self._missed.add(spec.key)
        elif not nodes and not tracked.short and not failures.blocks(now):
            # In this very turn of the event loop: nothing is quicker than a wake-up. Where nothing can be
            # started, not for each of a thousand requests: the next tick looks again.
            self.look(spec.key)
        return tracked.outlook(nodes, self._pool.forks(spec), now)

    def refused(self, key: str, error: NodeError) -> None:
        """See `Waker`."""
        tracked = self._versions.get(key)
        if tracked is not None:
            tracked.refuse(f"{type(error).__name__}: {error}")

    def node_changed(self, node: Node) -> None:
        """A pool's listener; to be told after the activator."""
        tracked = self._versions.get(node.key)
        if node.state is NodeState.READY and tracked is not None:
            tracked.note_start(node)
            self._supervisor.clear_trouble(_STARTS)
            self._on_trouble(node.key, "")
        elif node.state is NodeState.GONE:
            if tracked is not None:
                self._node_gone(tracked, node, self._clock())
            # Its place, or its memory, may be what somebody waits for, be it of a version that was deleted.
            asyncio.get_running_loop().call_soon(self.look, node.key)

    def _node_gone(self, tracked: Tracked, node: Node, now: float) -> None:
        tracked.note_end(node, now)
        if node.crashed:
            if node.starved:
                self._supervisor.note_trouble(_STARTS, f"No node can be started: {node.reason}")
            tracked.note_crash(node, now)
            self._give_up_if_final(tracked, now)

    def _give_up_if_final(self, tracked: Tracked, now: float) -> None:
        """Tell the owner, once trying again at once has not helped, and those who wait if no node is left."""
        failures, key = tracked.failures, tracked.spec.key
        if failures.final:
            if not _living(self._pool.nodes(key)):
                self._activator.fail(key, StartFailedError(failures.reason, failures.delay(now)))
            self._on_trouble(key, failures.reason)

    # ---- looking, deciding, acting

    def start(self) -> Loop:
        """Look at every version that is awake, once a tick, from now on."""
        self._looked_at = self._clock() - self._tick  # now is the first time
        return self._supervisor.start_loop(
            "autoscaler", self._next_tick, self._look_at_all, within=_LOOKED_WITHIN
        )

    async def _next_tick(self) -> None:
        await asyncio.sleep(max(0.0, self._tick - (self._clock() - self._looked_at)))
        if not self._awake:
            self._stir.clear()
            await self._stir.wait()

    async def _look_at_all(self) -> None:
        self._looked_at = self._clock()
        self._look(list(self._awake))

    def look(self, key: str | None = None) -> None:
        """Decide for all versions that are awake, or for one and those that wait for room; have it done.

        Never raises: neither a request nor a node must suffer from what goes wrong here. The next tick looks
        again.
        """
        try:
            short = [name for name in self._awake if self._versions[name].short]
            self._look(list(self._awake) if key is None else [*short, key])
        except Exception as error:
            self._supervisor.report("autoscaler", error)

    def _look(self, keys: Iterable[str]) -> None:
        now = self._clock()
        decisions: dict[str, Decision] = {}
        for key in dict.fromkeys(keys):
            tracked = self._versions.get(key)
            if key in self._scaling:
                self._missed.add(key)  # it is looked at when that is done
            elif tracked is not None:
                decisions[key] = self._decide(tracked, now)
        for key, grant in self._allocate(decisions).items():
            self._apply(key, decisions.get(key), grant)

    def _decide(self, tracked: Tracked, now: float) -> Decision:
        nodes = self._pool.nodes(tracked.spec.key)
        tracked.forgive(nodes, now)
        observation = tracked.observe(nodes, self._pool.cpu_seconds, now)
        decision = decide(tracked.scaling, observation, tracked.state, now)
        tracked.state = decision.state
        return _held_back(decision, tracked, _living(nodes), now)

    def _allocate(self, decisions: Mapping[str, Decision]) -> Mapping[str, Grant]:
        """What can be had of what is wanted; memory is looked at only when somebody wants to grow."""
        demands = [self._demand(self._versions[key], decision.nodes) for key, decision in decisions.items()]
        if all(demand.wanted <= demand.nodes for demand in demands):
            return {demand.key: Grant(nodes=demand.wanted) for demand in demands}
        others = [self._demand(self._versions[key], None) for key in self._awake if key not in decisions]
        return allocate([*demands, *others], self._capacity([*demands, *others]))

    def _demand(self, tracked: Tracked, wanted: int | None) -> Demand:
        nodes = _living(self._pool.nodes(tracked.spec.key))
        needs = tracked.needs(nodes)
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

    def _capacity(self, demands: Iterable[Demand]) -> Capacity:
        """Free memory, less what nodes that are still loading, or about to start, will take of it."""
        taken = loading = returning = 0
        for demand in demands:
            nodes, tracked = self._pool.nodes(demand.key), self._versions[demand.key]
            needs = tracked.needs(nodes)
            ordered = tracked.desired - demand.nodes if demand.key in self._scaling else 0
            coming, going = max(0, ordered), max(0, -ordered)
            taken += needs * (len(nodes) + coming)
            loading += needs * (sum(node.state is NodeState.STARTING for node in nodes) + coming)
            returning += needs * (sum(node.state is NodeState.DRAINING for node in nodes) + going)
        free = self._free_memory() - loading
        if self._memory_bytes:
            free = min(free, self._memory_bytes - taken)
        return Capacity(free=max(0, free), returning=returning)

    def _apply(self, key: str, decision: Decision | None, grant: Grant) -> None:
        tracked = self._versions[key]
        present = len(_living(self._pool.nodes(key)))
        if decision is None and grant.nodes == present:
            return  # it was only asked what it can do without
        wanted, reason = (decision.nodes, decision.reason) if decision is not None else (0, "")
        reason = grant.reason or reason
        # What was stopped for another version is not short of anything.
        short = present <= grant.nodes < wanted
        if tracked.note_decision(grant.nodes, reason, present, short=short):
            logger.info("%s: %s", tracked.spec.title, reason)
        if grant.nodes != present:
            self._scale(tracked, grant.nodes)
        elif tracked.floor or tracked.meter.level or self._pool.nodes(key):
            self._rouse(key)
        else:
            self._awake.pop(key, None)

    def _scale(self, tracked: Tracked, count: int) -> None:
        self._rouse(tracked.spec.key)
        key = tracked.spec.key

        async def scale() -> None:
            try:
                await self._pool.scale(tracked.spec, count)
            except Exception as error:
                logger.exception("%s: cannot be scaled to %d nodes", tracked.spec.title, count)
                if count > len(_living(self._pool.nodes(key))):
                    now, reason, starved = (
                        self._clock(),
                        f"Cannot start a process: {error}",
                        is_shortage(error),
                    )
                    if starved:
                        self._supervisor.note_trouble(_STARTS, f"No node can be started: {reason}")
                    tracked.note_no_start(reason, now, starved=starved)
                    self._give_up_if_final(tracked, now)

        def done(_: asyncio.Task[None]) -> None:
            del self._scaling[key]
            if key in self._missed:
                self._missed.discard(key)
                self.look(key)

        task = self._supervisor.start_task("scaling", scale(), title=tracked.spec.title)
        self._scaling[key] = task
        task.add_done_callback(done)

    def _rouse(self, key: str) -> None:
        """Look at a version at every tick from now on."""
        self._awake[key] = None
        self._stirred.add(key)
        self._stir.set()


def _held_back(decision: Decision, tracked: Tracked, living: Sequence[Node], now: float) -> Decision:
    """What may be done of a decision: after failed starts nothing too early, and one node at a time."""
    failures = tracked.failures
    if not (failures.count or failures.shortage) or decision.nodes <= len(living):
        return decision
    blocked = failures.blocks(now)
    one_more = not blocked and all(node.state is NodeState.READY for node in living)
    why = failures.shortage or failures.reason
    reason = f"{why} Tried again {'later' if blocked else 'with one node first'}."
    return dataclasses.replace(decision, nodes=len(living) + one_more, reason=reason)


def _living(nodes: Sequence[Node]) -> list[Node]:
    """Those that are there or on their way."""
    return [node for node in nodes if node.state in (NodeState.STARTING, NodeState.READY)]
