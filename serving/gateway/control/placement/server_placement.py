"""Keeps a server's place among those of its database: its row, its view of the others, connections to them.

What follows from the view is decided in `autoscaler.placement`. Requests are routed by the servers that are
alive and reached from here, limits of nodes are divided among those that are alive.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from autoscaler.placement.members import WEIGHT_STEPS, Member, decide_weight
from autoscaler.placement.ownership import NodeShare, choose_owners, rank_members
from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.config import MOST_SERVERS, is_loopback
from serving.errors import ServingError
from serving.gateway.proxy.peers.peer_client import PROBE_SECONDS, PeerClient
from serving.gateway.proxy.peers.peer_protocol import (
    PeerAddress,
    PeerTarget,
    ProtocolVersions,
    choose_version,
)
from serving.gateway.state.shared.membership import (
    SILENT_SECONDS,
    Membership,
    ScalingReport,
    SeenServer,
    ServerRecord,
)
from serving.gateway.thread_pool import ThreadPool

logger = logging.getLogger(__name__)

RENEW_SECONDS = 1.0
# Connections that are begun at a time. Rows may tell of many servers at which nobody answers.
MOST_CONNECTS = 8
# Rounds between two changes of the weight: moved versions take their time to sleep where they were.
_WEIGHT_ROUNDS = 60
_ROUND_SECONDS = 60.0
_LEAVE_SECONDS = 5.0
# Versions with a known route; beyond it all are looked up again.
_MAX_ROUTES = 1 << 17


class VersionDemand(Protocol):
    """See `serving.gateway.control.placement.placement_demand.PlacementDemand`."""

    def count_nodes_and_requests(self) -> tuple[int, int]: ...

    def is_full(self, key: str) -> bool: ...

    def count_wanted_owners(
        self, own: str, members: Sequence[Member], processors: int, find_limit: Callable[[str], int | None]
    ) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class ServerView:
    """A server of the database as this one sees it.

    `is_alive`: it has renewed its row lately. `is_reached`: requests can be sent to it; None of this server
    itself.
    """

    record: ServerRecord
    age: float
    is_alive: bool
    is_reached: bool | None


class ServerPlacement:
    """`connect` makes the client of a peer; it gets what to call when that is connected or lost.

    `read_load` returns the share of this server that its nodes need, `owns_work` whether the work is its own.
    `on_shares_changed` gets the versions that several owners have or had; others whose owner has changed are
    not named. `find_limit`: see `PlacementDemand.count_wanted_owners`.
    """

    def __init__(
        self,
        membership: Membership,
        own: ServerRecord,
        demand: VersionDemand,
        *,
        read_load: Callable[[], float],
        owns_work: Callable[[], bool],
        read_scaling: Callable[[], ScalingReport | None],
        connect: Callable[[PeerTarget, Callable[[], None]], PeerClient],
        on_shares_changed: Callable[[Collection[str]], None],
        find_limit: Callable[[str], int | None],
    ) -> None:
        self._membership = membership
        self._own = own
        self._demand = demand
        self._read_load = read_load
        self._owns_work = owns_work
        self._read_scaling = read_scaling
        self._connect = connect
        self._on_shares_changed = on_shares_changed
        self._find_limit = find_limit
        self._thread = ThreadPool("servers", 1)
        self._members: tuple[Member, ...] = ()  # alive, this one too
        self._seen: Sequence[SeenServer] = ()
        self._clients: dict[str, PeerClient] = {}
        self._foreign: set[str] = set()  # servers that speak no version of the protocol that this one does
        self._routes: dict[str, tuple[PeerClient, ...] | None] = {}
        self._turns = itertools.count()
        self._rounds = 0
        self._is_first = True
        self.owners_revision = 0  # changes with the owners of versions
        self.hops: Counter[str] = Counter()
        self.hop_seconds = 0.0

    # ---- for the proxy

    def find_peer(self, key: str) -> PeerClient | None:
        """Implements `PeerRouter`: another owner, or if this server is one, and full, the next in rank."""
        try:
            peers = self._routes[key]
        except KeyError:
            peers = self._find_route(key)
        if peers is None:
            return self._find_overflow_server(key) if self._demand.is_full(key) else None
        return peers[0] if len(peers) == 1 else peers[next(self._turns) % len(peers)]

    def is_full(self, key: str) -> bool:
        return self._demand.is_full(key)

    def on_hop_ended(self, outcome: str, seconds: float) -> None:
        self.hops[outcome] += 1
        self.hop_seconds += seconds

    def _find_route(self, key: str) -> tuple[PeerClient, ...] | None:
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        own = self._own.id
        reached = [one for one in self._members if one.id == own or self._is_reached(one.id)]
        owners = [one.id for one in choose_owners(key, reached)]
        peers = None if own in owners or not owners else tuple(self._clients[one] for one in owners)
        self._routes[key] = peers
        return peers

    def _find_overflow_server(self, key: str) -> PeerClient | None:
        """The server with the next claim to a version that this one owns, and is full for."""
        reached = [one for one in self._members if self._is_reached(one.id)]
        return self._clients[rank_members(key, reached)[0].id] if reached else None

    def _is_reached(self, server: str) -> bool:
        client = self._clients.get(server)
        return client is not None and client.is_connected

    # ---- for questions

    def find_client(self, server: str) -> PeerClient | None:
        """The connection to the server with an id; None if it is not reached."""
        return self._clients[server] if self._is_reached(server) else None

    def find_work_owner(self) -> ServerRecord | None:
        """The other server that does the work, as its row says."""
        own = self._own.id
        return next(
            (
                seen.record
                for seen in self._seen
                if seen.record.owns_work and seen.record.id != own and seen.age < SILENT_SECONDS
            ),
            None,
        )

    # ---- for the limits and the files of versions

    def find_share(self, key: str, *, has_floor: bool) -> NodeShare:
        """The part of this server in the nodes of a version. Without a lower limit, one owner needs none."""
        if not has_floor and all(key not in member.owner_counts for member in self._members):
            return NodeShare(0)
        owners = [one.id for one in choose_owners(key, self._members)]
        own = self._own.id
        if not owners:
            return NodeShare(0)
        return NodeShare(owners.index(own) if own in owners else None, len(owners))

    def is_owner(self, key: str) -> bool:
        return any(one.id == self._own.id for one in choose_owners(key, self._members))

    # ---- for operators

    def list_owners(self, key: str) -> list[str]:
        """The names of the servers that a version is placed on."""
        names = {seen.record.id: seen.record.name for seen in self._seen} | {self._own.id: self._own.name}
        return [names[one.id] for one in choose_owners(key, self._members) if one.id in names]

    def list_servers(self) -> list[ServerView]:
        own = self._own.id
        return [
            ServerView(
                record=seen.record,
                age=seen.age,
                is_alive=seen.age < SILENT_SECONDS,
                is_reached=None if seen.record.id == own else self._is_reached(seen.record.id),
            )
            for seen in self._seen
        ]

    # ---- rounds

    def start(self, supervisor: Supervisor) -> list[BackgroundLoop]:
        async def wait_for_probe() -> None:
            await asyncio.sleep(PROBE_SECONDS)

        return [
            supervisor.start_loop("servers", self._wait, self.renew, within=_ROUND_SECONDS),
            supervisor.start_loop("peers", wait_for_probe, self._probe, within=_ROUND_SECONDS),
        ]

    async def renew(self) -> None:
        """Write the own row, and take in the others'. Without the database all stays as it is known."""
        self._update_own()
        try:
            seen = await self._thread.run(self._membership.renew, self._own)
        except ServingError:
            return
        self._take_in(seen)

    def end_start(self) -> None:
        """Versions may be placed here; the next round tells the others."""
        self._own = msgspec.structs.replace(self._own, starting=False)

    def begin_drain(self) -> None:
        """Nothing is to be placed here any more; the next round tells the others."""
        self._own = msgspec.structs.replace(self._own, draining=True)

    async def leave(self) -> None:
        """Call it when the loops are stopped."""
        for client in self._clients.values():
            client.close()
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._thread.run(self._membership.leave, self._own.id)
        except (ServingError, TimeoutError) as error:
            logger.warning("the row of this server ends by itself: %s", error)

    async def _wait(self) -> None:
        if not self._is_first:
            await asyncio.sleep(RENEW_SECONDS)
        self._is_first = False

    async def _probe(self) -> None:
        for client in self._clients.values():
            if client.is_connected:
                client.probe()
        self._connect_some()

    def _connect_some(self) -> None:
        """Begin with those that were tried least: who never answers keeps nobody else waiting."""
        lacking = [client for client in self._clients.values() if not client.is_connected]
        for client in heapq.nsmallest(MOST_CONNECTS, lacking, key=lambda client: client.attempts):
            client.probe()

    def _update_own(self) -> None:
        own, weight = self._own, self._own.weight
        nodes, requests = self._demand.count_nodes_and_requests()
        self._rounds += 1
        if self._rounds % _WEIGHT_ROUNDS == 0 and self._members:
            weight = decide_weight(_to_member(own), self._members)
        wide = self._demand.count_wanted_owners(own.id, self._members, own.processors, self._find_limit)
        self._own = msgspec.structs.replace(
            own,
            weight=weight,
            load=round(self._read_load(), 3),
            nodes=nodes,
            requests=requests,
            owns_work=self._owns_work(),
            scaling=self._read_scaling(),
            owner_counts={} if own.draining else wide,
        )

    def _take_in(self, seen: Sequence[SeenServer]) -> None:
        self._seen = seen
        peers = {one.record.id: one.record for one in seen if self._may_reach(one)}
        self._update_clients(peers.values())
        members = tuple(map(_to_member, select_eligible([*peers.values(), self._own])))
        before, self._members = self._members, members
        if _list_member_attributes(before) == _list_member_attributes(members):
            return
        self.owners_revision += 1
        self._routes.clear()
        wide: set[str] = set()
        wide.update(*(member.owner_counts for member in (*before, *members)))
        self._on_shares_changed(wide)

    def _may_reach(self, seen: SeenServer) -> bool:
        record = seen.record
        if record.id == self._own.id or not record.port or seen.age >= SILENT_SECONDS:
            return False
        return not is_loopback(record.host) or record.machine == self._own.machine

    def _update_clients(self, peers: Iterable[ServerRecord]) -> None:
        targets: dict[str, PeerTarget] = {}
        for one in peers:
            version = self._choose_protocol_version(one)
            if version is not None:
                targets[one.id] = PeerTarget(PeerAddress(one.id, one.host, one.port), version)
        for server, client in list(self._clients.items()):
            if targets.get(server) != client.target:
                del self._clients[server]
                client.close()
                self._routes.clear()
        for server, target in targets.items():
            if server not in self._clients:
                self._clients[server] = self._connect(target, self._routes.clear)
        self._connect_some()

    def _choose_protocol_version(self, peer: ServerRecord) -> int | None:
        own, other = (ProtocolVersions(*one.protocols) for one in (self._own, peer))
        version = choose_version(own, other)
        if version is not None:
            self._foreign.discard(peer.id)
        elif peer.id not in self._foreign and len(self._foreign) < MOST_SERVERS:
            self._foreign.add(peer.id)
            logger.warning(
                "the server %s is of another Pilotlight: it speaks the versions %d to %d of the protocol "
                "between servers, this one %d to %d. Each answers by itself until both are of the same.",
                *(peer.name, *other, *own),
            )
        return version


def select_eligible(records: Iterable[ServerRecord]) -> Sequence[ServerRecord]:
    """Those of the living servers that versions are placed on, by their ids.

    A server that starts would let requests wait until its pilots are ready; if all start, they wait anyway.
    """
    lasting = sorted((one for one in records if not one.draining), key=lambda one: one.id)
    return [one for one in lasting if not one.starting] or lasting


def _to_member(record: ServerRecord) -> Member:
    return Member(
        id=record.id,
        capacity=record.memory_bytes,
        weight=min(max(record.weight, 1), WEIGHT_STEPS),
        load=record.load,
        owner_counts=record.owner_counts,
    )


def _list_member_attributes(members: Iterable[Member]) -> list[tuple[str, int, int, Mapping[str, int]]]:
    """What placement follows from: not the load, which changes every second."""
    return [(one.id, one.capacity, one.weight, one.owner_counts) for one in members]
