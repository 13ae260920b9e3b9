"""Which nodes the watchdog has killed, and when it looks at none."""

from __future__ import annotations

import pytest

from autoscaler.pools import Node, NodeState
from serving.gateway.control.watchdog import Watchdog
from serving.latency_histograms import NODE_BYTES, NODE_CALL, as_cells
from tests.autoscaler.fakes import Clock

CALL_TIMEOUT = 60.0


class World:
    """A watchdog over one node that is in its first call, and a clock that stands still."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.killed: list[tuple[str, str]] = []
        self.watchdog = Watchdog(
            lambda node, reason: self.killed.append((node.id, reason)),
            lambda node: None,
            CALL_TIMEOUT,
            self.clock,
        )
        notes = memoryview(bytearray(NODE_BYTES))
        as_cells(notes)[NODE_CALL] = 1
        self.node = Node(id="1", key="v", address="", marks=bytearray(1), counters=notes)

    def change(self, state: NodeState) -> None:
        self.node.state = state
        self.watchdog.node_changed(self.node)

    def look(self, *, times: int, every: float = 0.5) -> None:
        for _ in range(times):
            self.clock.advance(every)
            self.watchdog.check_nodes()


def test_a_call_may_take_as_long_as_the_setting_says() -> None:
    """And no longer."""
    world = World()
    world.change(NodeState.READY)
    world.look(times=121)
    assert world.killed == []
    world.look(times=1)
    assert world.killed == [
        ("1", "The node was killed: one call of its model took more than 60 s (setting call_timeout).")
    ]


def test_a_server_that_stood_still_kills_nobody() -> None:
    """It may have been stopped, or the whole machine: the node had no more time than it saw."""
    world = World()
    world.change(NodeState.READY)
    world.look(times=50, every=3600)
    assert world.killed == []


@pytest.mark.parametrize("state", [NodeState.STARTING, NodeState.DRAINING, NodeState.GONE])
def test_only_nodes_that_are_ready_are_watched(state: NodeState) -> None:
    """Those that load or drain have limits of their own."""
    world = World()
    if state is not NodeState.STARTING:
        world.change(NodeState.READY)
    world.change(state)
    world.look(times=1000)
    assert world.killed == []
