"""How many nodes a version should have: pure functions of an observation, the state before it, and time.

All times are in seconds on one clock that the caller chooses; loads are numbers of requests, running and
waiting ones alike.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# A version that is woken after less than this share of its idle window slept too early: its window is then
# multiplied by this factor, until it has slept for longer. So traffic at the boundary does not flap.
_SHORT_SLEEP_SHARE, _IDLE_WINDOW_FACTOR = 0.25, 1.5
# Averages have rounding errors: 16 requests at 16 per node must not count as 16.000000000000004.
_ROUNDING_ERROR = 1e-9

# The memory that must be free before a node starts, as a multiple of its own: the machine must not swap.
RESERVE = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSpec:
    """Within what bounds, and how eagerly, a version is scaled.

    `exact_nodes` overrules everything else. `max_nodes` counts as no less than `min_nodes`, and no less than
    1: a version without a node could not answer. `target_concurrency` is how many requests at a time one node
    should have, `cpu_target` which part of a core it should use (None: not looked at). A version idle for
    longer than `idle_window` gets no nodes, unless `min_nodes` says otherwise. When the load of the
    `panic_window` wants `panic_threshold` times the ready nodes, the version panics: it grows by the short
    window and never shrinks. It shrinks, but not to zero, only to the most that was wanted during
    `scale_down_delay`.
    """

    min_nodes: int = 0
    max_nodes: int = 1
    exact_nodes: int | None = None
    target_concurrency: float = 16.0
    cpu_target: float | None = None
    idle_window: float = 300.0
    stable_window: float = 60.0
    panic_window: float = 6.0
    panic_threshold: float = 2.0
    scale_down_delay: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is seen of a version at one moment.

    `requests` run or wait right now. `stable` and `panic` are the averages of that number over the two
    windows; `settled` is False until what is known reaches back a whole stable window (after the scaler's
    own restart). `idle_since` is the latest of: the end of the last request, the newest node's becoming
    ready, the scaler's start. `cpu` is the part of a core the ready nodes used on average over the stable
    window, None when unknown.
    """

    ready: int
    starting: int
    requests: int
    stable: float
    panic: float
    idle_since: float
    settled: bool = True
    cpu: float | None = None

    @property
    def nodes(self) -> int:
        return self.ready + self.starting


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingState:
    """What one decision leaves for the next.

    `panic_since` is when the load last was over the panic threshold (None: no panic), `panic_nodes` the
    most nodes wanted during the panic. `wanted` are the recent (time, nodes) that the load needed, no
    older than the scale-down delay; each is less than those before it, for only such ones can still become
    the most. `slept_at` is when the version went to zero, None again once it is woken; `extended` that it
    was woken so soon after it that its idle window is longer this time, so that traffic at the boundary
    does not flap.
    """

    panic_since: float | None = None
    panic_nodes: int = 0
    wanted: tuple[tuple[float, int], ...] = ()
    slept_at: float | None = None
    idle_window_extended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How many nodes (starting ones included) there should be, why, in words, and the state to hand on."""

    nodes: int
    state: ScalingState
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a version wants and has, for `allocate_nodes`.

    `nodes` are there or starting; nodes on their way out count no more. `memory` is what one more node
    takes, in bytes, reserve included, and `releases` what one gives back when it ends (None: as much).
    `busy` versions (requests run or wait, or a node starts) and nodes up to `floor` are never taken away for
    another version. `title` is what reasons call the version ("": its key).
    """

    key: str
    wanted: int
    nodes: int
    memory: int
    floor: int = 0
    busy: bool = False
    idle_since: float = 0.0
    releases: int | None = None
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What there is to share out: free bytes (less what starting nodes will still take of them), bytes that
    nodes on their way out will give back soon, and how many nodes there may be in all (None: any number)."""

    free: int
    returning: int = 0
    nodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """How many nodes a version may have now; `reason` says why that differs from what it wants, else "".

    `short`: it gets no first node, and stopping all that is idle would not help.
    """

    nodes: int
    reason: str = ""
    short: bool = False


def decide_node_count(
    spec: ScalingSpec, observation: Observation, state: ScalingState, now: float
) -> Decision:
    if spec.exact_nodes is not None:
        return Decision(
            nodes=spec.exact_nodes, state=state, reason=f"{_format_nodes(spec.exact_nodes)}: manualScaling"
        )
    if _should_sleep(spec, observation, state, now):
        return _sleep_decision(spec, observation, state, now)

    load = _nodes_by_window(spec, observation)
    state = _next_state(spec, observation, state, load, now)
    needed = load.wanted_nodes(state.panic_since is not None)
    enough = max(needed, spec.min_nodes, 1)

    nodes, reason = enough, ""
    if enough < max(observation.nodes, state.panic_nodes):
        nodes, reason = _limit_shrinking(spec, observation, state, enough)
    if nodes > max(observation.nodes, spec.min_nodes) and _is_idle(observation):
        nodes, reason = _without_growth(spec, observation)
    if nodes > _max_nodes(spec):
        nodes, reason = _capped_at_max(spec, needed)
    reason = reason or f"{_format_nodes(nodes)}: {_explain_load(spec, observation, state, load, now)}"
    return Decision(nodes=nodes, state=state, reason=reason)


# ---- asleep


def _should_sleep(spec: ScalingSpec, seen: Observation, state: ScalingState, now: float) -> bool:
    """Whether there should be no nodes. Neither windows nor panic nor delay matter here."""
    if spec.min_nodes or seen.requests or seen.starting:
        return False
    return not seen.ready or now - seen.idle_since > _idle_window(spec, state)


def _sleep_decision(spec: ScalingSpec, seen: Observation, state: ScalingState, now: float) -> Decision:
    return Decision(
        nodes=0,
        # Nodes that were lost, or taken for another version, did not go because of the idle window.
        state=ScalingState(
            slept_at=now if seen.ready else state.slept_at, idle_window_extended=state.idle_window_extended
        ),
        reason=_explain_sleep(spec, seen, state, now),
    )


def _explain_sleep(spec: ScalingSpec, seen: Observation, state: ScalingState, now: float) -> str:
    idle, window = now - seen.idle_since, _idle_window(spec, state)
    if idle <= window:
        # They were lost, or the server stops.
        return f"asleep: no node is left, and the last request was {idle:.0f} s ago"
    longer = ", longer this time: it was woken soon after it slept" if state.idle_window_extended else ""
    return f"asleep: no request for {idle:.0f} s (idle window {window:g} s{longer})"


def _idle_window(spec: ScalingSpec, state: ScalingState) -> float:
    return spec.idle_window * _IDLE_WINDOW_FACTOR if state.idle_window_extended else spec.idle_window


# ---- awake: what the load needs, and the next state


class _NodesByWindow(NamedTuple):
    """How many nodes the load of each window needs, and the use of the processors."""

    stable: int
    panic: int
    cpu: int

    def wanted_nodes(self, panics: bool) -> int:
        return max(self) if panics else max(self.stable, self.cpu)


def _nodes_by_window(spec: ScalingSpec, seen: Observation) -> _NodesByWindow:
    # Averages only, at a wake-up too: of a thousand requests at one moment none may be left before a second
    # node is ready. If they are, the panic window says so at the next tick.
    cpu = 0.0
    if spec.cpu_target is not None and seen.cpu is not None:
        cpu = seen.ready * seen.cpu / spec.cpu_target
    target = spec.target_concurrency
    return _NodesByWindow(_round_up(seen.stable / target), _round_up(seen.panic / target), _round_up(cpu))


def _round_up(nodes: float) -> int:
    return math.ceil(nodes - _ROUNDING_ERROR)


def _next_state(
    spec: ScalingSpec, seen: Observation, state: ScalingState, load: _NodesByWindow, now: float
) -> ScalingState:
    """The state of a version that has nodes, or is to have one."""
    panic_since, panic_nodes = _next_panic(spec, seen, state, load, now)
    needed = min(load.wanted_nodes(panic_since is not None), _max_nodes(spec))
    extended = state.idle_window_extended
    if state.slept_at is not None:
        extended = now - state.slept_at < spec.idle_window * _SHORT_SLEEP_SHARE
    return ScalingState(
        panic_since=panic_since,
        panic_nodes=panic_nodes,
        wanted=_recent_maxima(state.wanted, now, needed, spec.scale_down_delay),
        idle_window_extended=extended,
    )


def _next_panic(
    spec: ScalingSpec, seen: Observation, state: ScalingState, load: _NodesByWindow, now: float
) -> tuple[float | None, int]:
    """When the load was last over the threshold, and the most nodes wanted since the panic began."""
    since = state.panic_since
    if load.panic >= spec.panic_threshold * max(1, seen.ready):
        since = now
    elif since is None or since + spec.stable_window < now:
        return None, 0
    return since, max(state.panic_nodes, min(load.wanted_nodes(True), _max_nodes(spec)))


def _recent_maxima(
    wanted: tuple[tuple[float, int], ...], now: float, nodes: int, delay: float
) -> tuple[tuple[float, int], ...]:
    """The wanted numbers that can still be a maximum within the delay, and `nodes`: a descending sequence."""
    return (*[one for one in wanted if one[1] > nodes and one[0] >= now - delay], (now, nodes))


# ---- awake: the decision


def _limit_shrinking(
    spec: ScalingSpec, seen: Observation, state: ScalingState, enough: int
) -> tuple[int, str]:
    """How many nodes to keep when `enough` would do, and why; "" when `enough` is right."""
    nodes, most = seen.nodes, state.wanted[0][1]
    if state.panic_since is not None:
        nodes, why = max(nodes, state.panic_nodes), "panic mode removes no node"
    elif seen.starting:
        why = f"{seen.starting} of them start"
    elif not seen.settled:
        why = f"the load of the last {spec.stable_window:g} s is not known yet"
    elif most > enough:
        nodes, why = min(nodes, most), f"{most} were wanted within the last {spec.scale_down_delay:g} s"
    else:
        return enough, ""
    return nodes, f"kept at {nodes}: {enough} is enough, but {why}"


def _is_idle(seen: Observation) -> bool:
    """Whether no request came for a panic window. Starting another node would only delay the sleep."""
    return not seen.requests and seen.panic <= _ROUNDING_ERROR


def _without_growth(spec: ScalingSpec, seen: Observation) -> tuple[int, str]:
    nodes = max(seen.nodes, spec.min_nodes)
    return nodes, f"{_format_nodes(nodes)}: no node is added without requests"


def _max_nodes(spec: ScalingSpec) -> int:
    return max(spec.max_nodes, spec.min_nodes, 1)


def _capped_at_max(spec: ScalingSpec, needed: int) -> tuple[int, str]:
    nodes = _max_nodes(spec)
    more = f"; the load asks for {needed}" if needed > nodes else ""
    return nodes, f"at most {_format_nodes(nodes)} (maxNodes){more}"


# ---- reasons, in words


def _explain_load(
    spec: ScalingSpec, seen: Observation, state: ScalingState, load: _NodesByWindow, now: float
) -> str:
    panics = state.panic_since is not None
    needed = load.wanted_nodes(panics)
    if needed < spec.min_nodes:
        return "minNodes"
    if needed == 0 or (needed == 1 and not seen.nodes):
        return _explain_single_node(spec, seen, state, now)
    suffix = " (panic)" if panics else ""
    if needed == load.stable:
        return _describe_average(seen.stable, spec.stable_window, spec) + suffix
    if needed == load.cpu:
        return f"each used {seen.cpu:.0%} of a core, {spec.cpu_target:.0%} is the aim{suffix}"
    return _describe_average(seen.panic, spec.panic_window, spec) + suffix


def _describe_average(requests: float, window: float, spec: ScalingSpec) -> str:
    load = f"{requests:.3g}" if requests < 1000 else f"{requests:.0f}"
    return f"{load} requests at a time over {window:g} s, {spec.target_concurrency:g} per node"


def _explain_single_node(spec: ScalingSpec, seen: Observation, state: ScalingState, now: float) -> str:
    if seen.requests:
        verb = "runs" if seen.ready else "waits"
        return f"a request {verb}" if seen.requests == 1 else f"{seen.requests} requests {verb[:-1]}"
    if seen.starting:
        return "it starts"
    return f"no request for {now - seen.idle_since:.0f} s, asleep after {_idle_window(spec, state):g} s"


def _format_nodes(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


# ---- sharing memory between all versions


def allocate_nodes(demands: Sequence[Demand], capacity: Capacity) -> Mapping[str, Grant]:
    """Which demands can be met, by key: shrinking ones always, then 0 to 1, then growth.

    Versions that wake are served in the order given, and idle versions lose nodes to them if that helps.
    Growth goes one node at a time, to the version with the smallest share of what it wants.
    """
    shares = _Allocation(demands, capacity)
    for demand in demands:
        if demand.wanted and not demand.nodes:
            shares.give_first_node(demand)
    shares.give_more_nodes(demands)
    return {demand.key: shares.grant_of(demand) for demand in demands}


class _Allocation:
    """The capacity left during an allocation, and the nodes granted to each version so far."""

    def __init__(self, demands: Sequence[Demand], capacity: Capacity) -> None:
        self._granted = {demand.key: min(demand.nodes, demand.wanted) for demand in demands}
        self._reasons: dict[str, str] = {}
        self._short: set[str] = set()
        self._limit = math.inf if capacity.nodes is None else capacity.nodes
        self._free_places = self._limit - sum(self._granted.values())
        self._free = capacity.free
        # What shrinks gives its memory back when its nodes have ended, not before.
        self._returning = capacity.returning + sum(
            _returned_bytes(demand, demand.nodes - self._granted[demand.key]) for demand in demands
        )
        idle = [one for one in demands if not one.busy and self._granted[one.key] > one.floor]
        self._idle = sorted(idle, key=lambda one: one.idle_since)

    def grant_of(self, demand: Demand) -> Grant:
        key = demand.key
        return Grant(nodes=self._granted[key], reason=self._reasons.get(key, ""), short=key in self._short)

    def give_first_node(self, demand: Demand) -> None:
        """Give a version its first node, or evict idle versions for it where that helps."""
        if self._give_node(demand):
            return
        key, lack = demand.key, self._describe_shortage(demand)
        victims = self._choose_victims(demand.memory - self._free - self._returning, 1 - self._free_places)
        if victims is None:
            # It keeps nothing from the others: they can use what is too little for this one.
            self._short.add(key)
            idle = "too little" if self._idle else "nothing"
            self._reasons[key] = f"not enough {lack}, and {idle} idle to stop"
            return
        for victim in victims:
            self._evict(victim, demand)
        if not self._give_node(demand):
            self._reserve_room(demand)
            stopping = f"; stopping {', '.join(map(_title_of, victims))}" if victims else ""
            self._reasons[key] = f"waits for {lack}{stopping}"

    def give_more_nodes(self, demands: Sequence[Demand]) -> None:
        """Give more nodes to versions that have some; evicts nothing."""
        queue = [
            (self._granted[demand.key] / demand.wanted, order)
            for order, demand in enumerate(demands)
            if 0 < self._granted[demand.key] < demand.wanted and demand.key not in self._reasons
        ]
        heapq.heapify(queue)
        while queue:
            order = heapq.heappop(queue)[1]
            demand = demands[order]
            key, wanted = demand.key, demand.wanted
            if not self._give_node(demand):
                self._reasons[key] = (
                    f"{self._granted[key]} of {wanted} nodes: not enough {self._describe_shortage(demand)}"
                )
            elif self._granted[key] < wanted:
                heapq.heappush(queue, (self._granted[key] / wanted, order))

    def _give_node(self, demand: Demand) -> bool:
        """Grant one more node, if it fits."""
        if demand.memory > self._free or self._free_places < 1:
            return False
        self._granted[demand.key] += 1
        self._free -= demand.memory
        self._free_places -= 1
        return True

    def _reserve_room(self, demand: Demand) -> None:
        """Reserve room for a node that cannot start yet: first of what is returning, then of what is free."""
        returning = min(self._returning, demand.memory)
        self._returning -= returning
        self._free -= demand.memory - returning
        self._free_places -= 1

    def _evict(self, victim: Demand, needy: Demand) -> None:
        """Take the nodes of an idle version away, down to its floor."""
        nodes = self._above_floor(victim)
        self._idle.remove(victim)
        self._granted[victim.key] -= nodes
        self._returning += _returned_bytes(victim, nodes)
        self._free_places += nodes
        self._reasons[victim.key] = f"idle, and stopped to make room for {_title_of(needy)}"

    def _choose_victims(self, memory: int, places: float) -> list[Demand] | None:
        """The idle versions to evict, none of them needlessly; None if even all give back too little."""
        chosen = []
        for one in self._idle:
            if memory <= 0 and places <= 0:
                break
            chosen.append(one)
            memory -= _returned_bytes(one, self._above_floor(one))
            places -= self._above_floor(one)
        if memory > 0 or places > 0:
            return None
        for one in reversed(chosen):
            nodes = self._above_floor(one)
            if memory + _returned_bytes(one, nodes) <= 0 and places + nodes <= 0:
                chosen.remove(one)
                memory += _returned_bytes(one, nodes)
                places += nodes
        return chosen

    def _above_floor(self, demand: Demand) -> int:
        return self._granted[demand.key] - demand.floor

    def _describe_shortage(self, demand: Demand) -> str:
        if demand.memory <= self._free:
            return f"nodes: all {self._limit:g} are taken"
        returning = f", {_format_mebibytes(self._returning)} on the way" if self._returning else ""
        needed, free = _format_mebibytes(demand.memory), _format_mebibytes(max(0, self._free))
        return f"memory: {needed} needed, {free} free{returning}"


def _returned_bytes(demand: Demand, nodes: int) -> int:
    return nodes * (demand.memory if demand.releases is None else demand.releases)


def _title_of(demand: Demand) -> str:
    return demand.title or demand.key


def _format_mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
