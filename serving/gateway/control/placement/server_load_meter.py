"""Measures how much of this server its nodes need, every few seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from autoscaler import machine
from autoscaler.moving_average import CounterHistory
from autoscaler.placement.server_load import ServerDemand, ServerLoad, measure_load
from autoscaler.pools import Node, NodePool
from autoscaler.scaling_loop import Autoscaler
from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.gateway.thread_pool import ThreadPool

_INTERVAL = 5.0
_WINDOW = 60.0
# Seconds without a measurement after which the loop is in trouble.
_MAX_PAUSE = 60.0


class ServerLoadMeter:
    """`load` is what was measured last."""

    def __init__(
        self, autoscaler: Autoscaler, pool: NodePool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._autoscaler = autoscaler
        self._pool = pool
        self._clock = clock
        self._thread = ThreadPool("server-load", 1)
        self._seen: dict[int, tuple[float, float]] = {}  # by process: seconds it has run and waited
        self._running = self._waiting = 0.0
        self._history = CounterHistory(clock(), _WINDOW), CounterHistory(clock(), _WINDOW)
        self.load = ServerLoad()

    def start(self, supervisor: Supervisor) -> BackgroundLoop:
        async def wait_interval() -> None:
            await asyncio.sleep(_INTERVAL)

        return supervisor.start_loop("server-load", wait_interval, self.measure, within=_MAX_PAUSE)

    async def measure(self) -> None:
        nodes = [node for key in self._autoscaler.awake for node in self._pool.nodes(key)]
        await self._thread.run(self._count_seconds, nodes)
        now = self._clock()
        totals = self._running, self._waiting
        for history, total in zip(self._history, totals, strict=True):
            history.sample(now, total)
        running, waiting = (
            history.average_rate(now, total, _WINDOW)
            for history, total in zip(self._history, totals, strict=True)
        )
        memory = self._autoscaler.sum_memory_demand()
        self.load = measure_load(
            ServerDemand(
                needed_memory=memory.needed,
                missing_memory=memory.missing,
                memory=memory.total,
                running=running,
                waiting=waiting,
                processors=self._pool.count_cores(),
            )
        )

    def _count_seconds(self, nodes: Iterable[Node]) -> None:
        """Add what the processes of nodes have run and waited since the last time."""
        before, self._seen = self._seen, {}
        for pid in (pid for node in nodes for pid in node.pids):
            try:
                seconds = machine.cpu_seconds(pid), machine.all_threads_run_delay(pid)
            except ProcessLookupError:
                continue
            self._seen[pid] = seconds
            ran, waited = before.get(pid, (0.0, 0.0))
            # Threads that have ended count no more.
            self._running += max(0.0, seconds[0] - ran)
            self._waiting += max(0.0, seconds[1] - waited)
