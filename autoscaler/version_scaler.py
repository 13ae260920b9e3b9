"""The autoscaler's state of one version: its load, the starts of its nodes, its events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoscaler.activator import StartEstimate
from autoscaler.decision import Observation, ScalingSpec, ScalingState
from autoscaler.moving_average import ConcurrencyMeter, CounterHistory
from autoscaler.pools import Node, NodeSpec, NodeState

# Crashes at start in a row after which waiting requests fail; until then nodes are started again.
_MOST_TRIES = 3
_FIRST_DELAY, _LONGEST_DELAY, _MOST_DOUBLINGS = 1.0, 60.0, 10
# Seconds until the next try where the machine was short of a resource.
_SHORTAGE_DELAY = 1.0
# Seconds. A node that dies sooner after it was ready, and unused, counts as one that could not start.
_MIN_LIFE_SECONDS = 10.0
# Lists: an empty deque takes ten times the memory, and most versions sleep.
_KEPT_EVENTS, _KEPT_STARTS = 50, 8


@dataclass(frozen=True, slots=True)
class ScalingEvent:
    """A scaling decision or failure: `at` in seconds since the epoch, nodes wanted, why."""

    at: float
    nodes: int
    reason: str


# Gets each event of a version. It must not block or raise.
ScalingEventListener = Callable[[NodeSpec, ScalingEvent], None]


def ignore_event(_: NodeSpec, __: ScalingEvent) -> None:
    pass


@dataclass(slots=True)
class Refusal:
    """Requests refused for the same reason: when last, how many, why."""

    at: float
    count: int
    reason: str


@dataclass(slots=True)
class StartFailures:
    """Consecutive failed starts of nodes; the more, the longer until the next try.

    `permanent` once requests should not wait any more; `next_try` is on the autoscaler's clock. `shortage` is
    what the machine was short of at the last try, which counts as no failure.
    """

    count: int = 0
    reason: str = ""
    permanent: bool = False
    next_try: float = 0.0
    shortage: str = ""

    def add(self, reason: str, now: float, *, permanent: bool = False) -> None:
        """Count a failure. The first crash is tried again at once: it may have been an operator's `kill`."""
        self.count += 1
        self.reason, self.shortage = reason, ""
        self.permanent = permanent or self.count >= _MOST_TRIES
        delays = min(self.count if permanent else self.count - 1, _MOST_DOUBLINGS)
        self.next_try = now + (min(_FIRST_DELAY * 2 ** (delays - 1), _LONGEST_DELAY) if delays else 0.0)

    def add_shortage(self, reason: str, now: float) -> None:
        """The machine was short of a resource: waiting requests go on waiting, and the next try is soon."""
        self.shortage = reason
        self.next_try = max(self.next_try, now + _SHORTAGE_DELAY)

    def reset_backoff(self) -> None:
        """A node became ready; if it does not last either, the count goes on."""
        self.permanent, self.next_try, self.shortage = False, 0.0, ""

    def is_blocked(self, now: float) -> bool:
        return now < self.next_try

    def retry_delay(self, now: float) -> float:
        return max(0.0, self.next_try - now)


@dataclass(slots=True, eq=False)
class VersionScaler:
    """The scaling state of one version. Times are on the autoscaler's clock, in seconds; memory in bytes.

    `since` is the autoscaler's start, `memory` what one node takes as far as is known. `crashed_nodes` ready
    nodes have crashed and are to be replaced; `wake_requested`: a request needed a node since the last round.
    `shortage_reason` is why fewer nodes were granted than wanted, `missing_nodes` how many fewer.
    `hung_nodes` were killed because they hung. `observation` is the last one.
    """

    spec: NodeSpec
    scaling: ScalingSpec
    meter: ConcurrencyMeter
    since: float
    memory: int
    state: ScalingState = field(default_factory=ScalingState)
    starts: list[tuple[bool, float]] = field(default_factory=list)
    failures: StartFailures = field(default_factory=StartFailures)
    events: list[ScalingEvent] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    desired: int = 0
    reason: str = "asleep: no request since the server started"
    shortage_reason: str = ""
    missing_nodes: int = 0
    crashed_nodes: int = 0
    wake_requested: bool = False
    wakeups: dict[str, int] = field(default_factory=dict)
    hung_nodes: int = 0
    observation: Observation | None = None
    on_event: ScalingEventListener = ignore_event
    _load_history: CounterHistory = field(init=False)
    _cpu_histories: dict[str, CounterHistory] = field(default_factory=dict)
    _observed_at: float = field(init=False)
    _wake_pending: bool = False
    _ended_seconds: float = 0.0
    _idle_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._load_history = CounterHistory(self.since, self.scaling.stable_window)
        self._observed_at = self.since

    # ---- observations

    @property
    def floor(self) -> int:
        """The least number of nodes, whatever the traffic."""
        exact = self.scaling.exact_nodes
        return self.scaling.min_nodes if exact is None else exact

    def observe(
        self, nodes: Sequence[Node], cpu_seconds: Callable[[Node], float | None], now: float
    ) -> Observation:
        """The input of `decide_node_count`. Nodes that crashed count as starting: they are replaced.

        `cpu_seconds` returns the CPU time of a node since its start.
        """
        ready = sum(node.state is NodeState.READY for node in nodes)
        starting = sum(node.state is NodeState.STARTING for node in nodes) + self.crashed_nodes
        requests = max(self.meter.level, int(self.wake_requested))
        self.crashed_nodes, self.wake_requested = 0, False
        integral = self.meter.integral_at(now)
        self._load_history.sample(now, integral)
        self._idle_seconds += sum(
            now - max(self._observed_at, node.ready_at)
            for node in nodes
            if node.state is NodeState.READY and not node.in_flight and node.ready_at is not None
        )
        self._observed_at = now
        self.observation = observation = Observation(
            ready=ready,
            starting=starting,
            requests=requests,
            stable=self._load_history.average_rate(now, integral, self.scaling.stable_window),
            panic=self._load_history.average_rate(now, integral, self.scaling.panic_window),
            idle_since=self.idle_since(nodes),
            settled=self._load_history.covers_window(now, self.scaling.stable_window),
            cpu=self._cpu_share(nodes, cpu_seconds, now) if self.scaling.cpu_target is not None else None,
        )
        return observation

    def _cpu_share(
        self, nodes: Sequence[Node], cpu_seconds: Callable[[Node], float | None], now: float
    ) -> float | None:
        """The part of a core that a ready node used on average, over the stable window at most."""
        shares = []
        for node in nodes:
            used = cpu_seconds(node)
            if node.state is NodeState.READY and node.ready_at is not None and used is not None:
                history = self._cpu_histories.setdefault(node.id, CounterHistory(node.ready_at))
                history.sample(now, used)
                window = min(self.scaling.stable_window, now - node.ready_at)
                shares.append(history.average_rate(now, used, window) if window > 0 else 0.0)
        return sum(shares) / len(shares) if shares else None

    def idle_since(self, nodes: Sequence[Node]) -> float:
        """The latest of: a request's end, a node's becoming ready, the autoscaler's start."""
        readied = (node.ready_at for node in nodes if node.ready_at is not None)
        return max(self.since, self.meter.last_end, *readied)

    def memory_per_node(self, nodes: Sequence[Node]) -> int:
        measured = [node.memory.private for node in nodes if node.memory is not None]
        if measured:
            self.memory = max(measured)
        return self.memory

    def start_seconds(self, forked: bool) -> float | None:
        """The median of the last starts, forked or cold; None when unknown."""
        alike = self._similar_starts(forked)
        return statistics.median(alike) if alike else None

    def quickest_start(self, forked: bool) -> float | None:
        """The shortest of the last starts: the others may have waited for a busy machine, or for a fault."""
        return min(self._similar_starts(forked), default=None)

    def _similar_starts(self, forked: bool) -> list[float]:
        return [seconds for how, seconds in self.starts if how == forked]

    def estimate_start(self, nodes: Sequence[Node], forks: bool, now: float) -> StartEstimate:
        """The start time that a request without a ready node can expect; `nodes` are starting or ready."""
        if not nodes and (short := self.shortage_reason or self.failures.shortage):
            return StartEstimate(None, f"No node of {self.spec.title} can start now: {short.rstrip('.')}.")
        first = next((node for node in nodes if node.state is NodeState.STARTING), None)
        # A node without a process may wait for a pilot that is starting.
        seconds = self.quickest_start(forks if first is None or first.pid is None else first.forked)
        if seconds is None:
            return StartEstimate(None, f"A node of {self.spec.title} is starting.")
        left = seconds + self.failures.retry_delay(now) if first is None else seconds - (now - first.asked_at)
        usual = (
            f"takes about {seconds:.1f} s" if left >= 0 else f"takes longer than {seconds:.1f} s this time"
        )
        return StartEstimate(max(0.0, left), f"A node of {self.spec.title} is starting; it {usual}.")

    def node_seconds(self, nodes: Sequence[Node], now: float) -> float:
        """The lifetimes of all nodes added up, from their start to their end."""
        return self._ended_seconds + sum(now - node.asked_at for node in nodes)

    @property
    def idle_node_seconds(self) -> float:
        """The part of the node-seconds in which ready nodes had no request, as seen at each round."""
        return self._idle_seconds

    # ---- records

    def record_decision(self, nodes: int, reason: str, present: int, *, short: bool = False) -> bool:
        """Store a decision made while `present` nodes were there; returns whether it differs from the last.

        `short` says that it is less than was wanted, which `reason` explains.
        """
        if nodes and not present:
            self._wake_pending = True
        # Reasons that differ in the amount of free memory alone are no news.
        news = nodes != self.desired or short != bool(self.shortage_reason)
        self.desired, self.reason, self.shortage_reason = nodes, reason, reason if short else ""
        if news:
            self._add_event(nodes, reason)
        return news

    def record_ready(self, node: Node) -> None:
        if node.ready_at is not None:
            self.starts.append((node.forked, node.ready_at - node.asked_at - node.once_seconds))
            del self.starts[:-_KEPT_STARTS]
        self.failures.reset_backoff()
        self._end_wakeup("ready")

    def record_start_failure(self, reason: str, now: float, *, starved: bool) -> None:
        """No process could be started; `starved`: the machine was short of a resource."""
        self._add_event(self.desired, reason)
        if starved:
            self.failures.add_shortage(reason, now)
            return
        self.failures.add(reason, now, permanent=True)
        self._end_wakeup("failed")

    def record_end(self, node: Node, now: float) -> None:
        self._ended_seconds += now - node.asked_at
        self._cpu_histories.pop(node.id, None)

    def record_crash(self, node: Node, now: float) -> None:
        self._add_event(self.desired, f"node {node.id} is lost: {node.reason}")
        self.hung_nodes += node.hung
        if node.starved:
            self.failures.add_shortage(node.reason, now)
        elif node.ready_at is None:
            self.failures.add(node.reason, now, permanent=node.permanent_failure)
        else:
            self.crashed_nodes += 1
            if not node.used and now - node.ready_at < _MIN_LIFE_SECONDS:
                self.failures.add(node.reason, now)
        if self.failures.permanent:
            self._end_wakeup("failed")

    def forget_failures_if_stable(self, nodes: Sequence[Node], now: float) -> None:
        if self.failures.count and any(
            node.state is NodeState.READY
            and node.ready_at is not None
            and (node.used or now - node.ready_at > _MIN_LIFE_SECONDS)
            for node in nodes
        ):
            self.failures = StartFailures()

    def record_refusal(self, reason: str) -> None:
        last = self.refusals[-1] if self.refusals else None
        if last is not None and last.reason == reason:
            last.at, last.count = time.time(), last.count + 1
        else:
            self.refusals.append(Refusal(time.time(), 1, reason))
            del self.refusals[:-_KEPT_EVENTS]

    def _add_event(self, nodes: int, reason: str) -> None:
        event = ScalingEvent(time.time(), nodes, reason)
        self.events.append(event)
        del self.events[:-_KEPT_EVENTS]
        self.on_event(self.spec, event)

    def _end_wakeup(self, result: str) -> None:
        if self._wake_pending:
            self._wake_pending = False
            self.wakeups[result] = self.wakeups.get(result, 0) + 1
