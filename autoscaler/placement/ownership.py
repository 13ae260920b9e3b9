"""The owners of a version: weighted rendezvous hashing, also called highest random weight.

Each server and version together give a number that looks random; the server with the highest owns the
version. When a server comes or goes, or changes its weight, only versions move that it gains or loses.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from autoscaler.decision import ScalingSpec
from autoscaler.placement.members import Member

_MASK = (1 << 64) - 1
# The owners of a version become fewer when so much of the room of the fewer is enough.
_SHRINK_SHARE = 0.7
_CACHED_SEEDS = 4096


def rank_members(key: str, members: Sequence[Member]) -> list[Member]:
    """Members by their claim to a version, the strongest first; the same on every server."""
    version = hash_name(key)
    return sorted(
        members, key=lambda member: (-score_claim(version, _seed_of(member.id), _offer_of(member)), member.id)
    )


def choose_owners(key: str, members: Sequence[Member]) -> list[Member]:
    """The owners of a version, the first one first; none without members."""
    if len(members) < 2:
        return list(members)
    ranked = rank_members(key, members)
    return ranked[: count_owners(key, members)]


def count_owners(key: str, members: Sequence[Member]) -> int:
    """How many owners the load of a version wants, as its first owner has published."""
    return max((member.owner_counts.get(key, 1) for member in members), default=1)


class OwnerDemand(NamedTuple):
    """What the first owner of a version sees of it.

    `owners` share its requests now, and the load here calls for `nodes_here`; a server has room for
    `nodes_per_server`. There may be `max_nodes` of it in all (None: any number).
    """

    owners: int
    nodes_here: int
    nodes_per_server: int
    max_nodes: int | None
    servers: int


def count_nodes_per_server(processors: int) -> int:
    """The nodes of one version that a server has room for: half, or a few of these would fill it unevenly."""
    return max(1, processors // 2)


def decide_owner_count(demand: OwnerDemand) -> int:
    """How many owners a version should have from now on."""
    total = demand.nodes_here * demand.owners
    wanted = math.ceil(total / demand.nodes_per_server)
    fewer = math.ceil(total / (_SHRINK_SHARE * demand.nodes_per_server))
    count = wanted if wanted > demand.owners else min(demand.owners, fewer)
    most = demand.servers if demand.max_nodes is None else min(demand.servers, demand.max_nodes)
    return max(1, min(count, most))


class NodeShare(NamedTuple):
    """A server's part in the nodes of a version: its `position` among the `owners`, None for no owner."""

    position: int | None
    owners: int = 1


def share_scaling(spec: ScalingSpec, share: NodeShare, *, divide_max: bool) -> ScalingSpec:
    """The limits of a version on one server, of those that hold for all together.

    Owners divide them; the first get one more where they do not go into it evenly. A server that is no owner
    keeps no node, but may start some for requests that no owner takes. `divide_max`: the highest number was
    set for the version, and is not just what one server has room for.
    """
    if share.position is None:
        most = spec.max_nodes if spec.exact_nodes is None else max(1, spec.exact_nodes)
        return replace(spec, min_nodes=0, exact_nodes=None, max_nodes=most)
    least = _divide(spec.min_nodes, share)
    most = _divide(spec.max_nodes, share) if divide_max else spec.max_nodes
    exact = None if spec.exact_nodes is None else _divide(spec.exact_nodes, share)
    return replace(spec, min_nodes=least, exact_nodes=exact, max_nodes=max(1, least, most))


def _divide(total: int, share: NodeShare) -> int:
    each, more = divmod(total, share.owners)
    return each + (share.position is not None and share.position < more)


# ---- hashing


def hash_name(name: str) -> int:
    """64 bits of a name, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


_seed_of = lru_cache(_CACHED_SEEDS)(hash_name)


def _offer_of(member: Member) -> float:
    return float(max(1, member.capacity) * member.weight)


def score_claim(version: int, server: int, offer: float) -> float:
    """The claim of a server to a version: of many versions it has the highest to its part of all offers."""
    mixed = version ^ server
    # The finalizer of SplitMix64.
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    mixed ^= mixed >> 31
    return -offer / math.log(((mixed >> 12) + 0.5) / (1 << 52))
