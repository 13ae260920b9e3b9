"""A server as placement sees it, and the load that it publishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

# The share of its capacity that a server offers is lowered and raised in steps of one of these.
WEIGHT_STEPS = 16
# A server hands versions on while its load is above this many times the mean, and above this share of what it
# has: below it nobody gains by it.
LOAD_BOUND, LEAST_BOUNDED_LOAD = 1.25, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A living server that versions may be placed on.

    It offers `weight` of `WEIGHT_STEPS` parts of its `capacity` (bytes of memory for nodes). `load` is the
    share of its memory or processors that its nodes need. `owner_counts` has the versions that
    it is the first owner of and whose load wants more owners than one, and how many.
    """

    id: str
    capacity: int
    weight: int = WEIGHT_STEPS
    load: float = 0.0
    owner_counts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def decide_weight(own: Member, members: Sequence[Member]) -> int:
    """The next weight of a server, at most one step from the last; call it at a steady, slow pace.

    Versions leave a server when its weight falls, and no other version moves. It rises again once the server
    has less to do than the others.
    """
    mean = mean_load(members)
    if own.load > max(LOAD_BOUND * mean, LEAST_BOUNDED_LOAD):
        return max(1, own.weight - 1)
    if own.load < mean or own.load < LEAST_BOUNDED_LOAD / LOAD_BOUND:
        return min(WEIGHT_STEPS, own.weight + 1)
    return own.weight


def mean_load(members: Sequence[Member]) -> float:
    """The load of all together, each by its capacity."""
    capacity = sum(member.capacity for member in members)
    return sum(member.load * member.capacity for member in members) / capacity if capacity else 0.0
