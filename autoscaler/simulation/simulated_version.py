"""One simulated version: its requests, its nodes, and what the autoscaler observes of them.

Between two decisions versions are independent. So each has its own event queue and advances to the time of a
decision; that is faster than one event queue for all.
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
    """All times are in seconds from the start of the replay; they never go back.

    `state` and `short` (it was granted fewer nodes than it wanted) are set by the replay.
    """

    def __init__(
        self,
        trace: TrafficTrace,
        policy: ScalingSpec,
        conditions: SimulationConditions,
        starts: Iterator[float],
        stats: ReplayStats,
    ) -> None:
        self.key = trace.key
        self.floor = policy.min_nodes if policy.exact_nodes is None else policy.exact_nodes
        self.state = ScalingState()
        self.short = False
        self.fleet = SimulatedFleet(starts, stats)
        self._policy = policy
        self._conditions = conditions
        self._service = conditions.service_seconds
        self._request_timeout = conditions.request_timeout
        self._node_concurrency = conditions.node_concurrency
        self._usual_start = statistics.median(conditions.start_seconds)
        self._stats = stats
        self._meter = ConcurrencyMeter(0.0)
        self._history = CounterHistory(0.0)
        self._arrivals = trace.iter_arrivals()
        self.next_arrival = next(self._arrivals, math.inf)
        # Arrival times of waiting requests, oldest first; `_expiry_scheduled`: an event will check the first
        # for its timeout.
        self._waiting: deque[float] = deque()
        self._expiry_scheduled = False
        # Whether a request was refused as late, and whether there were requests at the last decision.
        self._refused_as_late = self._had_requests = False
        # (when, order, node): a node is ready, or done with a request. None: a waiting request may time out.
        self._events: list[tuple[float, int, SimulatedNode | None]] = []
        self._order = itertools.count()

    # ---- what the autoscaler observes

    @property
    def requests(self) -> int:
        return self._meter.level

    @property
    def is_asleep(self) -> bool:
        return not (self.fleet.count or self.fleet.draining or self._meter.level or self.floor)

    @property
    def is_settled(self) -> bool:
        """Whether no request will come, and none runs or waits."""
        busy = self.next_arrival < math.inf or self._meter.level or self.fleet.draining
        return not busy and self.fleet.count <= self.floor

    def observe(self, now: float) -> Observation:
        """The input of `decide_node_count`."""
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
        """The input of `allocate_nodes`."""
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

    # ---- scaling

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
        """Count requests that still wait for an answer as timed out."""
        self._stats.timed_out += self._meter.level
        self.fleet.record_remaining_nodes(now)

    # ---- events

    def advance(self, until: float) -> None:
        """Process all events up to and including this moment."""
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
        """The estimated time until the first node is ready, in seconds."""
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
        """Begin to compute the first request inside."""
        self._stats.computed += 1
        waited = now - node.inside[0]
        if waited:
            self._stats.waits.append(waited)
        node.free_at = now + self._service
        self._schedule_event(node.free_at, node)

    def _complete_request(self, node: SimulatedNode, now: float) -> None:
        """Complete a request, and begin the next one that has not timed out."""
        inside, timeout = node.inside, self._request_timeout
        if inside[0] + timeout < now:
            self._time_out_first(inside, now)
        else:
            inside.popleft()
            self._stats.answered += 1
            self._meter.change(-1, now)
        # Their time may have run out a little earlier, since the last completion.
        while inside and inside[0] + timeout <= now:
            self._time_out_first(inside, now)
        if inside:
            self._begin_request(node, now)
        elif node.draining:
            self.fleet.remove_drained(node, now)
        if self._waiting and not node.draining:
            self._serve_waiting(now)

    def _expire_waiting(self, now: float) -> None:
        """Time out requests that have waited too long, and schedule the next expiry."""
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
