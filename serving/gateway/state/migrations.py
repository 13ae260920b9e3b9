"""The tables of the state file, and the migrations from the schemas of earlier releases.

A migration is never changed after its release. `PRAGMA user_version` counts the migrations that a file has
had.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from serving.errors import FailedPrecondition, Unavailable

_IMMEDIATE = "pilotlight_immediate"


@dataclass(frozen=True, slots=True)
class Migration:
    """One change of the schema. `apply` runs inside a transaction; its tables may exist already."""

    text: str
    apply: Callable[[sa.Connection], None]


def document_table(name: str, metadata: sa.MetaData | None = None) -> sa.Table:
    """A table with one JSON document per record, by the record's full name."""
    return sa.Table(
        name,
        sa.MetaData() if metadata is None else metadata,
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("document", sa.LargeBinary, nullable=False),
    )


def make_table_creator(*tables: sa.Table) -> Callable[[sa.Connection], None]:
    """The `apply` of a migration that creates the tables that are missing."""

    def create_tables(connection: sa.Connection) -> None:
        for table in tables:
            table.create(connection, checkfirst=True)

    return create_tables


def _name_pilots(connection: sa.Connection) -> None:
    """Versions said whether their nodes import TensorFlow; now they say which pilot has what they import."""
    table = document_table("versions")
    for name, document in connection.execute(sa.select(table.c.name, table.c.document)).all():
        record = json.loads(document)
        deployed = record.get("deployed") or {}
        if deployed.pop("tensorflow", False):
            deployed["pilot"] = "tensorflow"
            changed = json.dumps(record).encode()
            connection.execute(sa.update(table).where(table.c.name == name).values(document=changed))


# Files that are older than migrations have version 1 or 0, with or without jobs: the first two fit all of
# them.
MIGRATIONS: Sequence[Migration] = (
    Migration(
        "models, versions and operations",
        make_table_creator(*(document_table(name) for name in ("models", "versions", "operations"))),
    ),
    Migration("batch jobs", make_table_creator(document_table("jobs"))),
    Migration(
        "tokens and policies", make_table_creator(document_table("tokens"), document_table("policies"))
    ),
    Migration("pilots of versions", _name_pilots),
    Migration(
        "studies",
        make_table_creator(*(document_table(name) for name in ("studies", "trials", "study_operations"))),
    ),
)


def open_sqlite_file(file: Path, migrations: Sequence[Migration] = MIGRATIONS) -> sa.Engine:
    """Open the state file; create or migrate it first if needed.

    All missing migrations run in one transaction, after a backup of the file is on disk beside it
    (`state.db.v1` for schema 1). Raises FailedPrecondition for a file of a newer schema or one that is no
    database, Unavailable if it cannot be opened or written; the file is then unchanged.
    """
    engine = sa.create_engine(f"sqlite:///{file}")
    sa.event.listen(engine, "connect", _prepare_connection)
    sa.event.listen(engine, "begin", _begin_transaction)
    try:
        with engine.connect().execution_options(**{_IMMEDIATE: True}) as connection, connection.begin():
            _apply_migrations(connection, file, migrations)
    except sa.exc.OperationalError as error:
        engine.dispose()
        raise Unavailable(
            f"Cannot open the state file {file}: {error.orig}. Check the folder's rights and free space "
            "(`pilotlight doctor`), and that no other program holds the file."
        ) from error
    except sa.exc.DatabaseError as error:
        engine.dispose()
        raise FailedPrecondition(
            f"The state file {file} cannot be read: {error.orig}. Put a copy of it back, or choose another "
            "--state-dir."
        ) from error
    except BaseException:
        engine.dispose()
        raise
    return engine


def read_schema_version(connection: sa.Connection) -> int:
    """The number of migrations that a file has had."""
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())


def _apply_migrations(connection: sa.Connection, file: Path, migrations: Sequence[Migration]) -> None:
    found = read_schema_version(connection)
    if found > len(migrations):
        raise FailedPrecondition(
            f"{file} was written by a newer Pilotlight: it has schema {found}, this one knows "
            f"{len(migrations)}. Install that version again, put back the copy made before "
            f"({file.name}.v{len(migrations)}, if it is there), or choose another --state-dir."
        )
    if found == len(migrations):
        return
    if sa.inspect(connection).get_table_names():
        _backup_file(file, file.with_name(f"{file.name}.v{found}"))
    for migration in migrations[found:]:
        migration.apply(connection)
    connection.exec_driver_sql(f"PRAGMA user_version = {len(migrations)}")


def _backup_file(file: Path, copy: Path) -> None:
    """Write a complete copy, or none. Raises Unavailable."""
    part = copy.with_name(copy.name + ".part")
    try:
        part.unlink(missing_ok=True)
        # SQLite's backup, because part of the data may be only in the write-ahead log.
        with (
            contextlib.closing(sqlite3.connect(file)) as source,
            contextlib.closing(sqlite3.connect(part)) as target,
        ):
            source.backup(target)
        part.chmod(file.stat().st_mode & 0o777)
        _fsync_path(part)
        part.replace(copy)
        _fsync_path(copy.parent)
    except (OSError, sqlite3.Error) as error:
        raise Unavailable(
            f"Cannot copy the state file to {copy} before changing its schema: {error}. Free some space."
        ) from error


def _fsync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _prepare_connection(connection: Any, _: object) -> None:
    # `_begin_transaction` begins transactions: those of the driver exclude changes of the schema.
    connection.isolation_level = None
    # WAL: a commit is one append. FULL: it is on disk when commit returns.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _begin_transaction(connection: sa.Connection) -> None:
    immediate = connection.get_execution_options().get(_IMMEDIATE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
