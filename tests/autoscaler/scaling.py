"""An autoscaler with a pool and a clock that do what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from autoscaler.activator import Activator
from autoscaler.decision import ScalingSpec
from autoscaler.pools import Node
from autoscaler.scaling_loop import Autoscaler
from autoscaler.supervision import Supervisor
from autoscaler.version_scaler import VersionScaler
from tests.autoscaler.fakes import MIB, Asker, Clock, FakeDeadline, FakePool, settle, spec
from tests.bounds import HANG_SECONDS


class World:
    """An autoscaler and all that it works with; `free` bytes are left on the machine."""

    def __init__(self, *, tick: float = 1.0, memory_bytes: int = 0) -> None:
        self.clock = Clock()
        self.free = 1 << 40
        self.free_failure: Exception | None = None
        self.memory_reads = 0
        self.troubles: list[tuple[str, str]] = []
        self.activator = Activator(queue_requests=2000, queue_bytes=1 << 20, clock=self.clock)
        self.pool = FakePool(self.clock, free=self._free_memory)
        self.supervisor = Supervisor(clock=self.clock)
        self.autoscaler = self.start(tick, memory_bytes)

    def start(self, tick: float = 1.0, memory_bytes: int = 0) -> Autoscaler:
        autoscaler = Autoscaler(
            self.activator,
            self.pool,
            tick=tick,
            memory_bytes=memory_bytes,
            on_trouble=lambda key, reason: self.troubles.append((key, reason)),
            supervisor=self.supervisor,
            clock=self.clock,
        )
        self.activator.connect_waker(autoscaler)
        self.pool.listeners[:] = [self.activator.on_node_changed, autoscaler.on_node_changed]
        return autoscaler

    def _free_memory(self) -> int:
        self.memory_reads += 1
        if self.free_failure is not None:
            raise self.free_failure
        return self.free

    def track(
        self,
        key: str = "v",
        *,
        concurrency: int = 4,
        memory: int = 100 * MIB,
        start_seconds: float | None = None,
        min_nodes: int = 0,
        max_nodes: int = 4,
        exact_nodes: int | None = None,
    ) -> VersionScaler:
        scaling = ScalingSpec(
            min_nodes=min_nodes, max_nodes=max_nodes, exact_nodes=exact_nodes, target_concurrency=1.0
        )
        self.autoscaler.track_version(
            spec(key, concurrency), scaling, memory=memory, start_seconds=start_seconds
        )
        return self.autoscaler.versions[key]

    def ask(self, key: str = "v", *, concurrency: int = 4, deadline: FakeDeadline | None = None) -> Asker:
        return Asker(self.activator, spec(key, concurrency), 1, deadline)

    async def asked(self, key: str = "v") -> Asker:
        asker = self.ask(key)
        await settle()
        return asker

    def trouble(self) -> str:
        """Why the program should not be trusted with work."""
        return " ".join(self.supervisor.list_troubles())

    async def look(self, seconds: float = 0.0) -> None:
        """One tick, so many seconds later."""
        self.clock.advance(seconds)
        self.autoscaler.reconcile()
        await settle()

    async def ticks(self, seconds: int) -> None:
        for _ in range(seconds):
            await self.look(1.0)

    async def awake(self, key: str = "v", *, memory: int = 0, nodes: int = 1) -> list[Node]:
        """A version with ready nodes and nothing to do."""
        asker = await self.asked(key)
        self.pool.ready(self.pool.only(key), memory=memory)
        await settle()
        asker.let_go.set()
        await settle()
        for _ in range(nodes - 1):
            self.pool.ready(self.pool.start(spec(key)), memory=memory)
        return list(self.pool.nodes(key))

    async def crash_at_start(self, reason: str, *, is_permanent: bool = False) -> None:
        self.pool.crash(self.pool.only(), reason, is_permanent=is_permanent)
        await settle()


def run(main: Callable[[World], Awaitable[None]], *, tick: float = 1.0, memory_bytes: int = 0) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            world = World(tick=tick, memory_bytes=memory_bytes)
            try:
                await main(world)
            finally:
                # What is left over waits for somebody who is gone.
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(bounded())
