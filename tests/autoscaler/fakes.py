"""A clock that stands still, nodes that live and die and requests that end when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Self

from autoscaler.activator import Activator
from autoscaler.child_launcher import RunningChild
from autoscaler.errors import NodeError
from autoscaler.node_memory import Mark, NodeMemory, memory_size
from autoscaler.node_process import LaunchSpec
from autoscaler.pools import (
    MemoryUsage,
    Node,
    NodeListener,
    NodeSpec,
    NodeState,
    PilotSpec,
    PilotStatus,
)

MIB = 1 << 20


def memory(slots: int = 1, mark: Mark = Mark.UNTOUCHED, *, counter_bytes: int = 0) -> NodeMemory:
    """What a node shares with its pool where both are in one process."""
    whole = bytearray(memory_size(slots, counter_bytes))
    whole[:slots] = bytes([mark] * slots)
    return NodeMemory(memoryview(whole), slots, counter_bytes)


class Clock:
    """Seconds that pass when a test says so; `reads` counts how often somebody looked at it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class FakePool:
    """A NodePool without processes; `orders` is what it was asked for, by version and number of nodes.

    A node that is asked to go drains until the test ends it. `open` can be cleared to keep an order under
    way, `failure` set to have orders fail. `looks` counts how often somebody asked for a version's nodes.
    `folder` is where nodes' sockets would be, `free` says how much memory is left, and `lit` has the keys of
    the pilots that were asked for last.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        folder: str = "nowhere",
        free: Callable[[], int] = lambda: 1 << 40,
    ) -> None:
        self.clock = clock
        self.folder = folder
        self.listeners: list[NodeListener] = []
        self.orders: list[tuple[str, int]] = []
        self.living: list[Node] = []
        self.looks = 0
        self.failure: Exception | None = None
        self.forked = True
        self.free = free
        self.running_pilots: list[str] = []
        self.cpu: dict[str, float] = {}
        self.open = asyncio.Event()
        self.open.set()
        self._number = 0

    # NodePool

    def nodes(self, key: str) -> Sequence[Node]:
        self.looks += 1
        return [node for node in self.living if node.key == key]

    async def scale(self, spec: NodeSpec, count: int) -> None:
        self.orders.append((spec.key, count))
        await self.open.wait()
        if self.failure is not None:
            raise self.failure
        ready = [node for node in self.nodes(spec.key) if node.state is NodeState.READY]
        starting = [node for node in self.nodes(spec.key) if node.state is NodeState.STARTING]
        for _ in range(len(ready) + len(starting), count):
            self.start(spec)
        surplus = sorted(ready, key=_expendable)[: max(0, len(ready) - count)]
        for node in surplus + (starting if count == 0 else []):
            self._change(node, NodeState.DRAINING)

    def kill_hung(self, node: Node, reason: str) -> None:
        node.hung = True
        self.crash(node, reason)

    def cpu_seconds(self, node: Node) -> float | None:
        return self.cpu.get(node.id)

    def can_fork(self, spec: NodeSpec) -> bool:
        return self.forked

    def set_wanted_pilots(self, specs: Collection[PilotSpec]) -> None:
        self.running_pilots = sorted(spec.key for spec in specs)

    def list_pilots(self) -> Sequence[PilotStatus]:
        return ()

    async def wait_for_pilots(self, within: float) -> None:
        pass

    def run_forked(
        self, pilot: PilotSpec, launch: LaunchSpec, *, output: int, grace_seconds: float
    ) -> AbstractAsyncContextManager[RunningChild | None]:
        return nullcontext()

    def count_cores(self) -> int:
        return 2

    def available_memory(self) -> int:
        return self.free()

    def measure_memory(self, pids: Iterable[int]) -> MemoryUsage | None:
        return None

    def run_delay_seconds(self, node: Node) -> float:
        return 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        for node in list(self.living):
            self.end(node)

    # what a test has happen

    def start(self, spec: NodeSpec) -> Node:
        self._number += 1
        node = Node(
            id=f"{spec.key}{self._number}",
            key=spec.key,
            address=f"{self.folder}/{self._number}",
            # Whatever was there before is nobody's.
            shared=memory(spec.concurrency, Mark.COMPUTED),
            asked_at=self.clock(),
            forked=self.forked,
        )
        self.living.append(node)
        self._tell(node)
        return node

    def ready(self, node: Node, *, memory: int = 0) -> Node:
        node.ready_at = self.clock()
        node.memory = MemoryUsage(memory, memory) if memory else None
        self._change(node, NodeState.READY)
        return node

    def drain(self, node: Node) -> None:
        self._change(node, NodeState.DRAINING)

    def end(self, node: Node) -> None:
        """It ends as it was asked to."""
        node.reason = "The node ended."
        self._gone(node)

    def crash(self, node: Node, reason: str = "It crashed.", *, is_permanent: bool = False) -> None:
        """It ends though nobody has asked it to."""
        if node.state is NodeState.READY:
            self._change(node, NodeState.DRAINING)
        node.crashed, node.permanent_failure, node.reason = True, is_permanent, reason
        self._gone(node)

    def only(self, key: str = "v") -> Node:
        """The only node that is there or on its way."""
        (node,) = [node for node in self.nodes(key) if node.state in (NodeState.STARTING, NodeState.READY)]
        return node

    def _gone(self, node: Node) -> None:
        self.living.remove(node)
        self._change(node, NodeState.GONE)
        node.gone.set()

    def _change(self, node: Node, state: NodeState) -> None:
        node.state = state
        self._tell(node)

    def _tell(self, node: Node) -> None:
        for listener in self.listeners:
            listener(node)


@dataclass
class FakeDeadline:
    """Waits until the test says that it is over."""

    remaining: float = 60.0
    waiting: asyncio.Future[Node] | None = None
    expired: bool = False

    async def wait(self, granted: asyncio.Future[Node]) -> Node:
        if self.expired:
            raise TimeoutError
        self.waiting = granted
        return await granted

    def end(self) -> None:
        """As the real one does: the future fails, and whoever waits for it learns that a turn later."""
        self.remaining = 0.0
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(TimeoutError())


class Asker:
    """A request that leases a node and keeps it until it is told to let go."""

    def __init__(
        self, activator: Activator, spec: NodeSpec, size: int = 1, deadline: FakeDeadline | None = None
    ) -> None:
        self.node: Node | None = None
        self.slot = -1
        self.error: BaseException | None = None
        self.begun = False
        self.arrived: float | None = None
        self.granted = 0.0
        self.spec = spec
        self.size = size
        self.deadline = deadline or FakeDeadline()
        self.let_go = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._ask(activator, spec, size))

    async def _ask(self, activator: Activator, spec: NodeSpec, size: int) -> None:
        self.begun = True
        try:
            async with activator.lease(spec, size, self.deadline) as lease:
                self.node, self.slot = lease.node, lease.slot
                self.arrived, self.granted = lease.arrived, lease.granted
                await self.let_go.wait()
        except (NodeError, TimeoutError) as error:
            self.error = error

    @property
    def served(self) -> bool:
        """Whether it is inside a node right now."""
        return self.node is not None and not self.task.done()


def _expendable(node: Node) -> tuple[int, float]:
    """The least loaded first, of those the youngest."""
    return node.in_flight, -node.asked_at


def spec(key: str = "v", concurrency: int = 4) -> NodeSpec:
    return NodeSpec(
        key=key,
        title=f"version {key}",
        entry="",
        arguments={},
        environment={},
        start_timeout=1.0,
        concurrency=concurrency,
    )


async def settle() -> None:
    """Let every task run until it waits for something."""
    for _ in range(10):
        await asyncio.sleep(0)
