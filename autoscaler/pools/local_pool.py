"""Nodes as processes on this machine, each on a unix socket, forked from pilots where that is possible."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from autoscaler import linux, machine
from autoscaler.child_launcher import RunningChild
from autoscaler.errors import is_shortage
from autoscaler.node_process import LaunchSpec
from autoscaler.pools import (
    LineCallback,
    MemoryUsage,
    Node,
    NodeListener,
    NodeSpec,
    NodeState,
    PilotSpec,
    PilotStatus,
    forked_child,
)
from autoscaler.pools.node_pipes import NodePipes, SharedRegion
from autoscaler.pools.node_socket import NodeSocket, remove_stale_folders
from autoscaler.pools.pilot_manager import PilotManager, PilotPolicy
from autoscaler.pools.start_slots import StartSlot, StartSlots
from autoscaler.pools.timing import DEFAULT_TIMING, PoolTiming
from autoscaler.processes import (
    ChildProcess,
    OrphanReaper,
    ProcessOutput,
    describe_exit,
    describe_thread_shortage,
    spawn_child,
)
from autoscaler.supervision import BackgroundLoop, Supervisor, describe_error

logger = logging.getLogger(__name__)

# Seconds. Measuring a big process takes time that the first request needs more.
_MEASURE_DELAY = 0.25
# Seconds between two checks of nodes whose memory is limited: a file is read for each.
_MEMORY_POLL_SECONDS = 0.25
# Seconds after which either loop is in trouble. Measuring hundreds of big nodes takes time.
_HOUSEKEEPING_DEADLINE, _MEMORY_LIMIT_DEADLINE = 60.0, 30.0


@dataclass(slots=True, eq=False)
class _NodeProcess:
    """A node with what only this pool knows about it.

    `first`: its version had no other node. `slot` is its permission to start, `draining` the task that
    ends it.
    """

    node: Node
    spec: NodeSpec
    region: SharedRegion
    socket: NodeSocket
    first: bool
    slot: StartSlot | None = None
    starting: asyncio.Task[tuple[ChildProcess, NodePipes]] | None = None
    child: ChildProcess | None = None
    draining: asyncio.Task[None] | None = None
    measuring: asyncio.Task[None] | None = None
    tail: deque[str] = field(default_factory=deque)
    failure: str = ""

    @property
    def name(self) -> str:
        return f"{self.spec.title}: node {self.node.id}"


def _ignore_line(_: Node, __: str) -> None:
    pass


class LocalPool:
    """Starts node processes; `listener` is called at every change, `drain` is in seconds.

    `starts` is how many nodes may start at a time; those that wait for it count as starting. `on_line` gets
    every line that a node prints.

    `pilots` is "off", "auto" (running while `set_wanted_pilots` asks for them, and once a node or
    `run_forked` has needed one) or how many seconds a pilot runs after the last process that needs it. Use as
    an async context manager in the main thread: its tasks and processes end with the block.
    """

    def __init__(
        self,
        listener: NodeListener,
        *,
        drain: float,
        supervisor: Supervisor,
        starts: int,
        pilots: str | float = "auto",
        on_line: LineCallback = _ignore_line,
        timing: PoolTiming = DEFAULT_TIMING,
    ) -> None:
        self._listener = listener
        self._timing = timing
        self._on_line = on_line
        self._drain = drain
        self._processes: dict[str, _NodeProcess] = {}
        self._nodes: dict[str, list[Node]] = {}  # by key: looked up all the time, for each of many versions
        self._numbers = itertools.count(1)
        self._supervisor = supervisor
        self._loops: list[BackgroundLoop] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._orphans = OrphanReaper()
        self._slots = StartSlots(starts)
        self._pilots = PilotManager(PilotPolicy.parse(pilots), self._start_task, timing)
        self._ooms = _OomWatch()
        self._memory_thread = ThreadPoolExecutor(1, "memory")
        self._closed = False
        self._adopted_before = False

    async def __aenter__(self) -> LocalPool:
        self._adopted_before = linux.set_subreaper(True)
        remove_stale_folders()
        start = self._supervisor.start_loop
        self._loops = [
            start(
                "housekeeping",
                _make_wait(self._timing.housekeeping),
                self._run_housekeeping,
                within=_HOUSEKEEPING_DEADLINE,
            ),
            start(
                "memory-limit",
                _make_wait(_MEMORY_POLL_SECONDS),
                self._enforce_memory_limits,
                within=_MEMORY_LIMIT_DEADLINE,
            ),
        ]
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()
        for loop in self._loops:
            await loop.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)
        linux.set_subreaper(self._adopted_before)

    def nodes(self, key: str) -> Sequence[Node]:
        return list(self._nodes.get(key, ()))

    async def scale(self, spec: NodeSpec, count: int) -> None:
        """Start or drain nodes until `count` are starting or ready; see NodePool."""
        current = [self._processes[node.id] for node in self.nodes(spec.key)]
        ready = [process for process in current if process.node.state is NodeState.READY]
        starting = [process for process in current if process.node.state is NodeState.STARTING]
        if not self._closed:
            for _ in range(len(ready) + len(starting), count):
                self._start_node(spec)
        for process in _choose_drained_nodes(ready, len(ready) - count) + (starting if count == 0 else []):
            self._stop_node(process)

    def kill_hung(self, node: Node, reason: str) -> None:
        process = self._processes.get(node.id)
        if process is None or process.child is None or node.state is not NodeState.READY:
            return
        process.failure, node.hung = reason, True
        self._set_state(process, NodeState.DRAINING)
        process.child.kill()

    def set_wanted_pilots(self, specs: Collection[PilotSpec]) -> None:
        """Set which pilots versions may need; with the policy "auto" these run, and no others."""
        self._pilots.set_wanted_pilots(specs)

    def can_fork(self, spec: NodeSpec) -> bool:
        return spec.pilot is not None and self._pilots.can_fork(spec.pilot)

    def list_pilots(self) -> Sequence[PilotStatus]:
        return self._pilots.list_status()

    async def wait_for_pilots(self, within: float) -> None:
        """Wait until all pilots are ready or have failed; at most `within` seconds."""
        await self._pilots.wait_until_settled(within)

    def run_forked(
        self, pilot: PilotSpec, launch: LaunchSpec, *, output: int, grace_seconds: float
    ) -> AbstractAsyncContextManager[RunningChild | None]:
        return forked_child.run_forked(
            self._pilots, pilot, launch, output=output, grace_seconds=grace_seconds
        )

    def cpu_seconds(self, node: Node) -> float | None:
        with contextlib.suppress(ProcessLookupError):
            return sum(map(machine.cpu_seconds, node.pids)) if node.pids else None
        return None

    def run_delay_seconds(self, node: Node) -> float:
        return 0.0 if node.pid is None else machine.main_thread_run_delay(node.pid)

    def count_cores(self) -> int:
        return machine.count_cores()

    def available_memory(self) -> int:
        return machine.available_memory()

    def measure_memory(self, pids: Iterable[int]) -> MemoryUsage | None:
        measured = [memory for pid in pids if (memory := _measure_process(pid)) is not None]
        if not measured:
            return None
        return MemoryUsage(
            private=sum(memory.private for memory in measured),
            proportional=sum(memory.proportional for memory in measured),
        )

    async def close(self) -> None:
        """Drain every node and wait until all are gone, and the pilots too."""
        self._closed = True
        for process in list(self._processes.values()):
            self._stop_node(process)
        await self._pilots.close()
        gone = [asyncio.ensure_future(process.node.gone.wait()) for process in self._processes.values()]
        await asyncio.gather(*gone)

    async def _run_housekeeping(self) -> None:
        """Forget older OOM kills, reap orphans, measure the memory of nodes again: they may grow."""
        self._ooms.has_recent_kill()
        if linux.AVAILABLE:
            self._orphans.reap()
        for process in list(self._processes.values()):
            if process.node.memory is not None and process.child is not None:
                process.node.memory = await self._measure_node(process.node) or process.node.memory

    async def _enforce_memory_limits(self) -> None:
        for process in list(self._processes.values()):
            most, child = process.spec.limits.memory_bytes, process.child
            if not most or child is None or process.failure:
                continue
            # An estimate first, which is cheap: it includes pages shared with the pilot.
            if sum(machine.anonymous_memory(pid) or 0 for pid in process.node.pids) <= most:
                continue
            memory = await self._measure_node(process.node)
            if memory is not None and memory.private > most:
                process.failure = (
                    f"The node was killed: it took {memory.private >> 20} MiB of memory, and may take "
                    f"{most >> 20} MiB (setting node_memory_bytes)."
                )
                process.node.permanent_failure = process.node.state is NodeState.STARTING
                child.kill()

    # ---- one node, from start to end

    def _start_node(self, spec: NodeSpec) -> None:
        """Raises OSError."""
        name = f"{next(self._numbers)}"
        region = SharedRegion(spec.concurrency, spec.counter_bytes)
        try:
            socket = NodeSocket()
        except BaseException:
            region.close()
            raise
        node = Node(
            id=name,
            key=spec.key,
            address=socket.address,
            shared=region.memory,
            asked_at=time.monotonic(),
        )
        process = _NodeProcess(node, spec, region, socket, first=not self._nodes.get(spec.key))
        self._processes[name] = process
        self._nodes.setdefault(spec.key, []).append(node)
        for pilot in spec.pilots:
            self._pilots.on_node_start(pilot)
        process.starting = asyncio.create_task(self._launch_process(process), name=f"launch {process.name}")
        self._start_task("node", self._supervise_node(process, process.starting), process.name)
        self._listener(node)

    def _stop_node(self, process: _NodeProcess) -> None:
        if process.node.state in (NodeState.DRAINING, NodeState.GONE):
            return
        self._set_state(process, NodeState.DRAINING)
        if process.child is not None:
            process.draining = self._start_task(
                "drain", self._drain_node(process, process.child), process.name
            )
        elif process.starting is not None:
            process.starting.cancel()

    async def _launch_process(self, process: _NodeProcess) -> tuple[ChildProcess, NodePipes]:
        """Start its process, forked or cold; raises OSError."""
        process.slot = await self._slots.take(first=process.first)
        spec = process.spec
        limits, arguments = spec.limits, spec.arguments
        if spec.helper is not None:
            arguments = {**arguments, "pilot": await self._pilots.wait_for_address(spec.helper)}
        launch = LaunchSpec(spec.entry, arguments, spec.environment, limits.open_files, limits.nice)

        def make_pipes() -> NodePipes:
            # The time that a pilot took to start is no part of a node's start.
            process.node.asked_at = time.monotonic()
            return NodePipes(launch, process.socket.fileno(), process.region.fileno())

        if spec.pilot is not None:
            forked = await self._pilots.fork_node(spec.pilot, make_pipes)
            if forked is not None:
                process.node.forked = True
                return forked
        return _start_cold(spec, make_pipes())

    async def _supervise_node(
        self, process: _NodeProcess, starting: asyncio.Task[tuple[ChildProcess, NodePipes]]
    ) -> None:
        """Run a node from start to end. Whatever goes wrong, the node is gone when this returns."""
        try:
            await self._run_node(process, starting)
        except Exception as error:
            self._supervisor.report_error("node", error, process.name)
            await self._end_unattended(process, starting, error)

    async def _end_unattended(
        self, process: _NodeProcess, starting: asyncio.Task[tuple[ChildProcess, NodePipes]], error: Exception
    ) -> None:
        """End a node after an error of the server."""
        starting.cancel()
        await asyncio.wait((starting,))
        process.socket.close_listener()
        child = None
        if not starting.cancelled() and starting.exception() is None:
            child, pipes = starting.result()
            pipes.close()
            child.kill()
            await child.wait()
        if process.node.state is not NodeState.GONE:
            self._remove_node(process, _describe_unattended(error), crashed=True)
        if child is not None:
            await child.wait_group_gone()

    async def _run_node(
        self, process: _NodeProcess, starting: asyncio.Task[tuple[ChildProcess, NodePipes]]
    ) -> None:
        await asyncio.wait((starting,))
        process.socket.close_listener()
        if starting.cancelled():
            self._remove_node(process, "The node was stopped before it had started.", crashed=False)
            return
        if (error := starting.exception()) is not None:
            logger.error("%s cannot be started", process.name, exc_info=error)
            process.node.starved = is_shortage(error)
            self._remove_node(process, f"Cannot start a process: {error}", crashed=True)
            return
        child, pipes = starting.result()
        await self._watch_process(process, child, pipes)

    async def _watch_process(self, process: _NodeProcess, child: ChildProcess, pipes: NodePipes) -> None:
        node = process.node
        process.child, node.pid = child, child.pid
        if node.state is NodeState.DRAINING:
            process.draining = self._start_task("drain", self._drain_node(process, child), process.name)
        logger.info(
            "%s starts (pid %d, %s)", process.name, child.pid, "forked" if node.forked else "started cold"
        )
        output = ProcessOutput(pipes.detach_output(), process.name, lambda line: self._on_line(node, line))
        process.tail = output.tail
        reading = asyncio.create_task(output.read_lines(), name=f"output of {process.name}")
        hearing = asyncio.create_task(
            self._await_ready(process, child, pipes), name=f"start of {process.name}"
        )
        try:
            code = await self._wait_for_end(process, child, (reading, hearing))
            asked_to = node.state is NodeState.DRAINING and not node.hung
            if node.state is NodeState.READY:
                self._set_state(process, NodeState.DRAINING)  # it can be lent no more
            # Its last report and output are still in the pipes.
            await asyncio.wait((hearing, reading), timeout=self._timing.last_output)
        finally:
            tasks = [task for task in (hearing, reading, process.measuring) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        pipes.close()
        if output.shortage and node.ready_at is None and not (asked_to or process.failure):
            node.starved = True
            process.failure = f"The node {describe_thread_shortage(code, output.shortage)}"
        reason = process.failure or self._describe_end(code, process)
        self._remove_node(process, reason, crashed=not asked_to)
        await child.wait_group_gone()

    async def _wait_for_end(
        self, process: _NodeProcess, child: ChildProcess, beside: Collection[asyncio.Task[None]]
    ) -> int | None:
        """Wait until it has ended; kill it if its output or report pipe is lost. Returns its exit code."""
        waiting: set[asyncio.Future[Any]] = {child.exit, *beside}
        while not child.exit.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            errors = [error for task in done - {child.exit} if (error := task.exception()) is not None]
            if errors and not (await asyncio.wait((child.exit,), timeout=self._timing.last_output))[0]:
                logger.error("%s lost its output or report pipe", process.name, exc_info=errors[0])
                process.failure = process.failure or _describe_unattended(errors[0])
                child.kill()
        return child.exit.result()

    def _describe_end(self, code: int | None, process: _NodeProcess) -> str:
        if code == -signal.SIGKILL and self._ooms.has_recent_kill():
            return "The node was killed: out of memory."
        return f"The node {describe_exit(code, process.tail)}"

    def _remove_node(self, process: _NodeProcess, reason: str, *, crashed: bool) -> None:
        node = process.node
        del self._processes[node.id]
        self._nodes[node.key].remove(node)
        if not self._nodes[node.key]:
            del self._nodes[node.key]
        node.reason, node.crashed = reason, crashed
        process.region.close()
        (logger.error if crashed else logger.info)("%s is gone: %s", process.name, reason)
        self._set_state(process, NodeState.GONE)
        process.socket.close()  # after the listeners: another socket may get its address
        node.gone.set()
        for pilot in process.spec.pilots:
            self._pilots.on_node_gone(pilot)

    async def _drain_node(self, process: _NodeProcess, child: ChildProcess) -> None:
        """End a node: SIGTERM once no request is inside, SIGKILL when the drain time is over."""
        deadline = time.monotonic() + self._drain
        try:
            if process.node.in_flight:
                await _completes_within(process.node.empty.wait(), self._drain)
            child.terminate()
            if not await _completes_within(child.wait(), deadline - time.monotonic()):
                logger.warning("%s did not drain in time", process.name)
                process.failure = f"The node was killed (SIGKILL): it had not ended after {self._drain:g} s."
                child.kill()
        except BaseException:
            child.kill()  # or it would stay for ever
            raise

    async def _await_ready(self, process: _NodeProcess, child: ChildProcess, pipes: NodePipes) -> None:
        node, seconds = process.node, process.spec.start_timeout
        try:
            async with asyncio.timeout(seconds):
                while {"pid", "companion"} & (message := await pipes.receive_report()).keys():
                    node.companion = message.get("companion", node.companion)
        except TimeoutError:
            process.failure = f"The node was not ready after {seconds:g} s (setting start_timeout)."
            node.permanent_failure = True
            child.kill()
            return
        if not message and not await _completes_within(child.wait(), self._timing.last_output):
            process.failure = (
                "The node has closed its connection to the server before it was ready, and went on. Code of "
                "the model must leave descriptors alone that it has not opened."
            )
            node.permanent_failure = True
            child.kill()
        elif "short" in message:
            process.failure = str(message["short"])
            node.starved = True
        elif "failed" in message:
            process.failure = str(message["failed"])
            node.permanent_failure = True
        elif "ready" in message and node.state is NodeState.STARTING:
            node.report, node.ready_at = message["ready"], time.monotonic()
            logger.info("%s is ready after %.3f s", process.name, node.ready_at - node.asked_at)
            self._set_state(process, NodeState.READY)
            process.measuring = self._start_task("measurement", self._measure_later(node), process.name)

    async def _measure_later(self, node: Node) -> None:
        await asyncio.sleep(_MEASURE_DELAY)
        node.memory = await self._measure_node(node)

    async def _measure_node(self, node: Node) -> MemoryUsage | None:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._memory_thread, self.measure_memory, node.pids)

    def _set_state(self, process: _NodeProcess, state: NodeState) -> None:
        process.node.state = state
        if process.slot is not None:
            process.slot.release()
        self._listener(process.node)

    def _start_task(self, kind: str, coroutine: Coroutine[Any, Any, None], title: str) -> asyncio.Task[None]:
        task = self._supervisor.start_task(kind, coroutine, title=title)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _OomWatch:
    def __init__(self) -> None:
        self._kills = machine.oom_kills()
        self._at = float("-inf")

    def has_recent_kill(self) -> bool:
        """Whether the kernel killed a process to free memory since the last call or in the last second."""
        kills, now = machine.oom_kills(), time.monotonic()
        if kills > self._kills:
            self._kills, self._at = kills, now
        return now - self._at < 1


def _measure_process(pid: int) -> MemoryUsage | None:
    try:
        return machine.measure_memory(pid)
    except ProcessLookupError:
        return None


def _describe_unattended(error: BaseException) -> str:
    return f"The node was ended: the server lost control of it ({describe_error(error)})."


def _start_cold(spec: NodeSpec, pipes: NodePipes) -> tuple[ChildProcess, NodePipes]:
    try:
        child = spawn_child(
            [sys.executable, "-m", "autoscaler.node_process", pipes.node_ends.to_argument()],
            environment=spec.environment,
            descriptors=pipes.node_ends.as_tuple(),
            stdout=pipes.output,
            stderr=pipes.output,
        )
    except BaseException:
        pipes.close()
        raise
    pipes.close_node_ends()
    return child, pipes


def _choose_drained_nodes(ready: Sequence[_NodeProcess], number: int) -> list[_NodeProcess]:
    """The nodes to drain; of those with the same load the youngest."""
    by_load = sorted(ready, key=lambda process: (process.node.in_flight, -process.node.asked_at))
    return by_load[: max(0, number)]


def _make_wait(seconds: float) -> Callable[[], Coroutine[Any, Any, None]]:
    async def wait() -> None:
        await asyncio.sleep(seconds)

    return wait


async def _completes_within(waiting: Coroutine[Any, Any, Any], seconds: float) -> bool:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await waiting
    except TimeoutError:
        return False
    return True
