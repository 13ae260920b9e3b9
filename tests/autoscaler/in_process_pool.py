"""A pool whose nodes are tasks of the process that it is in: no process is started, and none forked."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

from autoscaler.child_launcher import RunningChild
from autoscaler.node_memory import NodeMemory
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
from autoscaler.pools.node_socket import NodeSocket
from tests.autoscaler.fakes import memory


@dataclass(frozen=True, slots=True)
class Inside:
    """A node as its program sees it; `stopping` is set when it is to end."""

    arguments: Mapping[str, Any]
    listener: socket.socket
    shared: NodeMemory
    report: Callable[[Mapping[str, Any]], None]
    stopping: asyncio.Event


# Serves until `stopping` is set. It has crashed if it raises, or if it returns before.
Program = Callable[[Inside], Coroutine[Any, Any, None]]


@dataclass(slots=True, eq=False)
class _Running:
    node: Node
    spec: NodeSpec
    socket: NodeSocket
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    program: asyncio.Task[None] | None = None
    failure: str = ""


class InProcessPool:
    """`programs` are what runs in place of each `entry` of a spec; `drain` is in seconds."""

    def __init__(
        self, listener: NodeListener, programs: Mapping[str, Program], *, drain: float = 10.0
    ) -> None:
        self._listener = listener
        self._programs = programs
        self._drain = drain
        self._running: list[_Running] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        self._closed = True
        for running in list(self._running):
            self._stop(running)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def nodes(self, key: str) -> Sequence[Node]:
        return [running.node for running in self._running if running.node.key == key]

    async def scale(self, spec: NodeSpec, count: int) -> None:
        mine = [running for running in self._running if running.node.key == spec.key]
        ready = [running for running in mine if running.node.state is NodeState.READY]
        starting = [running for running in mine if running.node.state is NodeState.STARTING]
        if not self._closed:
            for _ in range(len(ready) + len(starting), count):
                self._start(spec)
        by_load = sorted(ready, key=lambda running: (running.node.in_flight, -running.node.asked_at))
        for running in by_load[: max(0, len(ready) - count)] + (starting if count == 0 else []):
            self._stop(running)

    def kill_hung(self, node: Node, reason: str) -> None:
        for running in self._running:
            if running.node is node and node.state is NodeState.READY and running.program is not None:
                running.failure, node.hung = reason, True
                self._set_state(node, NodeState.DRAINING)
                running.program.cancel()

    def set_wanted_pilots(self, specs: Collection[PilotSpec]) -> None:
        pass

    def can_fork(self, spec: NodeSpec) -> bool:
        return False

    def list_pilots(self) -> Sequence[PilotStatus]:
        return ()

    async def wait_for_pilots(self, within: float) -> None:
        pass

    def run_forked(
        self, pilot: PilotSpec, launch: LaunchSpec, *, output: int, grace_seconds: float
    ) -> AbstractAsyncContextManager[RunningChild | None]:
        return nullcontext()

    def count_cores(self) -> int:
        return 1

    def available_memory(self) -> int:
        return 1 << 40

    def measure_memory(self, pids: Iterable[int]) -> MemoryUsage | None:
        return None

    def cpu_seconds(self, node: Node) -> float | None:
        return None

    def run_delay_seconds(self, node: Node) -> float:
        return 0.0

    # ---- one node

    def _start(self, spec: NodeSpec) -> None:
        taken = NodeSocket()
        node = Node(
            id=f"{next(self._numbers)}",
            key=spec.key,
            address=taken.address,
            shared=memory(spec.concurrency, counter_bytes=spec.counter_bytes),
            asked_at=time.monotonic(),
        )
        running = _Running(node, spec, taken)
        self._running.append(running)
        self._spawn(self._run(running))
        self._listener(node)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, running: _Running) -> None:
        node, spec = running.node, running.spec
        listener = socket.socket(fileno=_duplicate(running.socket))
        running.socket.close_listener()
        inside = Inside(
            spec.arguments, listener, node.shared, lambda said: self._hear(running, said), running.stopping
        )
        running.program = self._spawn(self._programs[spec.entry](inside))
        if node.state is NodeState.STARTING:
            await self._await_start(running, running.program)
        await asyncio.wait((running.program,))
        listener.close()
        self._record_end(running, running.program)

    async def _await_start(self, running: _Running, program: asyncio.Task[None]) -> None:
        started = asyncio.ensure_future(running.started.wait())
        seconds = running.spec.start_timeout
        await asyncio.wait((started, program), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not started.done() and not program.done():
            running.failure = f"The node was not ready after {seconds:g} s (setting start_timeout)."
            running.node.permanent_failure = True
            program.cancel()
        started.cancel()

    def _hear(self, running: _Running, message: Mapping[str, Any]) -> None:
        node = running.node
        if "short" in message or "failed" in message:
            running.failure = str(message.get("short") or message["failed"])
            node.starved, node.permanent_failure = "short" in message, "failed" in message
        elif node.state is NodeState.STARTING:
            node.report, node.ready_at = message["ready"], time.monotonic()
            self._set_state(node, NodeState.READY)
        running.started.set()

    def _stop(self, running: _Running) -> None:
        node = running.node
        if node.state in (NodeState.DRAINING, NodeState.GONE):
            return
        self._set_state(node, NodeState.DRAINING)
        running.started.set()
        self._spawn(self._drain_node(running))

    async def _drain_node(self, running: _Running) -> None:
        node = running.node
        deadline = time.monotonic() + self._drain
        if node.in_flight:
            await _completes_within(node.empty.wait(), self._drain)
        running.stopping.set()
        if not await _completes_within(node.gone.wait(), deadline - time.monotonic()):
            running.failure = f"The node was ended: it had not ended after {self._drain:g} s."
            if running.program is not None:
                running.program.cancel()

    def _record_end(self, running: _Running, program: asyncio.Task[None]) -> None:
        node = running.node
        error = None if program.cancelled() else program.exception()
        asked = node.state is NodeState.DRAINING and not node.hung
        if node.state is NodeState.READY:
            self._set_state(node, NodeState.DRAINING)
        self._running.remove(running)
        node.crashed = not asked
        node.reason = running.failure or (f"The node died: {error!r}." if error else "The node ended.")
        node.shared.detach()
        self._set_state(node, NodeState.GONE)
        running.socket.close()
        node.gone.set()

    def _set_state(self, node: Node, state: NodeState) -> None:
        node.state = state
        self._listener(node)


def _duplicate(taken: NodeSocket) -> int:
    return socket.fromfd(taken.fileno(), socket.AF_UNIX, socket.SOCK_STREAM).detach()


async def _completes_within(waiting: Awaitable[Any], seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await waiting
            return True
    return False
