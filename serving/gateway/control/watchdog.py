"""Kills nodes that hang; their requests are retried or refused as after any death of a node.

It checks for each node how long the current call of the model takes, which is among the node's counters. Only
nodes with requests inside are pinged: the others are idle and need not wake up for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autoscaler.pools import Node, NodePool, NodeState
from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.errors import ServingError
from serving.gateway.proxy.node_client import NodeClient, NodeReply
from serving.hang_detection import HangLimits, LivenessReading, StallTimes, describe_hang, update_stall
from serving.latency_histograms import NODE_BYTES, NODE_CALL, as_cells

_INTERVAL = 0.5
# Seconds after which a watchdog that has not run is reported as failing.
_MAX_PAUSE = 30.0
# Seconds without a ping reply, if a call may take longer. Reading a large body uses up part of it.
_SILENT = 15.0


@dataclass(slots=True, eq=False)
class _WatchedNode:
    """A node and what was seen of it; it is the callback of its pings.

    `silent`: a ping has no reply yet. `starved`: seconds that its main thread waited for a processor since
    its start.
    """

    node: Node
    stall: StallTimes = field(default_factory=StallTimes)
    silent: bool = False
    starved: float = 0.0

    def on_reply(self, reply: NodeReply) -> None:
        self.silent = False

    def on_reply_dropped(self, error: ServingError) -> None:
        self.silent = False

    def on_connection_lost(self) -> None:
        self.silent = False


class Watchdog:
    """Checks nodes twice a second. `call_timeout` is in seconds per call of a model.

    Time in which this process does not run itself, maybe with the whole machine, counts as two checks at
    most.
    """

    def __init__(
        self,
        pool: NodePool,
        find_client: Callable[[Node], NodeClient | None],
        call_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._find_client = find_client
        self._limits = HangLimits(call=call_timeout, silent=min(call_timeout, _SILENT))
        self._clock = clock
        self._checked_at = clock()
        self._watched: dict[str, _WatchedNode] = {}

    def on_node_changed(self, node: Node) -> None:
        """A listener of the pool. Only READY nodes are watched: others have limits of their own."""
        if node.state is NodeState.READY and len(node.read_counters()) == NODE_BYTES:
            self._watched[node.id] = _WatchedNode(node)
        else:
            self._watched.pop(node.id, None)

    def start(self, supervisor: Supervisor) -> BackgroundLoop:
        async def wait_interval() -> None:
            await asyncio.sleep(_INTERVAL)

        async def check() -> None:
            self.check_nodes()

        return supervisor.start_loop("watchdog", wait_interval, check, within=_MAX_PAUSE)

    def check_nodes(self) -> None:
        now = self._clock()
        seconds, self._checked_at = min(now - self._checked_at, 2 * _INTERVAL), now
        for watched in list(self._watched.values()):
            self._check_node(watched, seconds)

    def _check_node(self, watched: _WatchedNode, seconds: float) -> None:
        node = watched.node
        call = as_cells(memoryview(node.read_counters()))[NODE_CALL]
        reading = LivenessReading(call=call, silent=watched.silent)
        if reading.silent and not reading.call:
            seconds -= self._take_starved_seconds(watched)
        watched.stall = update_stall(watched.stall, reading, max(0.0, seconds))
        if reason := describe_hang(watched.stall, self._limits):
            self._pool.kill_hung(node, f"The node was killed: {reason}.")
        elif node.in_flight and not watched.silent:
            self._ping_node(watched)

    def _ping_node(self, watched: _WatchedNode) -> None:
        client = self._find_client(watched.node)
        if client is not None and client.is_connected:
            watched.silent = True
            self._take_starved_seconds(watched)
            client.ping(watched)

    def _take_starved_seconds(self, watched: _WatchedNode) -> float:
        """Seconds that the node waited for a processor since the last call of this: it could not reply."""
        before = watched.starved
        watched.starved = self._pool.run_delay_seconds(watched.node)
        return watched.starved - before
