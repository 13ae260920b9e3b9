"""What a server has for versions: whether it is full for one, and which want more owners than one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from autoscaler.placement.members import Member
from autoscaler.placement.ownership import (
    OwnerDemand,
    choose_owners,
    count_nodes_per_server,
    count_owners,
    decide_owner_count,
)
from autoscaler.pools import NodePool
from autoscaler.scaling_loop import Autoscaler
from autoscaler.version_scaler import VersionScaler


class PlacementDemand:
    """What versions want of this server, for its place among others.

    At most `queue_requests` of a version run and wait here before another server is asked for it.
    """

    def __init__(self, autoscaler: Autoscaler, pool: NodePool, queue_requests: int) -> None:
        self._autoscaler = autoscaler
        self._pool = pool
        self._queue_requests = queue_requests

    def count_nodes_and_requests(self) -> tuple[int, int]:
        nodes = requests = 0
        for key in self._autoscaler.awake:
            nodes += len(self._pool.nodes(key))
            requests += self._autoscaler.versions[key].meter.level
        return nodes, requests

    def is_full(self, key: str) -> bool:
        """Whether a version has no node here, and no room for one, or too many requests wait for it."""
        scaler = self._autoscaler.versions.get(key)
        if scaler is None or scaler.meter.level >= self._queue_requests:
            return True
        return bool(scaler.shortage_reason) and not self._pool.nodes(key)

    def count_wanted_owners(
        self, own: str, members: Sequence[Member], processors: int, find_limit: Callable[[str], int | None]
    ) -> Mapping[str, int]:
        """The versions whose first owner is this server and that want more owners, with how many.

        `find_limit` says how many nodes a version may have on all servers together (None: any number).
        """
        wide, room = {}, count_nodes_per_server(processors)
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
