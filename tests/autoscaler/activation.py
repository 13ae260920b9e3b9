"""An activator, its pool and who wakes the nodes, as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from autoscaler.activator import Activator, StartEstimate
from autoscaler.errors import NodeError
from autoscaler.pools import Node, NodeSpec
from tests.autoscaler.fakes import Asker, Clock, FakeDeadline, FakePool, settle, spec
from tests.bounds import HANG_SECONDS


class FakeWaker:
    """Remembers who was woken; says what a test has it say."""

    def __init__(self, activator: Activator) -> None:
        self.activator = activator
        self.woken: list[str] = []
        self.levels: list[int] = []
        self.refusals: list[tuple[str, NodeError]] = []
        self.outlook = StartEstimate()
        self.failure: NodeError | None = None

    def wake(self, spec: NodeSpec) -> StartEstimate:
        self.woken.append(spec.key)
        self.levels.append(self.activator.meter_of(spec).level)
        if self.failure is not None:
            raise self.failure
        return self.outlook

    def on_refused(self, key: str, error: NodeError) -> None:
        self.refusals.append((key, error))


@dataclass
class World:
    """An activator, its pool and who wakes the nodes."""

    activator: Activator
    pool: FakePool
    waker: FakeWaker
    clock: Clock

    def ask(
        self, key: str = "v", concurrency: int = 4, size: int = 1, deadline: FakeDeadline | None = None
    ) -> Asker:
        return Asker(self.activator, spec(key, concurrency), size, deadline)

    async def asks(self, number: int, concurrency: int = 4) -> list[Asker]:
        askers = [self.ask(concurrency=concurrency) for _ in range(number)]
        await settle()
        return askers

    async def node(self, key: str = "v", concurrency: int = 4) -> Node:
        node = self.pool.ready(self.pool.start(spec(key, concurrency)))
        await settle()
        return node


def make_world(queue_requests: int, queue_bytes: int) -> World:
    clock = Clock()
    activator = Activator(queue_requests=queue_requests, queue_bytes=queue_bytes, clock=clock)
    waker = FakeWaker(activator)
    activator.connect_waker(waker)
    pool = FakePool(clock)
    pool.listeners.append(activator.on_node_changed)
    return World(activator, pool, waker, clock)


def run(
    main: Callable[[World], Awaitable[None]], *, queue_requests: int = 100, queue_bytes: int = 1000
) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            await main(make_world(queue_requests, queue_bytes))

    asyncio.run(bounded())
