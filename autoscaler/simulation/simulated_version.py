"""One simulated version: its requests, its nodes, and what the autoscaler is to know of them.

Between two decisions versions do not touch each other. So each has its own events and catches up when it is
looked at; that is quicker than one queue of events for all.
"""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
from collections import deque
from collections.abc import Iterator

from autoscaler.decision import RESERVE, Demand, Observation, ScalingSpec, ScalingState
from autoscaler.moving_average import ConcurrencyMeter, CounterHistory
from autoscaler.simulation.result import SimulationConditions
from autoscaler.simulation.simulated_nodes import ReplayStats, SimulatedFleet, SimulatedNode
from autoscaler.simulation.traces import TrafficTrace


class SimulatedVersion:
    """All times are in seconds from the start of the replay; they only go forward.

    `state` and `short` (it was granted fewer nodes than it wanted) are the decider's to change.
    """

    def __init__(
        self,
        trace: TrafficTrace,
        policy: ScalingSpec,
        conditions: SimulationConditions,
        starts: Iterator[float],
        tally: ReplayStats,
    ) -> None:
        self.key = trace.key
        self.floor = policy.min_nodes if policy.exact_nodes is None else policy.exact_nodes
        self.state = ScalingState()
        self.short = False
        self.fleet = SimulatedFleet(starts, tally)
        self._policy = policy
        self._conditions = conditions
        self._service = conditions.service_seconds
        self._request_timeout = conditions.request_timeout
        self._node_concurrency = conditions.node_concurrency
        self._usual_start = statistics.median(conditions.start_seconds)
        self._stats = tally
        self._meter = ConcurrencyMeter(0.0)
        self._history = CounterHistory(0.0)
        self._arrivals = trace.iter_arrivals()
        self.next_arrival = next(self._arrivals, math.inf)
        # When those came that found no node with room, the first first; `_watched`: an event will look
        # whether its patience has ended.
        self._waiting: deque[float] = deque()
        self._expiry_scheduled = False
        # Whether a request came that could not wait for a node, and whether any was seen at the last look.
        self._refused_as_late = self._had_requests = False
        # (when, order, node): a node is ready, or done with a request. None: somebody's patience may end.
        self._events: list[tuple[float, int, SimulatedNode | None]] = []
        self._order = itertools.count()

    # ---- what the autoscaler sees

    @property
    def requests(self) -> int:
        """Requests that run or wait."""
        return self._meter.level

    @property
    def is_asleep(self) -> bool:
        """Whether there is neither a node nor a request."""
        return not (self.fleet.count or self.fleet.draining or self._meter.level or self.floor)

    @property
    def is_settled(self) -> bool:
        """Whether nothing will come, and nothing is left but nodes that stay."""
        busy = self.next_arrival < math.inf or self._meter.level or self.fleet.draining
        return not busy and self.fleet.count <= self.floor

    def observe(self, now: float) -> Observation:
        """What `decide` is to know."""
        policy, integral = self._policy, self._meter.integral_at(now)
        self._history.sample(now, integral)
        requests = max(self._meter.level, int(self._refused_as_late))
        self._had_requests, self._refused_as_late = bool(requests), False
        return Observation(
            ready=len(self.fleet.ready),
            starting=len(self.fleet.starting),
            requests=requests,
            stable=self._history.average_rate(now, integral, policy.stable_window),
            panic=self._history.average_rate(now, integral, policy.panic_window),
            idle_since=self._idle_since(),
            settled=self._history.covers_window(now, policy.stable_window),
        )

    def build_demand(self, wanted: int) -> Demand:
        """What `allocate` is to know."""
        return Demand(
            key=self.key,
            wanted=wanted,
            nodes=self.fleet.count,
            memory=int(self._conditions.node_bytes * RESERVE),
            releases=self._conditions.node_bytes,
            floor=self.floor,
            busy=self._meter.level > 0 or bool(self.fleet.starting),
            idle_since=self._idle_since(),
        )

    def _idle_since(self) -> float:
        return max(0.0, self._meter.last_end, *[node.ready_at for node in self.fleet.ready])

    # ---- what is decided

    def scale(self, count: int, now: float) -> list[SimulatedNode]:
        """Start or drain nodes until so many are ready or starting; those that go."""
        fleet = self.fleet
        if count and not fleet.count and self._had_requests:
            self._stats.cold_starts += 1
        for _ in range(fleet.count, count):
            node = fleet.start_node(now)
            self._schedule_event(node.ready_at, node)
        return fleet.shrink(count, now)

    def end_replay(self, now: float) -> None:
        """The replay ends: whoever still waits for an answer gets none."""
        self._stats.timed_out += self._meter.level
        self.fleet.remove_all(now)

    # ---- what happens by itself

    def advance(self, until: float) -> None:
        """Let everything happen that does, up to and including this moment."""
        events, arrival = self._events, self.next_arrival
        while True:
            if events and events[0][0] <= arrival:
                if events[0][0] > until:
                    break
                now, _, node = heapq.heappop(events)
                if node is None:
                    self._expire_waiting(now)
                elif node.inside:
                    self._complete_request(node, now)
                elif not node.gone:
                    self.fleet.mark_ready(node)
                    self._serve_waiting(now)
            elif arrival <= until:
                self._handle_arrival(arrival)
                arrival = next(self._arrivals, math.inf)
            else:
                break
        self.next_arrival = arrival

    def _schedule_event(self, when: float, node: SimulatedNode | None) -> None:
        heapq.heappush(self._events, (when, next(self._order), node))

    def _handle_arrival(self, now: float) -> None:
        self._stats.requests += 1
        self._meter.change(1, now)
        node = self.fleet.pick_node(self._node_concurrency)
        if node is None:
            self._queue_or_refuse(now)
        else:
            self._enter_node(node, now, now)

    def _queue_or_refuse(self, now: float) -> None:
        """No node has room: wait, if that may help."""
        full = len(self._waiting) >= self._conditions.queue_requests
        late = not self.fleet.ready and self._time_to_ready(now) > self._request_timeout
        if full or late:
            self._refused_as_late |= late
            self._stats.refused += 1
            self._meter.change(-1, now)
            return
        self._stats.held += 1
        self._waiting.append(now)
        if not self._expiry_scheduled:
            self._expiry_scheduled = True
            self._schedule_event(now + self._request_timeout, None)

    def _time_to_ready(self, now: float) -> float:
        """How long it probably takes until the first node is ready, in seconds."""
        if self.short:
            return 0.0  # nobody knows
        starting = self.fleet.starting
        return starting[0].asked_at - now + self._usual_start if starting else self._usual_start

    def _serve_waiting(self, now: float) -> None:
        while self._waiting and (node := self.fleet.pick_node(self._node_concurrency)) is not None:
            self._enter_node(node, self._waiting.popleft(), now)

    def _enter_node(self, node: SimulatedNode, arrived: float, now: float) -> None:
        node.inside.append(arrived)
        if len(node.inside) == 1:
            self._begin_request(node, now)

    def _begin_request(self, node: SimulatedNode, now: float) -> None:
        """Begin with the first request inside."""
        self._stats.computed += 1
        waited = now - node.inside[0]
        if waited:
            self._stats.waits.append(waited)
        node.free_at = now + self._service
        self._schedule_event(node.free_at, node)

    def _complete_request(self, node: SimulatedNode, now: float) -> None:
        """A request is done; the next one follows that still has time."""
        inside, patience = node.inside, self._request_timeout
        if inside[0] + patience < now:
            self._time_out_first(inside, now)
        else:
            inside.popleft()
            self._stats.answered += 1
            self._meter.change(-1, now)
        # Their time may have run out a little earlier, since the last completion.
        while inside and inside[0] + patience <= now:
            self._time_out_first(inside, now)
        if inside:
            self._begin_request(node, now)
        elif node.draining:
            self.fleet.remove_drained(node, now)
        if self._waiting and not node.draining:
            self._serve_waiting(now)

    def _expire_waiting(self, now: float) -> None:
        """Those who have waited too long leave; the next in the queue is watched."""
        waiting = self._waiting
        while waiting and waiting[0] + self._request_timeout <= now:
            self._time_out_first(waiting, now)
        self._expiry_scheduled = bool(waiting)
        if waiting:
            self._schedule_event(waiting[0] + self._request_timeout, None)

    def _time_out_first(self, queue: deque[float], now: float) -> None:
        queue.popleft()
        self._stats.timed_out += 1
        self._meter.change(-1, now)
