"""What the decisions lead to over hours, with nodes that take time to start."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.decision import Observation, ScalingSpec, ScalingState, decide_node_count
from autoscaler.moving_average import ConcurrencyMeter, CounterHistory
from tests.autoscaler.scaling_specs import SPEC, specs


class World:
    """One version, with nodes that take time to start, under requests that take time to run.

    Requests are counted from their arrival; they begin to run when a node is ready. No more nodes are
    granted than `most`.
    """

    def __init__(self, spec: ScalingSpec, *, start_seconds: float, tick: float, most: int = 99) -> None:
        self.spec, self.start_seconds, self.tick, self.most = spec, start_seconds, tick, most
        self.now = 0.0
        self.ready: list[float] = []  # when each became ready
        self.starting: list[float] = []  # when each will be
        self.waiting: list[float] = []  # how long each will run
        self.sleeps = 0
        self.state = ScalingState()
        self.meter, self.history = ConcurrencyMeter(), CounterHistory(0.0, spec.stable_window)
        self.last_idle_since = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, str, float]] = []
        self._plan(tick, "look")

    def request(self, at: float, seconds: float) -> None:
        """One comes at a moment still to come."""
        self._plan(at, "arrive", seconds)

    def lose(self, at: float) -> None:
        """A ready node, if there is one, is killed."""
        self._plan(at, "lose")

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._events[0][0] <= until:
            self.now, _, what, seconds = heapq.heappop(self._events)
            getattr(self, f"_{what}")(seconds)
        self.now = until

    @property
    def nodes(self) -> int:
        return len(self.ready) + len(self.starting)

    @property
    def idle_since(self) -> float:
        return max(self.meter.last_end, self.last_idle_since)

    def _plan(self, at: float, what: str, seconds: float = 0.0) -> None:
        heapq.heappush(self._events, (at, next(self._order), what, seconds))

    def _look(self, _: float) -> None:
        self._decide()
        self._plan(self.now + self.tick, "look")

    def _arrive(self, seconds: float) -> None:
        self.meter.change(1, self.now)
        self.waiting.append(seconds)
        if not self.nodes:
            self._decide()
        self._serve()

    def _wake(self, _: float) -> None:
        if self.now in self.starting:
            self.starting.remove(self.now)
            self.ready.append(self.now)
            self.last_idle_since = self.now
            self._serve()

    def _end(self, _: float) -> None:
        self.meter.change(-1, self.now)

    def _lose(self, _: float) -> None:
        del self.ready[:1]

    def _serve(self) -> None:
        while self.ready and self.waiting:
            self._plan(self.now + self.waiting.pop(), "end")

    def _decide(self) -> None:
        integral = self.meter.integral_at(self.now)
        self.history.sample(self.now, integral)
        observation = Observation(
            ready=len(self.ready),
            starting=len(self.starting),
            requests=self.meter.level,
            stable=self.history.average_rate(self.now, integral, self.spec.stable_window),
            panic=self.history.average_rate(self.now, integral, self.spec.panic_window),
            idle_since=self.idle_since,
            settled=self.history.covers_window(self.now, self.spec.stable_window),
        )
        decision = decide_node_count(self.spec, observation, self.state, self.now)
        self.state = decision.state
        if self.nodes and not decision.nodes:
            self.sleeps += 1
        for _ in range(min(decision.nodes, self.most) - self.nodes):
            self.starting.append(self.now + self.start_seconds)
            self._plan(self.now + self.start_seconds, "wake")
        del self.ready[: max(0, self.nodes - decision.nodes)]


@settings(max_examples=60)
@given(
    spec=specs(),
    idle_window=st.floats(2, 30),
    start_seconds=st.floats(0.1, 20),
    most=st.integers(1, 9),
    requests=st.lists(st.tuples(st.floats(0, 60), st.floats(0.01, 20)), min_size=1, max_size=60),
    losses=st.lists(st.floats(0, 120), max_size=9),
)
def test_idle_always_reaches_zero(
    spec: ScalingSpec,
    idle_window: float,
    start_seconds: float,
    most: int,
    requests: Sequence[tuple[float, float]],
    losses: Sequence[float],
) -> None:
    """Whatever happened before, all nodes go within one and a half idle windows of the last request.

    They are counted from its end; or from the last node's becoming ready, and none is asked for later than a
    panic window after that end.
    """
    spec = replace(spec, min_nodes=0, idle_window=idle_window)
    world = World(spec, start_seconds=start_seconds, tick=1.0, most=most)
    for at, seconds in requests:
        world.request(at, seconds)
    for at in losses:
        world.lose(at)
    world.run(until=60.0)
    while world.meter.level:
        world.run(until=world.now + 1.0)
    last_start = world.meter.last_end + spec.panic_window + world.tick
    world.run(until=last_start + start_seconds)
    assert not world.starting
    world.run(until=world.idle_since + 1.5 * idle_window + 1.001 * world.tick)

    assert world.nodes == 0


@settings(max_examples=30)
@given(st.lists(st.floats(0.95, 1.05), min_size=50, max_size=50), st.floats(0.1, 2.0))
def test_no_flapping_at_the_idle_window(gaps: Sequence[float], start_seconds: float) -> None:
    """Requests that come just before or after the nodes would go put the version to sleep once at most."""
    spec = replace(SPEC, idle_window=60.0)
    world = World(spec, start_seconds=start_seconds, tick=1.0)
    arrivals = list(itertools.accumulate(gap * spec.idle_window for gap in gaps))
    for at in arrivals:
        world.request(at, 0.1)
    world.run(until=arrivals[-1])
    assert world.sleeps <= 1

    world.run(until=arrivals[-1] + 100.0)
    assert world.nodes == 0


def test_traffic_at_twice_the_idle_window_sleeps_each_time() -> None:
    """The longer window is for traffic at the boundary only: it costs nobody else anything."""
    world = World(replace(SPEC, idle_window=60.0), start_seconds=0.2, tick=1.0)
    for number in range(1, 11):
        world.request(120.0 * number, 0.1)
    world.run(until=120.0 * 11)

    assert world.sleeps == 10


def test_a_steady_load_has_its_nodes_and_keeps_them() -> None:
    """Forty requests at a time, sixteen per node: three nodes within seconds, and never fewer."""
    world = World(SPEC, start_seconds=0.2, tick=1.0)
    for tenth in range(3000):
        for _ in range(4):
            world.request(10 + tenth / 10, 1.0)
    counts = []
    for second in range(20, 300, 5):
        world.run(until=float(second))
        counts.append(world.nodes)

    assert set(counts) == {3}
