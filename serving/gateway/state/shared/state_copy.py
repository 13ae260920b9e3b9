"""Copies the state from a state folder into a database, and back. All calls block.

Records are copied as they are, tokens too. Files of versions stay where they are: the folder is told where
its state is now, so that no server starts on what is left behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import sqlalchemy as sa

from serving.errors import FailedPrecondition, InvalidArgument, NotFound
from serving.gateway.state import migrations
from serving.gateway.state.catalog_state import TABLES
from serving.gateway.state.shared.database import (
    HEAD,
    Database,
    is_database_address,
    open_database,
    translate_errors,
)
from serving.gateway.state.shared.work_lease import WorkLease
from serving.gateway.state.state_home import (
    STATE_FILE,
    DatabaseHome,
    check_home,
    has_state_file,
    read_home,
    write_home,
)

_TABLES = tuple(map(migrations.document_table, (*TABLES.values(), "tokens")))
_ROWS_AT_A_TIME = 500


def copy_state(source: str, target: str) -> Mapping[str, int]:
    """Copy all records from a folder to a database, or from one to a folder; returns how many by table.

    No server may use either, and the target must have no records. Raises InvalidArgument, NotFound,
    FailedPrecondition, and what it raises to open them.
    """
    match is_database_address(source), is_database_address(target):
        case False, True:
            return _copy_to_database(Path(source), target)
        case True, False:
            return _copy_to_folder(source, Path(target))
        case _:
            raise InvalidArgument(
                "Name a state folder and a database (postgresql://...), in the order of the copy. Copy a "
                "folder with cp, and a database with pg_dump."
            )


def _copy_to_database(folder: Path, address: str) -> Mapping[str, int]:
    check_home(folder, None)
    if not has_state_file(folder):
        raise NotFound(f"There is no {STATE_FILE} in {folder}.")
    with _open_unused_database(address) as database:
        engine = migrations.open_sqlite_file(folder / STATE_FILE)
        try:
            with (
                translate_errors(database.address),
                database.engine.begin() as writing,
                engine.begin() as reading,
            ):
                head = writing.execute(sa.select(HEAD).with_for_update()).one()
                _check_empty(writing, database.address)
                counts = _copy_tables(reading, writing)
                # Whoever has seen the database before reads all of it.
                revision = head.revision + 1
                writing.execute(sa.update(HEAD).values(revision=revision, kept_from=revision + 1))
        finally:
            engine.dispose()
        write_home(folder, DatabaseHome(database.id, database.address))
    return counts


def _copy_to_folder(address: str, folder: Path) -> Mapping[str, int]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _open_unused_database(address) as database:
        home = read_home(folder)
        if home is None and has_state_file(folder):
            raise FailedPrecondition(
                f"{folder} has a state already: move its {STATE_FILE} away, and try again."
            )
        check_home(folder, DatabaseHome(database.id, database.address) if home is not None else None)
        part = folder / f"{STATE_FILE}.part"
        part.unlink(missing_ok=True)
        engine = migrations.open_sqlite_file(part)
        try:
            with (
                translate_errors(database.address),
                database.engine.begin() as reading,
                engine.begin() as writing,
            ):
                counts = _copy_tables(reading, writing)
        finally:
            engine.dispose()
    part.chmod(0o600)
    _put_aside(folder)
    part.replace(folder / STATE_FILE)
    write_home(folder, None)
    return counts


def _put_aside(folder: Path) -> None:
    """Keep the state file of before, which is out of date, under another name."""
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            (folder / f"{STATE_FILE}{end}").replace(folder / f"{STATE_FILE}.old{end}")


@contextlib.contextmanager
def _open_unused_database(address: str) -> Iterator[Database]:
    """Raises FailedPrecondition if a server uses it."""
    database = open_database(address)
    try:
        if holder := WorkLease(database.engine, database.address).find_holder():
            raise FailedPrecondition(
                f"A server uses the database {database.address} (host and pid: {holder.rpartition(' ')[0]}). "
                "Stop all that do; one that was killed counts for ten seconds more."
            )
        yield database
    finally:
        database.engine.dispose()


def _check_empty(connection: sa.Connection, address: str) -> None:
    for table in _TABLES:
        if connection.execute(sa.select(table.c.name).limit(1)).first() is not None:
            raise FailedPrecondition(
                f"The database {address} has a state already. Choose another, or drop its tables."
            )


def _copy_tables(reading: sa.Connection, writing: sa.Connection) -> dict[str, int]:
    counts = {}
    for table in _TABLES:
        counts[table.name] = 0
        rows = reading.execution_options(yield_per=_ROWS_AT_A_TIME).execute(sa.select(table))
        for part in rows.partitions():
            writing.execute(sa.insert(table), [{"name": row.name, "document": row.document} for row in part])
            counts[table.name] += len(part)
    return counts
