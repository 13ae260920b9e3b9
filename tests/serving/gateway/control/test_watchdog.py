"""Which nodes the watchdog has killed, and when it looks at none."""

from __future__ import annotations

import pytest

from autoscaler.pools import NodeState
from serving.gateway.control.watchdog import Watchdog
from serving.latency_histograms import NODE_BYTES, NODE_CALL, as_cells
from tests.autoscaler.fakes import Clock, FakePool, memory, spec

CALL_TIMEOUT = 60.0


class World:
    """A watchdog over one node that is in its first call, and a clock that stands still."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.pool = FakePool(self.clock)
        self.watchdog = Watchdog(
            self.pool,
            lambda node: None,
            CALL_TIMEOUT,
            self.clock,
        )
        self.node = self.pool.start(spec("v"))
        self.node.shared = memory(counter_bytes=NODE_BYTES)
        as_cells(self.node.shared.counters)[NODE_CALL] = 1

    @property
    def reason(self) -> str:
        """Why the node was killed."""
        return self.node.reason

    def change(self, state: NodeState) -> None:
        self.node.state = state
        self.watchdog.on_node_changed(self.node)

    def look(self, *, times: int, every: float = 0.5) -> None:
        for _ in range(times):
            self.clock.advance(every)
            self.watchdog.check_nodes()


def test_a_call_may_take_as_long_as_the_setting_says() -> None:
    """And no longer."""
    world = World()
    world.change(NodeState.READY)
    world.look(times=121)
    assert world.reason == ""
    world.look(times=1)
    assert world.reason == (
        "The node was killed: one call of its model took more than 60 s (setting call_timeout)."
    )


def test_a_server_that_stood_still_kills_nobody() -> None:
    """It may have been stopped, or the whole machine: the node had no more time than it saw."""
    world = World()
    world.change(NodeState.READY)
    world.look(times=50, every=3600)
    assert world.reason == ""


@pytest.mark.parametrize("state", [NodeState.STARTING, NodeState.DRAINING, NodeState.GONE])
def test_only_nodes_that_are_ready_are_watched(state: NodeState) -> None:
    """Those that load or drain have limits of their own."""
    world = World()
    if state is not NodeState.STARTING:
        world.change(NodeState.READY)
    world.change(state)
    world.look(times=1000)
    assert world.reason == ""
