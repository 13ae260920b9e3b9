"""Which servers versions are placed on, and which of them are connected to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from serving.gateway.control.placement.server_placement import (
    MOST_CONNECTS,
    ServerPlacement,
    select_eligible,
)
from serving.gateway.proxy.peers.peer_client import PeerClient
from serving.gateway.proxy.peers.peer_protocol import PeerTarget
from serving.gateway.state.shared.membership import Membership, SeenServer, ServerRecord


def record(name: str, **more: Any) -> ServerRecord:
    return ServerRecord(
        id=name, name=name, host="10.0.0.7", port=8090, machine="m", folder="/state", memory_bytes=1,
        processors=1, weight=16, **more,
    )  # fmt: skip


def select(*records: ServerRecord) -> list[str]:
    return [one.id for one in select_eligible(records)]


def test_in_the_order_of_their_ids() -> None:
    assert select(record("b"), record("a")) == ["a", "b"]


def test_nothing_is_placed_on_a_server_that_starts_while_another_is_ready() -> None:
    """Requests would wait there until its pilots are ready."""
    assert select(record("a", starting=True), record("b")) == ["b"]
    assert select(record("a", starting=True), record("b", draining=True)) == ["a"]


def test_if_all_start_it_is_placed_as_if_they_were_ready() -> None:
    assert select(record("a", starting=True), record("b", starting=True)) == ["a", "b"]


def test_nothing_is_placed_on_a_server_that_drains() -> None:
    assert select(record("a", draining=True), record("b", draining=True)) == []


class Rows:
    """A membership of rows that a test says."""

    def __init__(self, *records: ServerRecord) -> None:
        self.records = list(records)

    def renew(self, own: ServerRecord) -> list[SeenServer]:
        return [SeenServer(one, 0.0) for one in (own, *self.records)]


class SilentClient:
    """A client of a server that never answers."""

    is_connected = is_closed = False
    attempts = 0

    def __init__(self, target: PeerTarget) -> None:
        self.target = target

    def probe(self) -> None:
        self.attempts += 1

    def close(self) -> None:
        self.is_closed = True


class NoDemand:
    def count_nodes_and_requests(self) -> tuple[int, int]:
        return 0, 0

    def is_full(self, key: str) -> bool:
        return False

    def count_wanted_owners(self, *_: object) -> Mapping[str, int]:
        return {}


def place_among(
    rows: Rows, connect: Callable[[PeerTarget, Callable[[], None]], SilentClient], **own: Any
) -> ServerPlacement:
    def ignore(_: Collection[str]) -> None:
        pass

    return ServerPlacement(
        cast(Membership, rows),
        record("own", **own),
        NoDemand(),
        read_load=lambda: 0.0,
        owns_work=lambda: False,
        read_scaling=lambda: None,
        connect=cast(Callable[[PeerTarget, Callable[[], None]], PeerClient], connect),
        on_shares_changed=ignore,
        find_limit=lambda _: None,
    )


def test_rows_of_many_servers_that_do_not_answer_are_connected_to_in_turn() -> None:
    """All at once stop this server for seconds."""
    clients: list[SilentClient] = []

    def connect(target: PeerTarget, _: Callable[[], None]) -> SilentClient:
        clients.append(SilentClient(target))
        return clients[-1]

    def count_attempts() -> int:
        return sum(client.attempts for client in clients)

    async def main() -> None:
        rows = Rows(*(record(f"row{number}") for number in range(3 * MOST_CONNECTS)))
        placement = place_among(rows, connect)
        await placement.renew()
        assert count_attempts() == MOST_CONNECTS
        rows.records.append(record("new"))
        await placement.renew()
        assert clients[-1].target.address.id == "new"
        for _ in range(2):
            await placement._probe()
        assert count_attempts() == 4 * MOST_CONNECTS
        assert all(client.attempts for client in clients)

    asyncio.run(main())


def test_servers_of_other_versions_are_connected_to_by_what_both_speak() -> None:
    """And not where that is nothing: then each answers by itself."""
    clients: list[SilentClient] = []

    def connect(target: PeerTarget, _: Callable[[], None]) -> SilentClient:
        clients.append(SilentClient(target))
        return clients[-1]

    def describe_clients() -> dict[str, int]:
        return {client.target.address.id: client.target.version for client in clients if not client.is_closed}

    async def main() -> None:
        spoken = {"older": (1, 2), "newer": (3, 5), "much older": (1, 1), "much newer": (4, 5)}
        rows = Rows(record("unsaid"), *(record(one, protocols=spoken[one]) for one in spoken))
        placement = place_among(rows, connect, protocols=(2, 3))
        await placement.renew()
        assert describe_clients() == {"older": 2, "newer": 3}

        rows.records = [record("older", protocols=(2, 3)), record("newer", protocols=(4, 5))]
        await placement.renew()
        assert describe_clients() == {"older": 3}

    asyncio.run(main())
