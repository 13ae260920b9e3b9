"""Nodes that are only numbers, and what all of a replay's versions count together."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class ReplayStats:
    """What is counted over all versions; the fields are those of `SimulationResult`.

    `computed` requests have begun to be, `waits` are the times in seconds that some of them waited for that;
    the others did not wait. `nodes` are there now, `ready_seconds` the node-seconds without the starts.
    """

    requests: int = 0
    answered: int = 0
    refused: int = 0
    timed_out: int = 0
    held: int = 0
    computed: int = 0
    waits: array[float] = field(default_factory=lambda: array("d"))
    cold_starts: int = 0
    nodes_started: int = 0
    nodes: int = 0
    most_nodes: int = 0
    node_seconds: float = 0.0
    ready_seconds: float = 0.0


class SimulatedNode:
    """`inside` is when each of its requests came; the first is computed, until `free_at`.

    Times are in seconds from the start of the replay.
    """

    __slots__ = ("asked_at", "draining", "free_at", "gone", "inside", "ready_at")

    def __init__(self, now: float, ready_at: float) -> None:
        self.inside: deque[float] = deque()
        self.asked_at = now
        self.ready_at = ready_at
        self.free_at = ready_at
        self.draining = False
        self.gone = False


class SimulatedFleet:
    """The nodes of one version. `starts` gives the start time of the next node, in seconds."""

    def __init__(self, starts: Iterator[float], stats: ReplayStats) -> None:
        self.ready: list[SimulatedNode] = []
        self.starting: list[SimulatedNode] = []
        self.draining: list[SimulatedNode] = []
        self._starts = starts
        self._stats = stats

    @property
    def count(self) -> int:
        """Nodes that are starting or ready."""
        return len(self.ready) + len(self.starting)

    def pick_node(self, room: int) -> SimulatedNode | None:
        """The ready node with the fewest requests, if fewer than `room` are inside."""
        ready = self.ready
        if not ready:
            return None
        node = ready[0] if len(ready) == 1 else min(ready, key=count_requests)
        return node if len(node.inside) < room else None

    def start_node(self, now: float) -> SimulatedNode:
        """Start a node, which the caller marks as ready at its `ready_at`."""
        node = SimulatedNode(now, now + next(self._starts))
        self.starting.append(node)
        stats = self._stats
        stats.nodes_started += 1
        stats.nodes += 1
        stats.most_nodes = max(stats.most_nodes, stats.nodes)
        return node

    def mark_ready(self, node: SimulatedNode) -> None:
        self.starting.remove(node)
        self.ready.append(node)

    def shrink(self, count: int, now: float) -> list[SimulatedNode]:
        """Remove nodes until `count` are starting or ready; returns those that are gone or draining.

        The least loaded go first, starting ones only when `count` is 0.
        """
        leaving = sorted(self.ready, key=count_requests)[: max(0, len(self.ready) - count)]
        if not count:
            leaving += self.starting
        for node in leaving:
            (self.ready if node in self.ready else self.starting).remove(node)
            if node.inside:
                node.draining = True
                self.draining.append(node)
            else:
                self._record_end(node, now)
        return leaving

    def remove_drained(self, node: SimulatedNode, now: float) -> None:
        self.draining.remove(node)
        self._record_end(node, now)

    def record_remaining_nodes(self, now: float) -> None:
        """Count the nodes that are left at the end of the replay."""
        for node in (*self.ready, *self.starting, *self.draining):
            self._record_end(node, now)

    def _record_end(self, node: SimulatedNode, now: float) -> None:
        node.gone = True
        self._stats.nodes -= 1
        self._stats.node_seconds += now - node.asked_at
        self._stats.ready_seconds += max(0.0, now - node.ready_at)


def count_requests(node: SimulatedNode) -> int:
    return len(node.inside)


def compute_drain_end(node: SimulatedNode, service: float) -> float:
    """When a node that computes will be done with all that is inside, each taking so many seconds."""
    # Summed up as it will happen: the same number to the last bit.
    end = node.free_at
    for _ in range(len(node.inside) - 1):
        end += service
    return end
