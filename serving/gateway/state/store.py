"""The store of records: SQLite through SQLAlchemy Core, one JSON document per record.

All calls block and are made on one thread, the writer's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import sqlalchemy as sa

from serving.errors import FailedPrecondition, Unavailable
from serving.gateway.state.catalog_state import TABLES, CatalogState, StateDraft
from serving.gateway.state.job_map import JobMap
from serving.gateway.state.migrations import document_table, open_sqlite_file, read_schema_version
from serving.gateway.state.record_indexes import JobIndex
from serving.gateway.state.records import (
    JobRecord,
    ModelRecord,
    OperationRecord,
    PolicyRecord,
    Record,
    VersionRecord,
)
from serving.gateway.state.study_records import (
    StudyOperationRecord,
    StudyRecord,
    TrialRecord,
    assemble_snapshots,
)

Changes = Mapping[tuple[str, str], Record | None]
K = TypeVar("K", bound=msgspec.Struct)

_TABLES = {name: document_table(name) for name in TABLES.values()}

# Seconds after which a client may retry a change that could not be written.
_RETRY_AFTER = 5.0
# With less free space it is tried out whether a change could be written.
_LITTLE_SPACE = 32 << 20


class StateStore(Protocol):
    """Persists records."""

    def load(self) -> CatalogState:
        """Raises FailedPrecondition for data that cannot be read."""

    def commit(self, changes: Changes) -> None:
        """Write all changes or none. Raises Unavailable if they cannot be written now."""

    def check_writable(self) -> None:
        """Raises Unavailable if changes would be refused now."""

    def close(self) -> None: ...


class SqliteStore:
    """A store in one SQLite file. Once `commit` returns, the changes survive a kill of the process.

    Raises what `open_sqlite_file` raises.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._engine = open_sqlite_file(file)
        self._files = (file, file.with_name(f"{file.name}-wal"))
        # While a connection is open, SQLite keeps the write-ahead log: it stays the same file.
        self._open_connection = self._engine.connect()
        with self._open_connection.begin():
            read_schema_version(self._open_connection)
        self._identities = tuple(map(_get_file_identity, self._files))
        self._was_refused = False

    def load(self) -> CatalogState:
        return build_state(self._read_table)

    def commit(self, changes: Changes) -> None:
        self._check_files_unchanged()
        with self._translate_write_errors(), self._engine.begin() as connection:
            for (table, name), record in changes.items():
                columns = _TABLES[table].c
                connection.execute(sa.delete(_TABLES[table]).where(columns.name == name))
                if record is not None:
                    document = msgspec.json.encode(record)
                    connection.execute(sa.insert(_TABLES[table]).values(name=name, document=document))

    def check_writable(self) -> None:
        """Writes only where that was refused last, or where little space is left."""
        self._check_files_unchanged()
        folder = self._file.parent
        is_low = shutil.disk_usage(folder).free < _LITTLE_SPACE
        if self._was_refused or is_low or not os.access(folder, os.W_OK):
            with self._translate_write_errors(), self._engine.begin() as connection:
                version = read_schema_version(connection)
                connection.exec_driver_sql(f"PRAGMA user_version = {version}")

    def close(self) -> None:
        self._open_connection.close()
        self._engine.dispose()

    def _check_files_unchanged(self) -> None:
        """Raises Unavailable if the file was removed or replaced: writes to it would be lost."""
        for file, identity in zip(self._files, self._identities, strict=True):
            if _get_file_identity(file) != identity:
                raise Unavailable(
                    f"The state file {file} was removed or replaced while the server ran. Nothing was "
                    "changed. Put it back, or restart the server to use what is there now.",
                    retry_after=_RETRY_AFTER,
                )

    @contextlib.contextmanager
    def _translate_write_errors(self) -> Iterator[None]:
        try:
            yield
            self._was_refused = False
        except sa.exc.DatabaseError as error:
            self._was_refused = True
            raise Unavailable(
                f"The state file {self._file} cannot be written: {error.orig}. Nothing was changed. See "
                "whether its disk is full or read-only, or another program holds the file; then try again.",
                retry_after=_RETRY_AFTER,
            ) from error

    def _read_table(self, table: str, kind: type[K]) -> list[K]:
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(sa.select(_TABLES[table].c.document))
                return [msgspec.json.decode(row.document, type=kind) for row in rows]
        except (sa.exc.DatabaseError, msgspec.DecodeError) as error:
            reason = error.orig if isinstance(error, sa.exc.DatabaseError) else error
            raise FailedPrecondition(
                f"The state file {self._file} is damaged: its {table} cannot be read ({reason}). Put a copy "
                "of it back, or choose another --state-dir."
            ) from error


def _get_file_identity(file: Path) -> tuple[int, int] | None:
    """Device and inode; None if there is no such file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class TableReader(Protocol):
    """Reads all records of a table."""

    def __call__(self, table: str, kind: type[K]) -> list[K]: ...


def build_state(read_table: TableReader) -> CatalogState:
    """The state of all tables, with its indexes."""
    models = read_table("models", ModelRecord)
    versions = read_table("versions", VersionRecord)
    operations = read_table("operations", OperationRecord)
    jobs = read_table("jobs", JobRecord)
    policies = read_table("policies", PolicyRecord)
    studies = assemble_snapshots(
        read_table("studies", StudyRecord),
        read_table("trials", TrialRecord),
        read_table("study_operations", StudyOperationRecord),
    )
    state = CatalogState(
        {record.name: record for record in models},
        {record.name: record for record in versions},
        {record.name: record for record in operations},
        JobMap.from_mapping({record.name: record for record in jobs}),
        {record.name: record for record in policies},
        studies,
    )
    # Maps and indexes are built here, because that would block the event loop later; that of jobs while they
    # are decoded.
    vars(state)["job_index"] = JobIndex.from_jobs(jobs)
    return StateDraft(state).to_state()
