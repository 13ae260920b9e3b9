"""Nodes and the pools that start and stop them.

Adding a kind of pool: implement `NodePool` in a module of its own. Nodes listen on unix sockets of this
machine; whether they are processes is up to the pool.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from autoscaler.child_launcher import RunningChild
from autoscaler.node_memory import Mark, NodeMemory
from autoscaler.node_process import LaunchSpec

_UNTOUCHED = Mark.UNTOUCHED.value  # a plain integer: it is written for every request


class NodeState(enum.Enum):
    """Moves one way only. Listeners hear of a change after it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class PilotSpec:
    """The modules that a pilot imports, in that order, before it waits for nodes to fork.

    `environment` is the process environment it imports them in. `spare_warmup`, an import string
    "module:function" or "", returns an iterator: its steps are what spares run while they wait.

    `command` starts another program in the pilot's place, of any interpreter, which forks no nodes but
    serves those that connect to its address: it gets a JSON object as its last argument, with `preload`,
    the pid of the `server`, and the numbers of a `listener` and of its `link`, for the same messages as
    those of other pilots.
    """

    key: str
    preload: tuple[str, ...]
    environment: Mapping[str, str]
    spare_warmup: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """The resource limits of a node; 0 means none.

    `memory_bytes` are of its own pages: not those of files, nor those shared with its pilot. `nice` is its
    niceness: 0 to 19.
    """

    memory_bytes: int = 0
    open_files: int = 0
    nice: int = 0


NO_LIMITS = NodeLimits()


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """All that a pool needs to start a node of a version.

    `entry` is an import string "module:function", called in the new process as
    `function(arguments, listener, report, marks)`; see `autoscaler.node_process`. `environment` replaces the
    process environment. `start_timeout` is in seconds, `concurrency` the most requests inside one node.
    Where the pool forks, nodes are forked from the pilot of `pilot`; with a `helper` they are given the
    address of that pilot as the argument "pilot", "" while there is none. `counter_bytes` of counters follow
    the marks in the memory that a node shares with the server. A node over its `limits` is killed.
    """

    key: str
    title: str
    entry: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    start_timeout: float
    concurrency: int
    pilot: PilotSpec | None = None
    helper: PilotSpec | None = None
    counter_bytes: int = 0
    limits: NodeLimits = NO_LIMITS

    @property
    def pilots(self) -> tuple[PilotSpec, ...]:
        return tuple(spec for spec in (self.pilot, self.helper) if spec is not None)


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Memory of a process in bytes: its own pages, and its proportional share of all (PSS)."""

    private: int
    proportional: int


@dataclass(slots=True, eq=False)
class Node:
    """One process serving one version, as its pool and the activator see it.

    `shared` has a mark for each request that may be inside; a request holds one of the `slots`. `report` is
    what the node sent when it became ready, `memory` its memory then. `reason` is why it is gone, in words.
    `crashed`: nobody asked it to end. `permanent_failure`: it gave the reason itself or took too long to
    start, so that another would fail too. `starved`: the machine was short of a resource. `hung`: it was
    killed because it hung. `asked_at` and `ready_at` are on `time.monotonic`. `companion` is the pid of a
    process that works for it alone and ends with it. `forked`: it comes from a pilot. `used`: it has had a
    request.
    """

    id: str
    key: str
    address: str
    shared: NodeMemory
    asked_at: float = 0.0
    state: NodeState = NodeState.STARTING
    forked: bool = False
    pid: int | None = None
    companion: int | None = None
    ready_at: float | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
    memory: MemoryUsage | None = None
    reason: str = ""
    permanent_failure: bool = False
    starved: bool = False
    crashed: bool = False
    hung: bool = False
    in_flight: int = 0
    used: bool = False
    slots: deque[int] = field(init=False)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.slots = deque(range(len(self.shared.marks)))

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes, as far as they have been started."""
        return tuple(pid for pid in (self.pid, self.companion) if pid is not None)

    @property
    def once_seconds(self) -> float:
        """The part of its start that later nodes of the version are spared, as it reported."""
        return float(self.report.get("once_seconds", 0.0))

    def acquire_slot(self) -> int:
        """Take a free slot for a request."""
        self.in_flight += 1
        self.used = True
        slot = self.slots.popleft()  # the one that is free longest: the node does not write its mark any more
        self.shared.marks[slot] = _UNTOUCHED
        return slot

    def release_slot(self, slot: int) -> None:
        """Free a slot. Sets `empty` once a node that gets no more requests has none left."""
        self.in_flight -= 1
        self.slots.append(slot)
        if self.state is not NodeState.READY and not self.in_flight:
            self.empty.set()

    def read_mark(self, slot: int) -> Mark:
        """How far the node got with the request in a slot; after its end too."""
        return Mark(self.shared.marks[slot])

    def read_counters(self) -> bytes:
        """Its counters now, or at its end; `counter_bytes` of its spec."""
        return bytes(self.shared.counters)


class NodeListener(Protocol):
    """Called at every change of a node's state, on the event loop."""

    def __call__(self, node: Node) -> None:
        """Must not block or raise."""


# Gets every line that a node prints. It must not block or raise.
LineCallback = Callable[[Node, str], None]


class PilotState(enum.Enum):
    """Moves one way only; a new pilot replaces one that was stopped or has failed."""

    STARTING = "lighting"
    READY = "lit"
    STOPPED = "out"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PilotStatus:
    """The status of a pilot, for the API.

    `spare` is the pid of the fork that waits to become the next node, `age` how many seconds ago it became
    ready, `seconds` how long that took, `forked` how many nodes came from it, `reason` why it failed.
    """

    key: str
    state: PilotState
    pid: int | None
    spare: int | None
    age: float | None
    seconds: float | None
    forked: int
    reason: str

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process and its spare's, as far as there are any."""
        return tuple(pid for pid in (self.pid, self.spare) if pid is not None)


class NodePool(Protocol):
    """Starts and stops nodes, and knows what they take. It works while its `async with` block runs.

    Everything that is not said to run in threads is called on the event loop, and must not block.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *details: object) -> None:
        """Drain every node and wait until all are gone, and the pilots too."""

    # ---- nodes

    def nodes(self, key: str) -> Sequence[Node]:
        """The nodes of a version that are not gone, oldest first."""

    async def scale(self, spec: NodeSpec, count: int) -> None:
        """Start or drain nodes until `count` are starting or ready; returns before they are.

        The least loaded are drained first, starting ones only when `count` is 0. A draining node is asked to
        end when it has no request left, so none is lost. The pool's listener hears of every change.
        """

    def kill_hung(self, node: Node, reason: str) -> None:
        """Kill a ready node that hangs: it gets no more requests, and counts as crashed."""

    # ---- pilots; a pool without them has none to list, and nothing to wait for

    def set_wanted_pilots(self, specs: Collection[PilotSpec]) -> None:
        """Set which pilots versions may need."""

    def can_fork(self, spec: NodeSpec) -> bool:
        """Whether the next node of this version would be forked from a pilot, not started cold."""

    def list_pilots(self) -> Sequence[PilotStatus]:
        """All pilots that should run, sorted by key."""

    async def wait_for_pilots(self, within: float) -> None:
        """Wait until all pilots are ready or have failed; at most `within` seconds."""

    def run_forked(
        self, pilot: PilotSpec, launch: LaunchSpec, *, output: int, grace_seconds: float
    ) -> AbstractAsyncContextManager[RunningChild | None]:
        """Run an entry that is no node in a fork of a pilot; None in the block where none is ready.

        See `autoscaler.pools.forked_child`.
        """

    # ---- capacity and usage

    def count_cores(self) -> int:
        """The processors that its nodes have together."""

    def available_memory(self) -> int:
        """The bytes that further nodes may take."""

    def measure_memory(self, pids: Iterable[int]) -> MemoryUsage | None:
        """The memory of processes of nodes and pilots together; None if none of them exists any more.

        Blocks for milliseconds per large process; called in any thread.
        """

    def cpu_seconds(self, node: Node) -> float | None:
        """The CPU time of a node since its start; None when that cannot be known."""

    def run_delay_seconds(self, node: Node) -> float:
        """How long a node has been ready to run without a processor, since its start; 0 if unknown."""
