"""Finds nodes that hang and has them killed: their requests are judged as after any death of a node.

Of every node it looks at the call that its notes tell of. Only nodes with requests inside are asked whether
they still react: the others have nothing to do, and need not wake up for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autoscaler import machine
from autoscaler.pools import Node, NodeState
from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.errors import ServingError
from serving.gateway.proxy.node_client import NodeClient, NodeReply
from serving.hang_detection import HangLimits, LivenessReading, StallTimes, describe_hang, update_stall
from serving.latency_histograms import NODE_BYTES, NODE_CALL, as_cells

_LOOK_EVERY = 0.5
# Seconds after which the watchdog is in trouble itself.
_LOOKED_WITHIN = 30.0
# Seconds without a reaction, where a call may take longer. Reading a large body takes part of it.
_SILENT = 15.0


@dataclass(slots=True, eq=False)
class _WatchedNode:
    """A node with what was seen of it; it waits for the answer to a ping as requests wait for theirs.

    `starved` are the seconds for which its main thread has waited for a processor since its start.
    """

    node: Node
    standstill: StallTimes = field(default_factory=StallTimes)
    silent: bool = False
    starved: float = 0.0

    def on_reply(self, reply: NodeReply) -> None:
        self.silent = False

    def on_reply_dropped(self, error: ServingError) -> None:
        self.silent = False

    def on_connection_lost(self) -> None:
        self.silent = False


class Watchdog:
    """`kill` kills a node for a reason; `upstream` is the open channel to a node, if there is one.

    `call_timeout` is how many seconds a call may take. However long this process stands still itself, maybe
    with the whole machine, counts as no more than two looks take.
    """

    def __init__(
        self,
        kill: Callable[[Node, str], None],
        find_client: Callable[[Node], NodeClient | None],
        call_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kill = kill
        self._find_client = find_client
        self._limits = HangLimits(call=call_timeout, silent=min(call_timeout, _SILENT))
        self._clock = clock
        self._looked_at = clock()
        self._watched: dict[str, _WatchedNode] = {}

    def node_changed(self, node: Node) -> None:
        """A pool's listener. What loads has a limit of its own, and so has what drains."""
        if node.state is NodeState.READY and len(node.counters) == NODE_BYTES:
            self._watched[node.id] = _WatchedNode(node)
        else:
            self._watched.pop(node.id, None)

    def start(self, supervisor: Supervisor) -> BackgroundLoop:
        """Look at all nodes that are ready from now on."""

        async def wait_interval() -> None:
            await asyncio.sleep(_LOOK_EVERY)

        async def check() -> None:
            self.check_nodes()

        return supervisor.start_loop("watchdog", wait_interval, check, within=_LOOKED_WITHIN)

    def check_nodes(self) -> None:
        """Look at them once."""
        now = self._clock()
        seconds, self._looked_at = min(now - self._looked_at, 2 * _LOOK_EVERY), now
        for watched in list(self._watched.values()):
            self._check_node(watched, seconds)

    def _check_node(self, watched: _WatchedNode, seconds: float) -> None:
        node = watched.node
        sign = LivenessReading(call=as_cells(node.counters)[NODE_CALL], silent=watched.silent)
        if sign.silent and not sign.call:
            seconds -= self._starved_since(watched)
        watched.standstill = update_stall(watched.standstill, sign, max(0.0, seconds))
        if reason := describe_hang(watched.standstill, self._limits):
            self._kill(node, f"The node was killed: {reason}.")
        elif node.in_flight and not watched.silent:
            self._ping_node(watched)

    def _ping_node(self, watched: _WatchedNode) -> None:
        upstream = self._find_client(watched.node)
        if upstream is not None and upstream.is_connected:
            watched.silent = True
            self._starved_since(watched)
            upstream.ping(watched)

    def _starved_since(self, watched: _WatchedNode) -> float:
        """Seconds for which it has waited for a processor since this was last asked: it could not react."""
        before, pid = watched.starved, watched.node.pid
        watched.starved = 0.0 if pid is None else machine.run_queue_seconds(pid)
        return watched.starved - before
