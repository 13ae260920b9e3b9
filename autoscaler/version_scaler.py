"""What the autoscaler keeps of one version between two looks: its load, its nodes' starts, its story."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoscaler.activator import StartEstimate
from autoscaler.decision import Observation, ScalingSpec, ScalingState
from autoscaler.moving_average import ConcurrencyMeter, CounterHistory
from autoscaler.pools import Node, NodeSpec, NodeState

# Crashes at start in a row after which waiting requests are told; until then they are worth another try.
_MOST_TRIES = 3
_FIRST_DELAY, _LONGEST_DELAY, _MOST_DOUBLINGS = 1.0, 60.0, 10
# Seconds until the next try where the machine was short of something: that may be over any moment.
_SHORTAGE_DELAY = 1.0
# A node that dies sooner than this after it was ready, and unused, counts as one that could not start.
_MIN_LIFE_SECONDS = 10.0
# Lists: an empty deque takes ten times the memory, and most versions sleep.
_KEPT_EVENTS, _KEPT_STARTS = 50, 8


@dataclass(frozen=True, slots=True)
class ScalingEvent:
    """Something worth telling of a version: `at` in seconds since the epoch, nodes wanted, why."""

    at: float
    nodes: int
    reason: str


@dataclass(slots=True)
class Refusal:
    """Requests that were not served for the same reason: when last, how many, why."""

    at: float
    count: int
    reason: str


@dataclass(slots=True)
class StartFailures:
    """Nodes that could not start, in a row; the more, the longer until the next try.

    `final` once it is no use to let requests wait; `next_try` is on the autoscaler's clock. `shortage` is
    what the machine was short of at the last try: that counts as no failure.
    """

    count: int = 0
    reason: str = ""
    permanent: bool = False
    next_try: float = 0.0
    shortage: str = ""

    def add(self, reason: str, now: float, *, permanent: bool = False) -> None:
        """One more. The first crash is tried again at once: it may have been somebody's `kill`."""
        self.count += 1
        self.reason, self.shortage = reason, ""
        self.permanent = permanent or self.count >= _MOST_TRIES
        delays = min(self.count if permanent else self.count - 1, _MOST_DOUBLINGS)
        self.next_try = now + (min(_FIRST_DELAY * 2 ** (delays - 1), _LONGEST_DELAY) if delays else 0.0)

    def add_shortage(self, reason: str, now: float) -> None:
        """The machine was short of something: those who wait go on waiting, and it is tried again soon."""
        self.shortage = reason
        self.next_try = max(self.next_try, now + _SHORTAGE_DELAY)

    def reset_backoff(self) -> None:
        """A node became ready; if it does not last either, the count goes on."""
        self.permanent, self.next_try, self.shortage = False, 0.0, ""

    def is_blocked(self, now: float) -> bool:
        """Whether it is too early for the next try."""
        return now < self.next_try

    def retry_delay(self, now: float) -> float:
        """Seconds until the next try."""
        return max(0.0, self.next_try - now)


@dataclass(slots=True, eq=False)
class VersionScaler:
    """One version. Times are on the autoscaler's clock, in seconds; memory in bytes.

    `since` is the autoscaler's start, `memory` what one node takes as far as is known, `lost` how many
    ready nodes have crashed and are to be replaced, `asked` whether a request asked for a node since the last
    look, `short` why fewer nodes were granted than wanted, `hung` how many nodes
    were killed because they hung.
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
    crashed_nodes: int = 0
    wake_requested: bool = False
    wakeups: dict[str, int] = field(default_factory=dict)
    hung_nodes: int = 0
    _load_history: CounterHistory = field(init=False)
    _cpu_histories: dict[str, CounterHistory] = field(default_factory=dict)
    _observed_at: float = field(init=False)
    _wake_pending: bool = False
    _ended_seconds: float = 0.0
    _idle_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._load_history = CounterHistory(self.since, self.scaling.stable_window)
        self._observed_at = self.since

    # ---- seeing

    @property
    def floor(self) -> int:
        """Nodes that are there whatever the traffic."""
        exact = self.scaling.exact_nodes
        return self.scaling.min_nodes if exact is None else exact

    def observe(
        self, nodes: Sequence[Node], cpu_seconds: Callable[[Node], float | None], now: float
    ) -> Observation:
        """What `decide` is to know. Nodes that crashed count as starting: they are replaced.

        `cpu_seconds` tells what a node has computed since its start.
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
        return Observation(
            ready=ready,
            starting=starting,
            requests=requests,
            stable=self._load_history.average_rate(now, integral, self.scaling.stable_window),
            panic=self._load_history.average_rate(now, integral, self.scaling.panic_window),
            idle_since=self.idle_since(nodes),
            settled=self._load_history.covers_window(now, self.scaling.stable_window),
            cpu=self._cpu_share(nodes, cpu_seconds, now) if self.scaling.cpu_target is not None else None,
        )

    def _cpu_share(
        self, nodes: Sequence[Node], cpu_seconds: Callable[[Node], float | None], now: float
    ) -> float | None:
        """The part of a core that a ready node used on average, no longer back than the stable window."""
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
        """Since when nothing has happened: no request ended, no node became ready, no autoscaler started."""
        readied = (node.ready_at for node in nodes if node.ready_at is not None)
        return max(self.since, self.meter.last_end, *readied)

    def memory_per_node(self, nodes: Sequence[Node]) -> int:
        """The memory that one node takes, as last measured."""
        measured = [node.memory.private for node in nodes if node.memory is not None]
        if measured:
            self.memory = max(measured)
        return self.memory

    def start_seconds(self, forked: bool) -> float | None:
        """How long a node takes to start, forked or cold, going by the last ones; None when unknown."""
        alike = self._similar_starts(forked)
        return statistics.median(alike) if alike else None

    def quickest_start(self, forked: bool) -> float | None:
        """What the next start takes at least: others may have waited for a busy machine, or for a fault."""
        return min(self._similar_starts(forked), default=None)

    def _similar_starts(self, forked: bool) -> list[float]:
        return [seconds for how, seconds in self.starts if how == forked]

    def estimate_start(self, nodes: Sequence[Node], forks: bool, now: float) -> StartEstimate:
        """What a request that finds no ready node can expect; `nodes` are there or starting."""
        if not nodes and (short := self.shortage_reason or self.failures.shortage):
            return StartEstimate(None, f"No node of {self.spec.title} can start now: {short.rstrip('.')}.")
        first = next((node for node in nodes if node.state is NodeState.STARTING), None)
        # One without a process may wait for a pilot that is being lit.
        seconds = self.quickest_start(forks if first is None or first.pid is None else first.forked)
        if seconds is None:
            return StartEstimate(None, f"A node of {self.spec.title} is starting.")
        left = seconds + self.failures.retry_delay(now) if first is None else seconds - (now - first.asked_at)
        usual = (
            f"takes about {seconds:.1f} s" if left >= 0 else f"takes longer than {seconds:.1f} s this time"
        )
        return StartEstimate(max(0.0, left), f"A node of {self.spec.title} is starting; it {usual}.")

    def node_seconds(self, nodes: Sequence[Node], now: float) -> float:
        """Seconds that nodes have lived, all together, from their start to their end."""
        return self._ended_seconds + sum(now - node.asked_at for node in nodes)

    @property
    def idle_seconds(self) -> float:
        """The part of the node-seconds in which ready nodes had nothing to do, as seen at each look."""
        return self._idle_seconds

    # ---- remembering

    def record_decision(self, nodes: int, reason: str, present: int, *, short: bool = False) -> bool:
        """Keep what was decided while `present` nodes were there; tells whether it is news.

        `short` says that it is less than was wanted, which `reason` explains.
        """
        if nodes and not present:
            self._wake_pending = True
        # Free memory is another number every time: that alone is no news.
        news = nodes != self.desired or short != bool(self.shortage_reason)
        self.desired, self.reason, self.shortage_reason = nodes, reason, reason if short else ""
        if news:
            self._add_event(nodes, reason)
        return news

    def record_ready(self, node: Node) -> None:
        """A node became ready."""
        if node.ready_at is not None:
            self.starts.append((node.forked, node.ready_at - node.asked_at - node.once_seconds))
            del self.starts[:-_KEPT_STARTS]
        self.failures.reset_backoff()
        self._end_wakeup("ready")

    def record_start_failure(self, reason: str, now: float, *, starved: bool) -> None:
        """No process could be started; `starved` says that the machine was short of something."""
        self._add_event(self.desired, reason)
        if starved:
            self.failures.add_shortage(reason, now)
            return
        self.failures.add(reason, now, permanent=True)
        self._end_wakeup("failed")

    def record_end(self, node: Node, now: float) -> None:
        """A node is gone, whyever."""
        self._ended_seconds += now - node.asked_at
        self._cpu_histories.pop(node.id, None)

    def record_crash(self, node: Node, now: float) -> None:
        """A node is gone that nobody had asked to go."""
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
        """Forget failures once a node has lasted."""
        if self.failures.count and any(
            node.state is NodeState.READY
            and node.ready_at is not None
            and (node.used or now - node.ready_at > _MIN_LIFE_SECONDS)
            for node in nodes
        ):
            self.failures = StartFailures()

    def record_refusal(self, reason: str) -> None:
        """Note that a request was not served, and why."""
        last = self.refusals[-1] if self.refusals else None
        if last is not None and last.reason == reason:
            last.at, last.count = time.time(), last.count + 1
        else:
            self.refusals.append(Refusal(time.time(), 1, reason))
            del self.refusals[:-_KEPT_EVENTS]

    def _add_event(self, nodes: int, reason: str) -> None:
        self.events.append(ScalingEvent(time.time(), nodes, reason))
        del self.events[:-_KEPT_EVENTS]

    def _end_wakeup(self, result: str) -> None:
        if self._wake_pending:
            self._wake_pending = False
            self.wakeups[result] = self.wakeups.get(result, 0) + 1
