"""What a server publishes of its load, and which versions want more owners than one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from autoscaler import machine
from autoscaler.placement.members import Member
from autoscaler.placement.ownership import (
    OwnerDemand,
    choose_owners,
    count_owners,
    count_room,
    decide_owner_count,
)
from autoscaler.pools import NodePool
from autoscaler.scaling_loop import Autoscaler
from autoscaler.version_scaler import VersionScaler

# The part that the last second has in the average use of the processors.
_NEWEST_SHARE = 1 / 30


class LoadSnapshot(NamedTuple):
    """The share of memory or processors that is taken, whichever is more, and how many nodes and requests."""

    load: float
    nodes: int
    requests: int


class LoadMeter:
    """Call `measure` once a second. Nodes may take `memory_bytes`; `limit` is the setting for that, or 0."""

    def __init__(
        self,
        autoscaler: Autoscaler,
        pool: NodePool,
        memory_bytes: int,
        limit: int,
        read_busy_share: Callable[[], float] = machine.busy_share,
    ) -> None:
        self._autoscaler = autoscaler
        self._pool = pool
        self._memory_bytes = memory_bytes
        self._limit = limit
        self._read_busy_share = read_busy_share
        self._processors = 0.0

    def measure(self) -> LoadSnapshot:
        nodes = requests = taken = 0
        for key in self._autoscaler.awake:
            scaler, count = self._autoscaler.versions[key], len(self._pool.nodes(key))
            nodes += count
            requests += scaler.meter.level
            taken += count * scaler.memory
        if not self._limit:
            taken = max(0, self._memory_bytes - self._pool.free_memory())
        self._processors += _NEWEST_SHARE * (self._read_busy_share() - self._processors)
        return LoadSnapshot(max(taken / self._memory_bytes, self._processors), nodes, requests)

    def is_full(self, key: str) -> bool:
        """Whether there is no node of a version, and no room for one."""
        scaler = self._autoscaler.versions.get(key)
        return scaler is None or (bool(scaler.shortage_reason) and not self._pool.nodes(key))

    def count_wide_versions(
        self, own: str, members: Sequence[Member], processors: int, find_limit: Callable[[str], int | None]
    ) -> Mapping[str, int]:
        """The versions whose first owner is this server and that want more owners, with how many.

        `find_limit` says how many nodes a version may have on all servers together (None: any number).
        """
        wide, room = {}, count_room(processors)
        for key in self._autoscaler.awake:
            owners = count_owners(key, members)
            needed = _count_needed_nodes(self._autoscaler.versions[key])
            if owners == 1 and needed <= room:
                continue  # most versions: nothing to decide
            if choose_owners(key, members)[0].id != own:
                continue
            demand = OwnerDemand(owners, needed, room, find_limit(key), len(members))
            count = decide_owner_count(demand)
            if count > 1:
                wide[key] = count
        return wide


def _count_needed_nodes(scaler: VersionScaler) -> int:
    seen = scaler.observation
    if seen is None:
        return 0
    return math.ceil(max(seen.stable, seen.panic) / scaler.scaling.target_concurrency)
