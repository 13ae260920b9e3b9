"""The store in a real database: what is written, who may write, and what its errors say."""

from __future__ import annotations

import asyncio
import datetime
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from serving.cli.admin.state import copy_state as run_copy_command
from serving.config import ServeConfig
from serving.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from serving.gateway.access.token_store import TokenStore
from serving.gateway.access.tokens import mint_token
from serving.gateway.catalog import Catalog
from serving.gateway.catalog.shared_catalog import SharedCatalog
from serving.gateway.main import _open_state
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.migrations import MIGRATIONS
from serving.gateway.state.records import ModelRecord, Record
from serving.gateway.state.shared import postgres_store
from serving.gateway.state.shared.database import HEAD, open_database, read_schema_version
from serving.gateway.state.shared.postgres_store import CommitTerms, LeaseLost, PostgresStore
from serving.gateway.state.shared.record_changes import MissedChanges, take_in
from serving.gateway.state.shared.state_copy import copy_state
from serving.gateway.state.store import Changes, SqliteStore
from serving.gateway.state.study_records import TrialRecord
from serving.names import ModelName
from serving.resources import Model
from tests.postgres import Postgres
from tests.serving.gateway.state.test_store import MODEL, everything
from tests.serving.gateway.state.test_study_records import NAME, OPEN, OPERATION, RECORD, completed


@pytest.fixture
def address(postgres: Postgres) -> str:
    return postgres.create_database()


@pytest.fixture
def stores(address: str) -> Iterator[tuple[PostgresStore, PostgresStore]]:
    """Two servers' stores of one state."""
    one, other = PostgresStore(address), PostgresStore(address)
    yield one, other
    one.close()
    other.close()


def model(name: str, description: str = "") -> tuple[tuple[str, str], ModelRecord]:
    full = ModelName("p", name)
    return ("models", str(full)), ModelRecord(name=full, model=Model(description=description))


def commit_draft(store: PostgresStore, state: CatalogState, known: int, draft: StateDraft) -> CatalogState:
    assert store.commit_on(draft.changes, CommitTerms(known, str(known))) is None
    return draft.to_state()


def test_records_come_back_equal(stores: tuple[PostgresStore, PostgresStore]) -> None:
    """As others have them too; a commit replaces and removes."""
    one, other = stores
    assert (one.load(), other.read_missed(0)) == (CatalogState(), None)
    records = everything()
    one.commit({(table, str(record.name)): record for table, record in records})
    state = other.load()
    found = (state.models, state.versions, state.operations, state.jobs)
    assert [record for table in found for record in table.values()] == [record for _, record in records]

    (key, changed) = model("m", "changed")
    one.commit({key: changed, ("models", "projects/p/models/other"): None})
    assert other.load().models == {MODEL: changed}
    one.commit({key: None})
    assert other.load().models == {}


def test_what_was_missed_is_taken_in_as_it_was_committed(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    """Records of every kind, written, changed and removed; a study goes with all that it has."""
    one, other = stores
    state = CatalogState()
    steps: list[list[tuple[Record, bool]]] = [
        [(record, False) for _, record in everything()],
        [
            (record, False)
            for record in (RECORD, TrialRecord(NAME, OPEN), TrialRecord(NAME, completed(2)), OPERATION)
        ],
        [(TrialRecord(NAME, completed(2)), True), (model("m", "changed")[1], False)],
        [(everything()[2][1], True), (RECORD, True)],
    ]
    seen = CatalogState()
    for known, step in enumerate(steps):
        draft = StateDraft(state)
        for record, deleted in step:
            (draft.delete if deleted else draft.put)(record)
        state = commit_draft(one, state, known, draft)
        missed = other.read_missed(known)
        assert missed is not None and missed.revision == known + 1
        commit = take_in(seen, missed)
        seen = commit.after
        assert seen == state == other.load()
        assert commit.changes.keys() == draft.changes.keys()
    assert take_in(CatalogState(), _read_missed(other, 0)).after == state


def test_whoever_lacks_too_much_reads_all(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the changes are gone, and where the database was put back."""
    one, other = stores
    monkeypatch.setattr(postgres_store, "_KEPT", 4)
    monkeypatch.setattr(postgres_store, "_REMOVED_AFTER", 2)
    for number in range(8):
        one.commit(dict([model(f"m{number}")]))
    state = one.load()

    assert len(_read_missed(other, 5).changes) == 3
    for known in (0, 100):
        missed = _read_missed(other, known)
        assert (missed.revision, missed.state) == (8, state)
        assert take_in(CatalogState(), missed).changes == dict(model(f"m{number}") for number in range(8))
    monkeypatch.setattr(postgres_store, "_MOST_MISSED", 2)
    assert _read_missed(other, 5).state == state


def test_a_database_that_was_put_back_is_read_anew(
    address: str, stores: tuple[PostgresStore, PostgresStore]
) -> None:
    """Also if as many changes were made since then: its revisions are others than those that were known."""
    one, other = stores
    tables = ("catalog_head", "catalog_changes", "models")
    assert one.commit_on(dict([model("kept")]), CommitTerms(0, "a")) is None
    with one._engine.begin() as connection:
        for table in tables:
            connection.exec_driver_sql(f"CREATE TABLE copy_of_{table} AS TABLE {table}")
    assert one.commit_on(dict([model("lost")]), CommitTerms(1, "b", known_token="a")) is None
    assert one.read_missed(2, "b") is None

    with other._engine.begin() as connection:
        for table in tables:
            connection.exec_driver_sql(f"DELETE FROM {table}")
            connection.exec_driver_sql(f"INSERT INTO {table} SELECT * FROM copy_of_{table}")
    missed = one.read_missed(2, "b")
    assert missed is not None
    assert (missed.is_restored, missed.revision, missed.token) == (True, 1, "a")

    assert other.commit_on(dict([model("new")]), CommitTerms(1, "c", known_token="a")) is None
    found = [one.read_missed(2, "b"), one.commit_on(dict([model("x")]), CommitTerms(2, "d", None, "b"))]
    for missed in found:
        assert missed is not None and missed.state is not None
        assert (missed.is_restored, missed.revision, missed.token) == (True, 2, "c")
        assert {name.model for name in missed.state.models} == {"kept", "new"}
    assert one.commit_on(dict([model("x")]), CommitTerms(2, "d", known_token="c")) is None


def _read_missed(store: PostgresStore, known: int) -> MissedChanges:
    missed = store.read_missed(known)
    assert missed is not None
    return missed


def test_a_change_of_an_old_state_is_not_written(stores: tuple[PostgresStore, PostgresStore]) -> None:
    """Its maker gets what it lacks, and nobody comes between until it has tried again."""
    one, other = stores
    one.commit_on(dict([model("first")]), CommitTerms(0, "a"))

    missed = other.commit_on(dict([model("second")]), CommitTerms(0, "b"))
    assert missed is not None and missed.revision == 1
    assert [change.record for change in missed.changes] == [model("first")[1]]
    assert other.holds_commit_lock
    assert set(one.load().models) == {ModelName("p", "first")}
    with ThreadPoolExecutor(1) as thread:
        third = thread.submit(one.commit_on, dict([model("third")]), CommitTerms(1, "c"))
        time.sleep(0.1)
        assert not third.done()
        assert other.commit_on(dict([model("second")]), CommitTerms(1, "b")) is None
        beaten = third.result(timeout=10)
        assert beaten is not None and beaten.revision == 2
    one.release_commit_lock()

    assert not one.holds_commit_lock
    assert set(other.load().models) == {ModelName("p", "first"), ModelName("p", "second")}


def test_a_lease_is_taken_over_when_it_is_over(stores: tuple[PostgresStore, PostgresStore]) -> None:
    """With a higher number; changes under the one before are refused."""
    one, other = stores
    assert one.lease.take_or_renew("one", 30) == 1
    assert (other.lease.take_or_renew("other", 30), other.lease.find_holder()) == (None, "one")
    assert one.lease.take_or_renew("one", 0.05) == 1
    time.sleep(0.1)
    assert other.lease.take_or_renew("other", 30) == 2
    assert one.lease.take_or_renew("one", 30) is None

    with pytest.raises(LeaseLost):
        one.commit_on(dict([model("late")]), CommitTerms(0, "a", fence=1))
    assert other.commit_on(dict([model("m")]), CommitTerms(0, "b", fence=2)) is None
    assert set(one.load().models) == {ModelName("p", "m")}
    other.lease.release("other")
    assert (one.lease.find_holder(), one.lease.take_or_renew("one", 30)) == (None, 3)


def test_a_lease_of_before_the_clock_was_set_back_keeps_nobody_from_the_work(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    one, other = stores
    for fence, (store, ends_at) in enumerate(((one, "now() + interval '1 hour'"), (other, "'infinity'")), 1):
        assert store.lease.take_or_renew("living", 30) == fence
        with store.lease._engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE catalog_leases SET ends_at = {ends_at}, holder = 'gone'")
    assert one.lease.take_or_renew("one", 30) == 3


@pytest.mark.parametrize("made", [True, False])
def test_a_commit_whose_answer_was_lost(stores: tuple[PostgresStore, PostgresStore], made: bool) -> None:
    """Is made, or refused: it is looked up."""
    one, other = stores
    lost: list[bool] = []

    def lose_connection(connection: sa.Connection) -> None:
        if lost:
            return
        lost.append(True)
        driver: Any = connection.connection.driver_connection
        if made:
            driver.commit()
        raise sa.exc.OperationalError("COMMIT", None, OSError("the connection is lost"))

    sa.event.listen(one._engine, "commit", lose_connection)
    if made:
        assert one.commit_on(dict([model("m")]), CommitTerms(0, "a")) is None
    else:
        with pytest.raises(Unavailable, match="did not make the change"):
            one.commit_on(dict([model("m")]), CommitTerms(0, "a"))
    assert (len(other.load().models), one.holds_commit_lock) == (made, False)


def test_two_servers_may_start_at_once(address: str) -> None:
    """One makes the tables."""
    assert read_schema_version(address) is None
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(open_database, [address] * 4))
    for one in opened:
        one.engine.dispose()

    assert len({one.id for one in opened}) == 1
    assert read_schema_version(address) == len(MIGRATIONS)


def test_a_newer_schema_is_refused(address: str) -> None:
    database = open_database(address)
    with database.engine.begin() as connection:
        connection.execute(sa.update(HEAD).values(schema_version=99))
    database.engine.dispose()

    with pytest.raises(FailedPrecondition, match="was written by a newer Pilotlight: it has schema 99"):
        PostgresStore(address)


@pytest.mark.parametrize(
    ("given", "error", "reason"),
    [
        ("mysql://ann:hidden@db/x", InvalidArgument, "cannot be kept in mysql"),
        ("postgresql://ann:hidden@db:port/x", InvalidArgument, "cannot be read"),
        ("postgresql://ann:hidden@127.0.0.1:1/x?password=hidden", Unavailable, "ann@127.0.0.1:1/x cannot"),
    ],
)
def test_a_password_is_never_shown(given: str, error: type[Exception], reason: str) -> None:
    """Not even that of an address that is none."""
    pytest.importorskip("psycopg")
    with pytest.raises(error, match=reason) as caught:
        open_database(given)

    assert "hidden" not in str(caught.value)


def test_without_the_driver_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(FailedPrecondition, match=r"pip install 'pilotlight\[postgres\]'"):
        open_database("postgresql://db/x")


def test_a_database_that_takes_no_changes_is_known(address: str) -> None:
    """One that follows another, after the other was lost."""
    store = PostgresStore(address)
    store.check_writable()
    store.close()
    follower = PostgresStore(f"{address}%20-cdefault_transaction_read_only%3Don")
    with pytest.raises(Unavailable, match="takes no changes now: it is read-only"):
        follower.check_writable()
    follower.close()


def test_tokens_are_in_the_database(address: str) -> None:
    """All servers know them."""
    one, other = TokenStore(address), TokenStore(address)
    _, record = mint_token("user:ann@example.com", 1.0)
    one.put(record)
    assert other.load_if_changed() == [record]
    assert (other.revoke(record.name, 2.0).revoked, one.load_if_changed()) == (2.0, other.load())
    with pytest.raises(NotFound):
        other.revoke("nobody", 2.0)
    one.close()
    other.close()


# ---- copies


def fill(folder: Path) -> Changes:
    """A state folder with records of every kind, and a token."""
    folder.mkdir()
    records = [record for _, record in everything()]
    records += [RECORD, TrialRecord(NAME, OPEN), TrialRecord(NAME, completed(2)), OPERATION]
    draft = StateDraft(CatalogState())
    for record in records:
        draft.put(record)
    store = SqliteStore(folder / "state.db")
    store.commit(draft.changes)
    store.close()
    tokens = TokenStore(folder / "state.db")
    tokens.put(mint_token("user:ann@example.com", 1.0)[1])
    tokens.close()
    return draft.changes


def read_documents(folder: Path) -> dict[str, dict[str, bytes]]:
    engine = sa.create_engine(f"sqlite:///{folder / 'state.db'}")
    with engine.connect() as connection:
        tables = sa.inspect(connection).get_table_names()
        found = {
            table: {row[0]: row[1] for row in connection.exec_driver_sql(f"SELECT * FROM {table}")}
            for table in tables
        }
    engine.dispose()
    return found


def test_a_state_goes_into_a_database_and_back(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each record is the same, and no server starts on a copy that is out of date."""
    folder, config = tmp_path / "state", ServeConfig(state_dir=tmp_path / "state")
    shared = ServeConfig(state_dir=folder, state=address)
    fill(folder)
    before = read_documents(folder)
    with pytest.raises(FailedPrecondition, match=r"has a state of its own, state\.db"):
        _open_state(shared)

    run_copy_command(str(folder), address)
    assert "1 models, 1 versions, 1 operations, 1 jobs" in capsys.readouterr().err
    with pytest.raises(FailedPrecondition, match="name it"):
        _open_state(config)
    store, sharing = _open_state(shared)
    state = store.load()
    assert sharing is not None and MODEL in state.models and NAME in state.studies
    store.commit(dict([model("new")]))
    store.close()
    other = tmp_path / "other"
    fill(other)
    with pytest.raises(FailedPrecondition, match="has a state already"):
        run_copy_command(str(other), address)

    run_copy_command(address, str(folder))
    after = read_documents(folder)
    assert after.pop("models").keys() == before.pop("models").keys() | {"projects/p/models/new"}
    assert after == before
    assert (folder / "state.db.old").exists()
    store, sharing = _open_state(config)
    assert (ModelName("p", "new") in store.load().models, sharing) == (True, None)
    store.close()


def test_a_state_in_use_is_not_copied(address: str, tmp_path: Path) -> None:
    fill(tmp_path / "state")
    store = PostgresStore(address)
    store.lease.take_or_renew("host 17 abc", 30)

    with pytest.raises(FailedPrecondition, match=r"\(host and pid: host 17\)"):
        copy_state(str(tmp_path / "state"), address)
    store.close()


@pytest.mark.parametrize(("source", "target"), [("a", "b"), ("postgresql://x/a", "postgresql://x/b")])
def test_one_of_two_is_a_database(source: str, target: str) -> None:
    with pytest.raises(InvalidArgument, match="Name a state folder and a database"):
        copy_state(source, target)


def test_the_files_of_a_folder_belong_to_one_database(postgres: Postgres, tmp_path: Path) -> None:
    """A server would remove what another state does not know."""
    first = _open_state(ServeConfig(state_dir=tmp_path, state=postgres.create_database()))[0]
    first.close()
    with pytest.raises(FailedPrecondition, match="belong to the state in the database"):
        _open_state(ServeConfig(state_dir=tmp_path, state=postgres.create_database()))


@pytest.mark.parametrize("days", [-365, 365])
def test_records_are_old_by_the_earlier_clock(
    address: str, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """Of the server and of the database: one that is ahead would have all that has ended deleted."""
    shift = datetime.timedelta(days=days)

    async def read_shifted_clock(_: Catalog) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC) + shift

    async def main() -> None:
        catalog = SharedCatalog(PostgresStore(address), lambda _: None)
        found = await catalog.read_clock() - datetime.datetime.now(datetime.UTC)
        assert abs(found - min(shift, datetime.timedelta())) < datetime.timedelta(hours=1)
        catalog.close()

    monkeypatch.setattr(Catalog, "read_clock", read_shifted_clock)
    asyncio.run(main())
