"""Nodes and the pools that start and stop them.

Adding a kind of pool: implement `NodePool` in a module of its own. A node has an address, not a pid, so
that it may live on another machine.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

_NO_COUNTERS = memoryview(b"")


class NodeState(enum.Enum):
    """Moves one way only. A change is published after the fact."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class PilotSpec:
    """What a pilot imports before it waits for nodes to fork: modules by name, in that order.

    `environment` is the process environment it imports them in. `rehearsal`, an import string
    "module:function" or "", returns an iterator: its steps are what forks do while they wait.

    `command` starts another program in the pilot's place, of whatever interpreter, which forks no nodes but
    serves those that connect to its address: it gets a JSON object as its last argument, with `preload`, the
    pid of the `server`, and the numbers of a `listener` and of its `link`, on which it says what pilots say.
    """

    key: str
    preload: tuple[str, ...]
    environment: Mapping[str, str]
    spare_warmup: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """What a node may take; 0 stands for as much as there is.

    `memory_bytes` are of its own pages: not those of files, nor those it has in common with its pilot.
    `nice` is how far others come before it when processors are short: 0 to 19.
    """

    memory_bytes: int = 0
    open_files: int = 0
    nice: int = 0


NO_LIMITS = NodeLimits()


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What a pool must know to start a node of a version.

    `entry` is an import string "module:function", called in the new process as
    `function(arguments, listener, report, board)`; see `autoscaler.node_process`. `environment` replaces the
    process environment. `start_timeout` is in seconds, `concurrency` the most requests inside one node.
    Where the pool forks, nodes are forked from the pilot of `pilot`; with a `helper` they are given the
    address of that pilot as the argument "pilot", "" while there is none. `notes` is how many bytes a node
    shares with the server besides its board's marks; they lie behind them. One over its `limits` is killed.
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
        """All that starting a node takes."""
        return tuple(spec for spec in (self.pilot, self.helper) if spec is not None)


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """What a process takes, in bytes: its own pages, and its proportional share of all (PSS)."""

    private: int
    proportional: int


class Mark(enum.IntEnum):
    """What a node's board says of the request in a slot: the server writes UNTOUCHED, the node the rest."""

    UNTOUCHED = 0
    COMPUTING = 1
    COMPUTED = 2


@dataclass(slots=True, eq=False)
class Node:
    """One process serving one version, as its pool and the activator see it.

    `board` has a byte for each request that may be inside, its `Mark`; a request holds one of its `slots`
    while it is inside. Once the node is gone the board stays as it was then, as do its
    `notes`. `report` is what the node told
    when it became ready, `memory` what it then took. `reason` is why it is gone, in words; `crashed` whether
    nobody had asked it to go, `hopeless` whether it gave the reason itself or took too long to start, so
    that another would fare no better; `starved` that it
    could not start because the machine was short of something; `hung` that it
    was killed because it did not go on. `asked_at`
    and `ready_at` are on `time.monotonic`; `companion` is a process that works for it alone and ends with it,
    as it told; `forked` says whether a pilot bore it, `used` whether a request
    has ever been inside.
    """

    id: str
    key: str
    address: str
    marks: MutableSequence[int]
    counters: memoryview = _NO_COUNTERS
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
        self.slots = deque(range(len(self.marks)))

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes, as far as they have been started."""
        return tuple(pid for pid in (self.pid, self.companion) if pid is not None)

    @property
    def once_seconds(self) -> float:
        """The part of its start that other nodes of the version are spared, as it reported."""
        return float(self.report.get("once_seconds", 0.0))

    def acquire_slot(self) -> int:
        """Count a request in; returns its slot."""
        self.in_flight += 1
        self.used = True
        slot = self.slots.popleft()  # the one that is free longest: nobody writes its mark any more
        if self.state is NodeState.READY:
            self.marks[slot] = Mark.UNTOUCHED
        return slot

    def release_slot(self, slot: int) -> None:
        """Count a request out. `empty` is set once a node that is lent no more has none left."""
        self.in_flight -= 1
        self.slots.append(slot)
        if self.state is not NodeState.READY and not self.in_flight:
            self.empty.set()


class NodeListener(Protocol):
    """Is told of every change of a node's state, on the event loop."""

    def __call__(self, node: Node) -> None:
        """Take note; must not block or raise."""


class NodePool(Protocol):
    """Starts and stops nodes. All methods are called on the event loop."""

    def nodes(self, key: str) -> Sequence[Node]:
        """The nodes of a version that are not gone, oldest first."""

    async def scale(self, spec: NodeSpec, count: int) -> None:
        """Start or drain nodes until `count` are starting or ready; returns before they are.

        The least loaded go first, those that start only when `count` is 0. A draining node is asked to end
        when it has no request left, so none is lost. Changes are told to the pool's listener.
        """

    def kill_hung(self, node: Node, reason: str) -> None:
        """Kill a ready node that hangs: it is lent no more from now on, and counts as crashed."""

    def cpu_seconds(self, node: Node) -> float | None:
        """What a node has computed since its start; None when that cannot be known."""

    def can_fork(self, spec: NodeSpec) -> bool:
        """Whether the next node of this version would be forked from a pilot, not started cold."""

    async def close(self) -> None:
        """Drain every node and wait until all are gone."""
