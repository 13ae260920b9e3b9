"""How often the database of several servers is asked."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from serving.errors import Unavailable
from serving.gateway.catalog.shared_catalog import SharedCatalog
from serving.gateway.state.shared.postgres_store import PostgresStore
from tests.bounds import HANG_SECONDS


class SlowStore:
    """A database that has nothing new to tell, and answers when it is let."""

    def __init__(self) -> None:
        self.looks = 0
        self.is_answering = threading.Event()

    def read_missed(self, revision: int, token: str) -> None:
        self.looks += 1
        assert self.is_answering.wait(HANG_SECONDS)

    def close(self) -> None:
        pass


def create_catalog(store: SlowStore) -> SharedCatalog:
    return SharedCatalog(cast(PostgresStore, store), lambda _: None)


async def wait_until_blocked() -> None:
    """Until all tasks wait for something."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_who_asks_at_the_same_time_shares_a_look() -> None:
    """An anonymous caller would have all changes of others wait behind a look for each of its requests.

    But who asks while the database is asked may miss what is committed meanwhile: for these there is another.
    """

    async def main() -> None:
        store = SlowStore()
        catalog = create_catalog(store)
        before = [asyncio.create_task(catalog.refresh()) for _ in range(50)]
        await wait_until_blocked()
        meanwhile = [asyncio.create_task(catalog.refresh()) for _ in range(50)]
        await wait_until_blocked()
        store.is_answering.set()
        await asyncio.gather(*before, *meanwhile)
        assert store.looks == 2
        await catalog.refresh()
        assert store.looks == 3
        catalog.close()

    asyncio.run(main())


def test_a_look_that_fails_is_not_shared_with_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.gateway.catalog._LOCK_TIMEOUT", 0.01)

    async def main() -> None:
        store = SlowStore()
        store.is_answering.set()
        catalog = create_catalog(store)
        async with catalog._hold_write_lock():
            results = await asyncio.gather(catalog.refresh(), catalog.refresh(), return_exceptions=True)
        assert [type(result) for result in results] == [Unavailable, Unavailable]
        await catalog.refresh()
        assert store.looks == 1
        catalog.close()

    asyncio.run(main())
