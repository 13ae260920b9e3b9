"""The rows of servers in a real database, also those that no server of ours has written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from serving.config import MOST_SERVERS
from serving.gateway.state.shared.membership import Membership, ServerRecord
from serving.gateway.state.shared.postgres_store import PostgresStore
from tests.postgres import Postgres

OWN = ServerRecord(
    id="a", name="a", host="127.0.0.1", port=8090, machine="m", folder="/state", memory_bytes=1 << 30,
    processors=2, weight=16,
)  # fmt: skip


def describe(server: str, **changed: Any) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(OWN, id=server, name=server, **changed))


# By the id of their row. Placement computes with the numbers: each request would fail.
_UNUSABLE = {
    "no JSON": b"\x00",
    "no UTF-8": describe("no UTF-8").replace(b'"/state"', b'"\xff"'),
    "deep": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "too long": describe("too long", folder="f" * (1 << 20)),
    "another's id": describe("a"),
    "memory of no machine": describe("memory of no machine", memory_bytes=10**400),
    "no memory": describe("no memory", memory_bytes=0),
    "port over the highest": describe("port over the highest", port=70_000),
    "port under 0": describe("port under 0", port=-1),
    "no processors": describe("no processors", processors=0),
    "load under 0": describe("load under 0", load=-1.0),
    "load of no machine": describe("load of no machine", load=1e308),
    "nodes of no machine": describe("nodes of no machine").replace(b"{", b'{"nodes":%d,' % 10**400, 1),
    "processors of no machine": describe("processors of no machine", processors=1 << 63),
    "no owners": describe("no owners", owner_counts={"uid": 0}),
}


@pytest.fixture
def membership(postgres: Postgres) -> Iterator[Membership]:
    store = PostgresStore(postgres.create_database())
    yield store.membership
    store.close()


def put_row(membership: Membership, server: str, document: bytes, renewed_at: str = "now") -> None:
    statement = sa.text("INSERT INTO servers VALUES (:server, :document, CAST(:renewed_at AS timestamptz))")
    with membership._engine.begin() as connection:
        connection.execute(statement, {"server": server, "document": document, "renewed_at": renewed_at})


def renew(membership: Membership) -> dict[str, float]:
    return {seen.record.id: seen.age for seen in membership.renew(OWN)}


def put_rows(membership: Membership, count: int, age: str, step: str) -> None:
    """Rows of which the first is as old as `age`, and each a `step` older than the one before."""
    statement = sa.text(
        "INSERT INTO servers SELECT id, convert_to(replace(:document, 'ID', id), 'UTF8'), now() "
        "- CAST(:age AS interval) - n * CAST(:step AS interval) "
        "FROM (SELECT n, 'row' || n AS id FROM generate_series(0, :count - 1) n) numbered"
    )
    given = {"document": describe("ID").decode(), "count": count, "age": age, "step": step}
    with membership._engine.begin() as connection:
        connection.execute(statement, given)


def list_rows(membership: Membership) -> list[str]:
    with membership._engine.begin() as connection:
        return sorted(connection.execute(sa.text("SELECT id FROM servers")).scalars())


def test_a_row_that_cannot_be_used_is_passed_over(membership: Membership) -> None:
    for server, document in _UNUSABLE.items():
        put_row(membership, server, document)
    put_row(membership, "b", describe("b"))
    assert sorted(renew(membership)) == ["a", "b"]


def test_a_row_from_the_future_is_as_silent_as_one_from_the_past(membership: Membership) -> None:
    """The clock of the database was set back since, or the row is no server's."""
    for renewed_at in ("infinity", "-infinity", "9999-01-01", "2000-01-01"):
        put_row(membership, renewed_at, describe(renewed_at), renewed_at)
    with membership._engine.begin() as connection:
        soon = connection.execute(sa.text("SELECT CAST(now() + interval '1 minute' AS text)")).scalar_one()
    put_row(membership, "b", describe("b"), soon)
    assert 30 < renew(membership)["b"] <= 60
    assert list_rows(membership) == ["a", "b"]


def test_rows_of_many_dead_servers_are_few_soon(membership: Membership) -> None:
    """Not after the hour for which operators see one, and not all in one round."""
    put_rows(membership, 1500, age="2 minutes", step="1 second")
    renew(membership)
    assert len(list_rows(membership)) == 501
    assert len(renew(membership)) == 33
    assert list_rows(membership) == sorted(["a", *(f"row{number}" for number in range(32))])


def test_more_rows_than_there_may_be_servers_are_not_read(membership: Membership) -> None:
    """The living come first."""
    put_rows(membership, 300, age="10 seconds", step="0 seconds")
    put_row(membership, "z", describe("z"))
    found = renew(membership)
    assert len(found) == MOST_SERVERS
    assert {"a", "z"} <= found.keys()


def test_a_row_that_another_server_holds_is_not_waited_for(membership: Membership) -> None:
    for server in ("b", "c"):
        put_row(membership, server, describe(server), "2000-01-01")
    with membership._engine.begin() as connection:
        connection.execute(sa.text("SELECT id FROM servers WHERE id = 'b' FOR UPDATE"))
        assert list(renew(membership)) == ["a"]
        assert list_rows(membership) == ["a", "b"]
