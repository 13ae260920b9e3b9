"""How much of a server its nodes need.

Idle nodes need nothing, since they give their memory to others; nodes that are wanted and cannot start for
want of memory count as if they were there. Threads that wait for a processor count as those that have one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDemand:
    """What the nodes of a server need and what there is.

    `needed_memory` is that of nodes that may not be stopped, `missing_memory` that of nodes that are wanted
    and have no room, `memory` what nodes may take in all, in bytes. `running` and `waiting` are averages of
    the numbers of threads that have a processor and that wait for one.
    """

    needed_memory: int
    missing_memory: int
    memory: int
    running: float
    waiting: float
    processors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """The shares of a server's memory and processors that are needed; over 1 where there is too little."""

    memory: float = 0.0
    processors: float = 0.0

    @property
    def highest(self) -> float:
        return max(self.memory, self.processors)


def measure_load(demand: ServerDemand) -> ServerLoad:
    return ServerLoad(
        memory=(demand.needed_memory + demand.missing_memory) / max(1, demand.memory),
        processors=(demand.running + demand.waiting) / max(1, demand.processors),
    )
