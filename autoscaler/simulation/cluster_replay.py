"""A day of many versions on many servers, by the decisions of `autoscaler.placement`.

Requests are not replayed one by one: those of a version come at random at a rate, and what that makes of it
on average is known in closed form. So a day of 100,000 versions at a million requests per second takes a
minute.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoscaler.placement.members import Member, decide_weight
from autoscaler.placement.ownership import OwnerDemand, count_nodes_per_server, decide_owner_count, hash_name

# Seconds of a step: as often a server may change its weight.
STEP = 60.0

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_BLOCK = 1 << 14  # versions whose claims are computed at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConditions:
    """What is simulated. Memory is in bytes, times are in seconds.

    Version number n gets a share of all requests in proportion to 1 / n. `curve` has the requests per second
    of each step. A request lands on any server. A node takes `node_bytes` and computes one request at a time,
    each for `service_seconds`; a version sleeps after `idle_window` without a request. `losses` servers, one
    after the other over the day, are lost and come back after `loss_seconds`.
    """

    servers: int
    versions: int
    curve: Sequence[float]
    node_bytes: int
    memory_bytes: int
    processors: int
    service_seconds: float
    idle_window: float
    max_nodes: int | None = None
    losses: int = 4
    loss_seconds: float = 1800.0

    @property
    def nodes_per_server(self) -> int:
        return count_nodes_per_server(self.processors)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult:
    """What a day came to; all counts are averages over chance.

    `moves` are changes of a version's first owner, `awake_moves` those of versions that had nodes;
    `cold_starts` include those that moves caused, `moved_starts`. `memory_...` are of one server: the mean,
    and the most that any had. `peak_load` is the highest load of any server, `usual_ratio` the median over
    the day of the highest load in relation to the mean of all servers. `full_minutes` are those that servers,
    together, had a load over 1. `wide_versions` had several owners at the same time, `most_owners` the
    widest.
    """

    servers: int
    versions: int
    seconds: float
    requests: float
    hops: float
    cold_starts: float
    moved_starts: float
    moves: int
    awake_moves: float
    memory_mean: float
    memory_max: float
    peak_load: float
    usual_ratio: float
    full_minutes: float
    wide_versions: int
    most_owners: int
    lowest_weight: int


def simulate_cluster(
    conditions: ClusterConditions, progress: Callable[[float], None] = lambda _: None
) -> ClusterResult:
    """Deterministic. `progress` gets the simulated part, often."""
    return _ClusterReplay(conditions).run(progress)


class _ClusterReplay:
    def __init__(self, conditions: ClusterConditions) -> None:
        self._conditions = conditions
        self._members = [
            Member(id=f"server-{number}", capacity=conditions.memory_bytes)
            for number in range(conditions.servers)
        ]
        self._claims = compute_claims(
            [f"version-{number}" for number in range(conditions.versions)],
            [member.id for member in self._members],
        )
        shares = 1.0 / np.arange(1, conditions.versions + 1)
        self._shares: Floats = shares / shares.sum()
        self._alive = np.ones(conditions.servers, dtype=bool)
        self._owner_counts: dict[int, int] = {}
        self._first: Integers = np.full(conditions.versions, -1)
        self._highest: Floats = np.zeros(conditions.versions)  # the claims of the first owners
        self._offers: Floats = np.zeros(conditions.servers)
        # What versions that have moved leave behind until they sleep there: bytes by server, a step each.
        self._leftovers: deque[Floats] = deque(maxlen=max(1, math.ceil(conditions.idle_window / STEP)))
        self._requests = self._hops = self._cold = self._moved_starts = self._awake_moves = 0.0
        self._moves = self._wide = self._widest = 0
        self._memory_sum = self._memory_max = self._peak_load = self._full_minutes = 0.0
        self._ratios: list[float] = []
        self._lowest_weight = min(member.weight for member in self._members)

    def run(self, progress: Callable[[float], None]) -> ClusterResult:
        curve, losses = self._conditions.curve, dict(self._plan_losses())
        for step, rate in enumerate(curve):
            self._alive[:] = True
            if step in losses:
                self._alive[losses[step]] = False
            rates: Floats = self._shares * rate
            self._simulate_step(rates, self._choose_first_owners(rates))
            progress((step + 1) / len(curve))
        conditions, steps = self._conditions, max(1, len(curve))
        return ClusterResult(
            servers=conditions.servers,
            versions=conditions.versions,
            seconds=len(curve) * STEP,
            requests=self._requests,
            hops=self._hops,
            cold_starts=self._cold,
            moved_starts=self._moved_starts,
            moves=self._moves,
            awake_moves=self._awake_moves,
            memory_mean=self._memory_sum / steps,
            memory_max=self._memory_max,
            peak_load=self._peak_load,
            usual_ratio=float(np.median(self._ratios)) if self._ratios else 0.0,
            full_minutes=self._full_minutes,
            wide_versions=self._wide,
            most_owners=self._widest,
            lowest_weight=self._lowest_weight,
        )

    def _plan_losses(self) -> Iterator[tuple[int, int]]:
        """The steps in which a server is away, and which."""
        conditions = self._conditions
        steps, away = len(conditions.curve), max(1, round(conditions.loss_seconds / STEP))
        if conditions.servers < 2:
            return
        for number in range(conditions.losses):
            begin = (number + 1) * steps // (conditions.losses + 1)
            yield from ((step, number % conditions.servers) for step in range(begin, begin + away))

    def _choose_first_owners(self, rates: Floats) -> Integers:
        """The versions that move; none at the beginning, when all come."""
        before, offers = self._offers, self._get_offers()
        self._offers = offers
        old = self._first.copy()
        if old[0] < 0:
            self._assign_first_owners(np.arange(self._conditions.versions))
            return np.empty(0, dtype=np.int64)
        # Versions of those that offer less look for the best again, those that offer more may get any.
        self._assign_first_owners(np.flatnonzero((offers < before)[old]))
        for server in np.flatnonzero(offers > before).tolist():
            claims = self._claims[server] * offers[server]
            won = claims >= self._highest
            self._first[won], self._highest[won] = server, claims[won]
        moved: Integers = np.flatnonzero(old != self._first)
        awake = self._awake_share(rates[moved])
        self._moves += len(moved)
        self._awake_moves += float(awake.sum())
        left = self._add_up(old[moved], awake)
        self._leftovers.append(left * self._alive * self._conditions.node_bytes)
        return moved

    def _get_offers(self) -> Floats:
        weights: Floats = np.array([member.weight for member in self._members], dtype=np.float64)
        return weights * self._alive

    def _add_up(self, servers: Integers, amounts: Floats) -> Floats:
        """The sum of amounts by server."""
        sums: Floats = np.bincount(servers, weights=amounts, minlength=len(self._members)).astype(np.float64)
        return sums

    def _assign_first_owners(self, versions: Integers) -> None:
        for begin in range(0, len(versions), _BLOCK):
            block = versions[begin : begin + _BLOCK]
            claims = self._claims[:, block] * self._offers[:, None]
            self._first[block] = claims.argmax(axis=0)
            self._highest[block] = claims.max(axis=0)

    def _awake_share(self, rates: Floats) -> Floats:
        """The part of the time in which the last request is no longer ago than the idle window."""
        share: Floats = -np.expm1(-rates * self._conditions.idle_window)
        return share

    def _simulate_step(self, rates: Floats, moved: Integers) -> None:
        conditions = self._conditions
        busy: Floats = rates * conditions.service_seconds
        nodes: Floats = np.maximum(1.0, np.ceil(busy))
        if conditions.max_nodes is not None:
            nodes = np.minimum(nodes, conditions.max_nodes)
        awake = self._awake_share(rates)
        servers = len(self._members)
        memory = self._add_up(self._first, awake * nodes) * conditions.node_bytes
        processors = self._add_up(self._first, busy)
        self._requests += float(rates.sum()) * STEP
        # Of a version with one owner all but the requests that land there take a hop.
        living = int(self._alive.sum())
        self._hops += float(rates.sum()) * STEP * (1 - 1 / living)
        self._cold += float((rates * np.exp(-rates * conditions.idle_window)).sum()) * STEP
        started = float(awake[moved].sum())
        self._cold += started
        self._moved_starts += started
        self._spread_wide_versions(rates, memory, processors)
        memory += sum(self._leftovers, np.zeros(servers))
        self._apply_load(memory, processors)

    def _spread_wide_versions(self, rates: Floats, memory: Floats, processors: Floats) -> None:
        """Divide the versions that call for several owners; they are the first ones, and few."""
        conditions = self._conditions
        living = int(self._alive.sum())
        counts: dict[int, int] = {}
        for version, rate in enumerate(rates.tolist()):
            busy = rate * conditions.service_seconds
            if busy <= conditions.nodes_per_server and version not in self._owner_counts:
                if not any(other > version for other in self._owner_counts):
                    break
                continue
            owners = self._owner_counts.get(version, 1)
            count = decide_owner_count(
                OwnerDemand(
                    owners=owners,
                    nodes_here=math.ceil(busy / owners),
                    nodes_per_server=conditions.nodes_per_server,
                    max_nodes=conditions.max_nodes,
                    servers=living,
                )
            )
            if count > 1:
                counts[version] = count
                nodes = max(1, math.ceil(busy)) * conditions.node_bytes
                first = int(self._first[version])
                memory[first] -= nodes
                processors[first] -= busy
                for owner in self._rank(version)[:count]:
                    memory[owner] += nodes / count
                    processors[owner] += busy / count
                self._hops -= rate * STEP * (count - 1) / living
        self._owner_counts = counts
        self._wide = max(self._wide, len(counts))
        self._widest = max([self._widest, 1, *counts.values()])

    def _rank(self, version: int) -> list[int]:
        """The living servers by their claim to a version."""
        ranked: list[int] = np.argsort(-self._claims[:, version] * self._offers, kind="stable").tolist()
        return ranked

    def _apply_load(self, memory: Floats, processors: Floats) -> None:
        conditions = self._conditions
        loads = np.maximum(memory / conditions.memory_bytes, processors / conditions.processors)
        mean = float(loads[self._alive].mean())
        self._memory_sum += float(memory[self._alive].mean())
        self._memory_max = max(self._memory_max, float(memory.max()))
        self._peak_load = max(self._peak_load, float(loads.max()))
        self._full_minutes += int((loads > 1).sum()) * STEP / 60
        if mean:
            self._ratios.append(float(loads.max()) / mean)
        seen = [
            replace(member, load=load) for member, load in zip(self._members, loads.tolist(), strict=True)
        ]
        living = [member for member, alive in zip(seen, self._alive, strict=True) if alive]
        self._members = [
            replace(member, weight=decide_weight(member, living)) if alive else member
            for member, alive in zip(seen, self._alive, strict=True)
        ]
        self._lowest_weight = min(self._lowest_weight, *(member.weight for member in self._members))


def compute_claims(versions: Sequence[str], servers: Sequence[str]) -> Floats:
    """The claim of each server to each version per unit of its offer: `score_claim`, for all together."""
    names = np.array([hash_name(name) for name in versions], dtype=np.uint64)
    claims: Floats = np.empty((len(servers), len(versions)))
    for row, server in enumerate(servers):
        mixed = names ^ np.uint64(hash_name(server))
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        claims[row] = -1.0 / np.log(((mixed >> np.uint64(12)).astype(np.float64) + 0.5) / (1 << 52))
    return claims
