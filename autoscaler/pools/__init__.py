"""Nodes and the pools that start and stop them.

Adding a kind of pool: implement `NodePool` in a module of its own. A node has an address, not a pid, so
that it may live on another machine.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class NodeState(enum.Enum):
    """Moves one way only. A change is published after the fact."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What a pool must know to start a node of a version.

    `entry` is an import string "module:function", called in the new process as
    `function(arguments, listener, report)`; `environment` replaces the process environment.
    `start_timeout` is in seconds, `concurrency` the most requests inside one node.
    """

    key: str
    title: str
    entry: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    start_timeout: float
    concurrency: int


@dataclass(slots=True, eq=False)
class Node:
    """One process serving one version, as its pool and the activator see it.

    `report` is what the node told when it became ready; `reason` why it is gone, in words.
    """

    id: str
    key: str
    address: str
    state: NodeState = NodeState.STARTING
    report: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    in_flight: int = 0


class Listener(Protocol):
    """Is told of every change of a node's state, on the event loop."""

    def __call__(self, node: Node) -> None:
        """Take note; must not block or raise."""


class NodePool(Protocol):
    """Starts and stops nodes. All methods are called on the event loop."""

    def nodes(self, key: str) -> Sequence[Node]:
        """The nodes of a version that are not gone, oldest first."""

    async def scale(self, spec: NodeSpec, count: int) -> None:
        """Start or drain nodes until `count` are starting or ready; returns before they are.

        Draining nodes finish their requests. Changes are told to the pool's listener.
        """

    async def close(self) -> None:
        """Drain every node and wait until all are gone."""
