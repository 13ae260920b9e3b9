"""How much of a server its nodes need, and how many servers that calls for: pure functions.

Idle nodes need nothing, since they give their memory to others; nodes that are wanted and cannot start for
want of memory count as if they were there. Threads that wait for a processor count as those that have one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Averages have rounding errors: four servers that are used by three quarters are 3 full ones, and no more.
_ROUNDING_ERROR = 1e-9


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerScalingSpec:
    """The bounds, and the load that a server should have; servers are of one size.

    `shrink_delay` is for how many seconds fewer servers must be enough before one is taken away.
    """

    least: int = 1
    most: int = 10
    target_load: float = 0.75
    shrink_delay: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerScalingState:
    """The recent (time, servers) that were needed, no older than the delay, each less than those before."""

    needed: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDecision:
    """How many servers there should be, why, and the state to hand on."""

    servers: int
    reason: str
    state: ServerScalingState


def decide_server_count(
    spec: ServerScalingSpec,
    present: int,
    loads: Sequence[ServerLoad],
    state: ServerScalingState,
    now: float,
) -> ServerDecision:
    """`loads` are those of the servers that are heard of; `present` counts all that there should be now.

    As long as not all are heard of, none is taken away: what they do is not known.
    """
    memory, processors = (sum(load.memory for load in loads), sum(load.processors for load in loads))
    total = max(memory, processors)
    needed = max(1, math.ceil(total / spec.target_load - _ROUNDING_ERROR))
    recent = [one for one in state.needed if one[1] > needed and one[0] >= now - spec.shrink_delay]
    state = ServerScalingState(needed=(*recent, (now, needed)))
    which = "memory" if memory >= processors else "processors"
    reason = f"nodes need the {which} of {total:.2f} servers, {spec.target_load:.0%} of each is the aim"

    servers = needed
    if needed < present:
        most = state.needed[0][1]
        if len(loads) < present:
            servers, reason = present, f"{reason}; kept, because {present - len(loads)} are not heard of"
        elif most > needed:
            servers = min(present, most)
            reason += f"; {most} were needed within the last {spec.shrink_delay:g} s"
    bounded = min(max(servers, spec.least), spec.most)
    if bounded != servers:
        reason += f"; {spec.least} to {spec.most} are allowed"
    return ServerDecision(servers=bounded, reason=reason, state=state)
