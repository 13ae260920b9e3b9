"""Sessions end by themselves, and are bounded."""

from __future__ import annotations

import asyncio

import pytest

from serving.errors import ResourceExhausted, ServingError, Unavailable
from serving.gateway.console.sessions import (
    LocalSessions,
    Session,
    SharedSessions,
    derive_anti_forgery_token,
    is_anti_forgery_token,
    is_visitor,
    new_visitor,
)


def test_a_session_ends_when_its_time_is_over_or_it_is_closed() -> None:
    now = 0.0
    store = LocalSessions(lambda: now, seconds=10)

    async def main() -> None:
        nonlocal now
        first, second = await store.open("a"), await store.open("b")
        await store.close(second)
        assert await store.find(second) is None
        now = 9.9
        assert await store.find(first) == Session("a")
        now = 10.0
        assert await store.find(first) is None
        assert await store.find("unknown") is None

    asyncio.run(main())


def test_the_oldest_session_ends_when_there_are_too_many() -> None:
    async def main() -> None:
        store = LocalSessions(most=2)
        visitors = [await store.open(str(number)) for number in range(3)]
        assert [await store.find(visitor) is not None for visitor in visitors] == [False, True, True]

    asyncio.run(main())


class Table:
    """A table of sessions that have so many seconds to go; it may be away."""

    def __init__(self) -> None:
        self.tokens: dict[str, bytes] = {}
        self.seconds = 60.0
        self.error: ServingError | None = None

    def add(self, session: str, token: bytes, seconds: float, most: int) -> None:
        self.tokens[session] = token

    def find(self, session: str, seconds: float) -> tuple[bytes, float] | None:
        if self.error is not None:
            raise self.error
        return self.tokens[session], self.seconds

    def remove(self, session: str) -> None:
        del self.tokens[session]


@pytest.mark.parametrize("error", [Unavailable("away"), ResourceExhausted("too many ask")])
def test_a_session_that_was_seen_ends_on_time_where_it_cannot_be_asked_for(error: ServingError) -> None:
    async def main() -> None:
        table = Table()
        sessions = SharedSessions(table)
        visitor = await sessions.open("a")
        assert await sessions.find(visitor) == Session("a")
        table.error = error
        assert await sessions.find(visitor) == Session("a")

        table.error, table.seconds = None, 0.0
        assert await sessions.find(visitor) == Session("a")
        table.error = error
        assert await sessions.find(visitor) is None

    asyncio.run(main())


def test_a_row_does_not_tell_the_token_and_a_forged_one_is_no_session() -> None:
    async def main() -> None:
        table = Table()
        sessions = SharedSessions(table)
        visitor = await sessions.open("a-long-token")
        ((row, sealed),) = table.tokens.items()
        assert b"a-long-token" not in sealed
        assert visitor not in row
        for forged in (sealed[:-1], b"", sealed[::-1]):
            table.tokens[row] = forged
            assert await sessions.find(visitor) is None
        table.tokens[row] = sealed
        assert await sessions.find(visitor) == Session("a-long-token")

    asyncio.run(main())


def test_the_anti_forgery_token_belongs_to_one_visitor() -> None:
    visitor, other = new_visitor(), new_visitor()
    assert is_visitor(visitor)
    assert not is_visitor("short")
    assert is_anti_forgery_token(visitor, derive_anti_forgery_token(visitor))
    assert not is_anti_forgery_token(visitor, derive_anti_forgery_token(other))
