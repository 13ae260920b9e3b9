"""How many nodes a version should have: pure functions of what was seen, what was decided before, and time.

All times are in seconds on one clock that the caller chooses; loads are numbers of requests, running and
waiting ones alike.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# A version that was woken after having slept only this part of its idle window was put to sleep in vain: its
# window then counts this many times, until it has slept for longer. So traffic at the boundary does not flap,
# and idle still ends.
_VAIN_SLEEP, _EXTENSION = 0.25, 1.5
# Averages come with rounding errors: 16 requests for 16 per node are not 16.000000000000004.
_DUST = 1e-9

# Of what a node takes, so many times must be free before it starts, so that the machine never swaps.
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
        """Nodes that are there or on their way."""
        return self.ready + self.starting


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingState:
    """What one decision leaves for the next.

    `panic_since` is when the load last was over the panic threshold (None: no panic), `panic_nodes` the
    most nodes wanted during the panic. `wanted` are the recent (time, nodes) that the load asked for, no
    older than the scale-down delay; each is less than those before it, for only such ones can still become
    the most. `slept_at` is when the version went to zero, None again once it is woken; `extended` that it
    was woken so soon after it that its idle window is longer this time, so that traffic at the boundary
    does not flap.
    """

    panic_since: float | None = None
    panic_nodes: int = 0
    wanted: tuple[tuple[float, int], ...] = ()
    slept_at: float | None = None
    extended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How many nodes (starting ones included) there should be, why, in words, and the state to hand on."""

    nodes: int
    state: ScalingState
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a version wants and has, for `allocate`.

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


def decide(spec: ScalingSpec, observation: Observation, state: ScalingState, now: float) -> Decision:
    """How many nodes a version should have."""
    if spec.exact_nodes is not None:
        return Decision(
            nodes=spec.exact_nodes, state=state, reason=f"{_count(spec.exact_nodes)}: manualScaling"
        )
    if _sleeps(spec, observation, state, now):
        return _asleep(spec, observation, state, now)

    load = _load(spec, observation)
    state = _awake(spec, observation, state, load, now)
    asked = load.asked(state.panic_since is not None)
    enough = max(asked, spec.min_nodes, 1)

    nodes, reason = enough, ""
    if enough < max(observation.nodes, state.panic_nodes):
        nodes, reason = _kept(spec, observation, state, enough)
    if nodes > max(observation.nodes, spec.min_nodes) and _quiet(observation):
        nodes, reason = _not_added(spec, observation)
    if nodes > _top(spec):
        nodes, reason = _topped(spec, asked)
    reason = reason or f"{_count(nodes)}: {_why(spec, observation, state, load, now)}"
    return Decision(nodes=nodes, state=state, reason=reason)


# ---- asleep


def _sleeps(spec: ScalingSpec, seen: Observation, state: ScalingState, now: float) -> bool:
    """Whether there should be no nodes. Neither windows nor panic nor delay have a say in this."""
    if spec.min_nodes or seen.requests or seen.starting:
        return False
    return not seen.ready or now - seen.idle_since > _idle_window(spec, state)


def _asleep(spec: ScalingSpec, seen: Observation, state: ScalingState, now: float) -> Decision:
    window = f"idle window {_idle_window(spec, state):g} s"
    if state.extended:
        window += ", longer this time: it was woken soon after it slept"
    return Decision(
        nodes=0,
        # Nodes that were lost, or taken for another version, did not go because of the idle window.
        state=ScalingState(slept_at=now if seen.ready else state.slept_at, extended=state.extended),
        reason=f"asleep: no request for {now - seen.idle_since:.0f} s ({window})",
    )


def _idle_window(spec: ScalingSpec, state: ScalingState) -> float:
    return spec.idle_window * _EXTENSION if state.extended else spec.idle_window


# ---- awake: what the load asks for, and what is remembered of it


class _Load(NamedTuple):
    """How many nodes the requests of each window ask for, and the use of the processors."""

    stable: int
    panic: int
    cpu: int

    def asked(self, panics: bool) -> int:
        """What to go by."""
        return max(self) if panics else max(self.stable, self.cpu)


def _load(spec: ScalingSpec, seen: Observation) -> _Load:
    # Averages only, at a wake-up too: of a thousand requests at one moment none may be left before a second
    # node is ready. If they are, the panic window says so at the next tick.
    cpu = 0.0
    if spec.cpu_target is not None and seen.cpu is not None:
        cpu = seen.ready * seen.cpu / spec.cpu_target
    target = spec.target_concurrency
    return _Load(_whole(seen.stable / target), _whole(seen.panic / target), _whole(cpu))


def _whole(nodes: float) -> int:
    return math.ceil(nodes - _DUST)


def _awake(
    spec: ScalingSpec, seen: Observation, state: ScalingState, load: _Load, now: float
) -> ScalingState:
    """What is remembered of a version that has nodes, or is to have one."""
    panic_since, panic_nodes = _panic(spec, seen, state, load, now)
    asked = min(load.asked(panic_since is not None), _top(spec))
    extended = state.extended
    if state.slept_at is not None:
        extended = now - state.slept_at < spec.idle_window * _VAIN_SLEEP
    return ScalingState(
        panic_since=panic_since,
        panic_nodes=panic_nodes,
        wanted=_recent(state.wanted, now, asked, spec.scale_down_delay),
        extended=extended,
    )


def _panic(
    spec: ScalingSpec, seen: Observation, state: ScalingState, load: _Load, now: float
) -> tuple[float | None, int]:
    """When the load was last over the threshold, and the most nodes wanted since the panic began."""
    since = state.panic_since
    if load.panic >= spec.panic_threshold * max(1, seen.ready):
        since = now
    elif since is None or since + spec.stable_window < now:
        return None, 0
    return since, max(state.panic_nodes, min(load.asked(True), _top(spec)))


def _recent(
    wanted: tuple[tuple[float, int], ...], now: float, nodes: int, delay: float
) -> tuple[tuple[float, int], ...]:
    """What was wanted and can still be the most, and one more: a falling row, as short as can be."""
    return (*[one for one in wanted if one[1] > nodes and one[0] >= now - delay], (now, nodes))


# ---- awake: what is made of it


def _kept(spec: ScalingSpec, seen: Observation, state: ScalingState, enough: int) -> tuple[int, str]:
    """How many to have when fewer would be enough, and why, if not just those."""
    nodes, most = seen.nodes, state.wanted[0][1]
    if state.panic_since is not None:
        nodes, why = max(nodes, state.panic_nodes), "in a panic none goes"
    elif seen.starting:
        why = f"{seen.starting} of them start"
    elif not seen.settled:
        why = f"it is not known yet what was asked for in {spec.stable_window:g} s"
    elif most > enough:
        nodes, why = min(nodes, most), f"{most} were wanted within the last {spec.scale_down_delay:g} s"
    else:
        return enough, ""
    return nodes, f"kept at {nodes}: {enough} would do, but {why}"


def _quiet(seen: Observation) -> bool:
    """Whether no request came for a panic window. A node that starts would only put off the sleep."""
    return not seen.requests and seen.panic <= _DUST


def _not_added(spec: ScalingSpec, seen: Observation) -> tuple[int, str]:
    nodes = max(seen.nodes, spec.min_nodes)
    return nodes, f"{_count(nodes)}: none is added while no request comes"


def _top(spec: ScalingSpec) -> int:
    return max(spec.max_nodes, spec.min_nodes, 1)


def _topped(spec: ScalingSpec, asked: int) -> tuple[int, str]:
    nodes = _top(spec)
    more = f"; the load asks for {asked}" if asked > nodes else ""
    return nodes, f"at most {_count(nodes)} (maxNodes){more}"


# ---- in words


def _why(spec: ScalingSpec, seen: Observation, state: ScalingState, load: _Load, now: float) -> str:
    """Why as many nodes as are enough."""
    panics = state.panic_since is not None
    asked = load.asked(panics)
    if asked < spec.min_nodes:
        return "minNodes"
    if asked == 0 or (asked == 1 and not seen.nodes):
        return _why_one(spec, seen, state, now)
    suffix = " (panic)" if panics else ""
    if asked == load.stable:
        return _over(seen.stable, spec.stable_window, spec) + suffix
    if asked == load.cpu:
        return f"each used {seen.cpu:.0%} of a core, {spec.cpu_target:.0%} is the aim{suffix}"
    return _over(seen.panic, spec.panic_window, spec) + suffix


def _over(requests: float, window: float, spec: ScalingSpec) -> str:
    load = f"{requests:.3g}" if requests < 1000 else f"{requests:.0f}"
    return f"{load} requests at a time over {window:g} s, {spec.target_concurrency:g} per node"


def _why_one(spec: ScalingSpec, seen: Observation, state: ScalingState, now: float) -> str:
    """Why the one node that an awake version has at least."""
    if seen.requests:
        verb = "runs" if seen.ready else "waits"
        return f"a request {verb}" if seen.requests == 1 else f"{seen.requests} requests {verb[:-1]}"
    if seen.starting:
        return "it starts"
    return f"no request for {now - seen.idle_since:.0f} s, asleep after {_idle_window(spec, state):g} s"


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


# ---- all versions


def allocate(demands: Sequence[Demand], capacity: Capacity) -> Mapping[str, Grant]:
    """Which demands can be met, by key: shrinking ones always, then 0 to 1, then growth.

    Those who wake go in the order given, and nodes of idle versions are taken away for them if that helps.
    Growth goes one node at a time, to the version with the least part of what it wants.
    """
    shares = _Shares(demands, capacity)
    for demand in demands:
        if demand.wanted and not demand.nodes:
            shares.wake(demand)
    shares.grow(demands)
    return {demand.key: shares.grant(demand) for demand in demands}


class _Shares:
    """What is left while it is shared out, and what each version has got so far."""

    def __init__(self, demands: Sequence[Demand], capacity: Capacity) -> None:
        self._granted = {demand.key: min(demand.nodes, demand.wanted) for demand in demands}
        self._reasons: dict[str, str] = {}
        self._short: set[str] = set()
        self._limit = math.inf if capacity.nodes is None else capacity.nodes
        self._places = self._limit - sum(self._granted.values())
        self._free = capacity.free
        # What shrinks gives its memory back when its nodes have ended, not before.
        self._coming = capacity.returning + sum(
            _returned(demand, demand.nodes - self._granted[demand.key]) for demand in demands
        )
        idle = [one for one in demands if not one.busy and self._granted[one.key] > one.floor]
        self._idle = sorted(idle, key=lambda one: one.idle_since)

    def grant(self, demand: Demand) -> Grant:
        """What a version gets in the end."""
        key = demand.key
        return Grant(nodes=self._granted[key], reason=self._reasons.get(key, ""), short=key in self._short)

    def wake(self, demand: Demand) -> None:
        """Give a version its first node, or make room for it where that helps."""
        if self._start(demand):
            return
        key, lack = demand.key, self._lack(demand)
        victims = self._fewest(demand.memory - self._free - self._coming, 1 - self._places)
        if victims is None:
            # It keeps nothing from the others: they can use what is too little for this one.
            self._short.add(key)
            idle = "too little" if self._idle else "nothing"
            self._reasons[key] = f"not enough {lack}, and {idle} idle to stop"
            return
        for victim in victims:
            self._stop(victim, demand)
        if not self._start(demand):
            self._reserve(demand)
            stopping = f"; stopping {', '.join(map(_title, victims))}" if victims else ""
            self._reasons[key] = f"waits for {lack}{stopping}"

    def grow(self, demands: Sequence[Demand]) -> None:
        """Give more nodes to versions that have some; nothing is taken away for that."""
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
            if not self._start(demand):
                self._reasons[key] = (
                    f"{self._granted[key]} of {wanted} nodes: not enough {self._lack(demand)}"
                )
            elif self._granted[key] < wanted:
                heapq.heappush(queue, (self._granted[key] / wanted, order))

    def _start(self, demand: Demand) -> bool:
        """One more node, if it fits."""
        if demand.memory > self._free or self._places < 1:
            return False
        self._granted[demand.key] += 1
        self._free -= demand.memory
        self._places -= 1
        return True

    def _reserve(self, demand: Demand) -> None:
        """Keep room for a node that cannot start yet: of what is on its way, and else of what is free."""
        coming = min(self._coming, demand.memory)
        self._coming -= coming
        self._free -= demand.memory - coming
        self._places -= 1

    def _stop(self, victim: Demand, needy: Demand) -> None:
        """Take an idle version's nodes away, down to its floor."""
        nodes = self._above_floor(victim)
        self._idle.remove(victim)
        self._granted[victim.key] -= nodes
        self._coming += _returned(victim, nodes)
        self._places += nodes
        self._reasons[victim.key] = f"idle, and stopped to make room for {_title(needy)}"

    def _fewest(self, memory: int, places: float) -> list[Demand] | None:
        """Idle versions that give back so much together, none of them in vain; None if all are too few."""
        chosen = []
        for one in self._idle:
            if memory <= 0 and places <= 0:
                break
            chosen.append(one)
            memory -= _returned(one, self._above_floor(one))
            places -= self._above_floor(one)
        if memory > 0 or places > 0:
            return None
        for one in reversed(chosen):
            nodes = self._above_floor(one)
            if memory + _returned(one, nodes) <= 0 and places + nodes <= 0:
                chosen.remove(one)
                memory += _returned(one, nodes)
                places += nodes
        return chosen

    def _above_floor(self, demand: Demand) -> int:
        return self._granted[demand.key] - demand.floor

    def _lack(self, demand: Demand) -> str:
        """What keeps a node from starting, with the numbers."""
        if demand.memory <= self._free:
            return f"nodes: all {self._limit:g} are taken"
        coming = f", {_mebibytes(self._coming)} on the way" if self._coming else ""
        return f"memory: {_mebibytes(demand.memory)} needed, {_mebibytes(max(0, self._free))} free{coming}"


def _returned(demand: Demand, nodes: int) -> int:
    """The bytes that so many nodes give back."""
    return nodes * (demand.memory if demand.releases is None else demand.releases)


def _title(demand: Demand) -> str:
    return demand.title or demand.key


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
