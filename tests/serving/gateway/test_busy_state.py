"""A state file that cannot be written for a while: changes are refused, and what must be is tried again."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from serving.errors import FailedPrecondition, Unavailable
from serving.gateway import catalog as module
from serving.gateway.catalog import Catalog, models
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import ModelRecord, Record
from serving.gateway.state.store import SqliteStore
from serving.names import ModelName
from serving.resources import Model
from tests.bounds import HANG_SECONDS

NAME = ModelName("p", "m")


class Flaky:
    """A store that cannot write until it is told; it tells when it has been asked to."""

    def __init__(self) -> None:
        self.fails = True
        self.may_go = threading.Event()
        self.asked = 0

    def load(self) -> CatalogState:
        return CatalogState()

    def commit(self, changes: Mapping[tuple[str, str], Record | None]) -> None:
        self.asked += 1
        if self.fails:
            raise Unavailable("locked")
        assert self.may_go.wait(HANG_SECONDS)

    def check_writable(self) -> None:
        pass

    def close(self) -> None:
        pass


def change(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(statement)


def test_a_file_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    """Nothing is changed; the error names the file, and the same change works later."""
    file = tmp_path / "state.db"
    store = SqliteStore(file)
    record = ModelRecord(name=NAME, model=Model(name=str(NAME)))
    change(file, "CREATE TRIGGER no BEFORE INSERT ON models BEGIN SELECT RAISE(ABORT, 'no room'); END")
    with pytest.raises(Unavailable) as caught:
        store.commit({("models", str(NAME)): record})
    empty = store.load()
    change(file, "DROP TRIGGER no")
    store.commit({("models", str(NAME)): record})

    assert str(file) in caught.value.message
    assert "no room" in caught.value.message
    assert caught.value.retry_after
    assert not empty.models
    assert store.load().models == {NAME: record}
    store.close()


@pytest.mark.parametrize("document", [b"{", b'{"name": 1}', b"\xff"])
def test_a_record_that_cannot_be_read_is_told_of(tmp_path: Path, document: bytes) -> None:
    """The error names the file and the table."""
    file = tmp_path / "state.db"
    SqliteStore(file).close()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("INSERT INTO versions VALUES ('x', ?)", (document,))

    store = SqliteStore(file)
    with pytest.raises(FailedPrecondition, match=r"state\.db is damaged: its versions cannot be read"):
        store.load()
    store.close()


def test_what_must_be_written_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """`change_with_retry` returns once it is written; `change` gives up at once, and nothing has changed."""
    monkeypatch.setattr(module, "_RETRY_DELAY", 0.01)

    async def main(store: Flaky, catalog: Catalog) -> None:
        with pytest.raises(Unavailable, match="locked"):
            await catalog.change(models.create_model, "p", Model(name="m"))
        assert not catalog.state.models
        insisting = asyncio.create_task(catalog.change_with_retry(models.create_model, "p", Model(name="m")))
        while store.asked < 4:  # noqa: ASYNC110  another thread takes part
            await asyncio.sleep(0.001)
        store.fails = False
        store.may_go.set()
        await insisting
        assert NAME in catalog.state.models

    run(main)


def test_changes_do_not_queue_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose turn does not come in time is refused; those after it get their turn all the same."""
    monkeypatch.setattr(module, "_LOCK_TIMEOUT", 0.05)

    async def main(store: Flaky, catalog: Catalog) -> None:
        store.fails = False
        slow = asyncio.create_task(catalog.change(models.create_model, "p", Model(name="m")))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="kept the state busy"):
            await catalog.change(models.create_model, "p", Model(name="other"))
        store.may_go.set()
        await slow
        await catalog.change(models.create_model, "p", Model(name="third"))
        assert set(catalog.state.models) == {NAME, ModelName("p", "third")}

    run(main)


def run(main: Callable[[Flaky, Catalog], Awaitable[None]]) -> None:
    async def bounded() -> None:
        store = Flaky()
        catalog = Catalog(store, lambda _: None)
        async with asyncio.timeout(HANG_SECONDS):
            await catalog.open()
            await main(store, catalog)
        catalog.close()

    asyncio.run(bounded())
