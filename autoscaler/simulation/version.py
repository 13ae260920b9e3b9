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
from autoscaler.simulation.nodes import Fleet, Node, Tally
from autoscaler.simulation.result import Conditions
from autoscaler.simulation.traces import Trace
from autoscaler.windows import History, Meter


class Version:
    """All times are in seconds from the start of the replay; they only go forward.

    `state` and `short` (it was granted fewer nodes than it wanted) are the decider's to change.
    """

    def __init__(
        self,
        trace: Trace,
        policy: ScalingSpec,
        conditions: Conditions,
        starts: Iterator[float],
        tally: Tally,
    ) -> None:
        self.key = trace.key
        self.floor = policy.min_nodes if policy.exact_nodes is None else policy.exact_nodes
        self.state = ScalingState()
        self.short = False
        self.fleet = Fleet(starts, tally)
        self._policy = policy
        self._conditions = conditions
        self._service = conditions.service_seconds
        self._patience = conditions.request_timeout
        self._room = conditions.node_concurrency
        self._usual_start = statistics.median(conditions.start_seconds)
        self._tally = tally
        self._meter = Meter(0.0)
        self._history = History(0.0)
        self._arrivals = trace.arrivals()
        self.next_arrival = next(self._arrivals, math.inf)
        # When those came that found no node with room, the first first; `_watched`: an event will look
        # whether its patience has ended.
        self._waiting: deque[float] = deque()
        self._watched = False
        # Whether a request came that could not wait for a node, and whether any was seen at the last look.
        self._asked = self._wanted = False
        # (when, order, node): a node is ready, or done with a request. None: somebody's patience may end.
        self._events: list[tuple[float, int, Node | None]] = []
        self._order = itertools.count()

    # ---- what the autoscaler sees

    @property
    def requests(self) -> int:
        """Requests that run or wait."""
        return self._meter.level

    @property
    def asleep(self) -> bool:
        """Whether there is neither a node nor a request."""
        return not (self.fleet.count or self.fleet.draining or self._meter.level or self.floor)

    @property
    def resting(self) -> bool:
        """Whether nothing will come, and nothing is left but nodes that stay."""
        busy = self.next_arrival < math.inf or self._meter.level or self.fleet.draining
        return not busy and self.fleet.count <= self.floor

    def observe(self, now: float) -> Observation:
        """What `decide` is to know."""
        policy, integral = self._policy, self._meter.integral_at(now)
        self._history.sample(now, integral)
        requests = max(self._meter.level, int(self._asked))
        self._wanted, self._asked = bool(requests), False
        return Observation(
            ready=len(self.fleet.ready),
            starting=len(self.fleet.starting),
            requests=requests,
            stable=self._history.average(now, integral, policy.stable_window),
            panic=self._history.average(now, integral, policy.panic_window),
            idle_since=self._idle_since(),
            settled=self._history.settled(now, policy.stable_window),
        )

    def demand(self, wanted: int) -> Demand:
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

    def scale(self, count: int, now: float) -> list[Node]:
        """Start or drain nodes until so many are ready or starting; those that go."""
        fleet = self.fleet
        if count and not fleet.count and self._wanted:
            self._tally.cold_starts += 1
        for _ in range(fleet.count, count):
            node = fleet.start(now)
            self._note(node.ready_at, node)
        return fleet.shrink(count, now)

    def close(self, now: float) -> None:
        """The replay ends: whoever still waits for an answer gets none."""
        self._tally.timed_out += self._meter.level
        self.fleet.close(now)

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
                    self._lose_patience(now)
                elif node.inside:
                    self._complete(node, now)
                elif not node.gone:
                    self.fleet.become_ready(node)
                    self._grant(now)
            elif arrival <= until:
                self._arrive(arrival)
                arrival = next(self._arrivals, math.inf)
            else:
                break
        self.next_arrival = arrival

    def _note(self, when: float, node: Node | None) -> None:
        heapq.heappush(self._events, (when, next(self._order), node))

    def _arrive(self, now: float) -> None:
        self._tally.requests += 1
        self._meter.change(1, now)
        node = self.fleet.roomy(self._room)
        if node is None:
            self._hold(now)
        else:
            self._enter(node, now, now)

    def _hold(self, now: float) -> None:
        """No node has room: wait, if that may help."""
        full = len(self._waiting) >= self._conditions.queue_requests
        late = not self.fleet.ready and self._time_to_ready(now) > self._patience
        if full or late:
            self._asked |= late
            self._tally.refused += 1
            self._meter.change(-1, now)
            return
        self._tally.held += 1
        self._waiting.append(now)
        if not self._watched:
            self._watched = True
            self._note(now + self._patience, None)

    def _time_to_ready(self, now: float) -> float:
        """How long it probably takes until the first node is ready, in seconds."""
        if self.short:
            return 0.0  # nobody knows
        starting = self.fleet.starting
        return starting[0].asked_at - now + self._usual_start if starting else self._usual_start

    def _grant(self, now: float) -> None:
        while self._waiting and (node := self.fleet.roomy(self._room)) is not None:
            self._enter(node, self._waiting.popleft(), now)

    def _enter(self, node: Node, arrived: float, now: float) -> None:
        node.inside.append(arrived)
        if len(node.inside) == 1:
            self._compute(node, now)

    def _compute(self, node: Node, now: float) -> None:
        """Begin with the first request inside."""
        self._tally.computed += 1
        waited = now - node.inside[0]
        if waited:
            self._tally.waits.append(waited)
        node.free_at = now + self._service
        self._note(node.free_at, node)

    def _complete(self, node: Node, now: float) -> None:
        """A request is done; the next one follows that still has time."""
        inside, patience = node.inside, self._patience
        if inside[0] + patience < now:
            self._time_out(inside, now)
        else:
            inside.popleft()
            self._tally.answered += 1
            self._meter.change(-1, now)
        # Their time may have run out a little earlier, since the last completion.
        while inside and inside[0] + patience <= now:
            self._time_out(inside, now)
        if inside:
            self._compute(node, now)
        elif node.draining:
            self.fleet.drained(node, now)
        if self._waiting and not node.draining:
            self._grant(now)

    def _lose_patience(self, now: float) -> None:
        """Those who have waited too long leave; the next in the queue is watched."""
        waiting = self._waiting
        while waiting and waiting[0] + self._patience <= now:
            self._time_out(waiting, now)
        self._watched = bool(waiting)
        if waiting:
            self._note(waiting[0] + self._patience, None)

    def _time_out(self, queue: deque[float], now: float) -> None:
        queue.popleft()
        self._tally.timed_out += 1
        self._meter.change(-1, now)
