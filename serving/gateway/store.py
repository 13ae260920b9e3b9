"""Where records are kept: SQLite through SQLAlchemy Core, one JSON document per record.

All calls are blocking and belong on one thread, the writer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import sqlalchemy as sa

from serving.gateway.records import (
    JobRecord,
    ModelRecord,
    OperationRecord,
    Record,
    State,
    VersionRecord,
)
from serving.gateway.schema import document_table, open_database

Changes = Mapping[tuple[str, str], Record | None]
K = TypeVar("K", bound=msgspec.Struct)

_TABLES = {name: document_table(name) for name in ("models", "versions", "operations", "jobs")}


class Store(Protocol):
    """Keeps records over restarts."""

    def load(self) -> State:
        """Everything that was committed."""

    def commit(self, changes: Changes) -> None:
        """Write all changes or, when it raises, none."""

    def close(self) -> None:
        """Release the store."""


class SqlStore:
    """A store in one SQLite file. What `commit` returned from survives a kill of the process.

    Raises what `open_database` does.
    """

    def __init__(self, file: Path) -> None:
        self._engine = open_database(file)

    def load(self) -> State:
        """Everything that was committed."""
        models = self._read("models", ModelRecord)
        versions = self._read("versions", VersionRecord)
        operations = self._read("operations", OperationRecord)
        jobs = self._read("jobs", JobRecord)
        return State(
            {record.name: record for record in models},
            {record.name: record for record in versions},
            {record.name: record for record in operations},
            {record.name: record for record in jobs},
        )

    def commit(self, changes: Changes) -> None:
        """Write all changes in one transaction."""
        with self._engine.begin() as connection:
            for (table, name), record in changes.items():
                columns = _TABLES[table].c
                connection.execute(sa.delete(_TABLES[table]).where(columns.name == name))
                if record is not None:
                    document = msgspec.json.encode(record)
                    connection.execute(sa.insert(_TABLES[table]).values(name=name, document=document))

    def close(self) -> None:
        """Release the file."""
        self._engine.dispose()

    def _read(self, table: str, kind: type[K]) -> list[K]:
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(_TABLES[table].c.document))
            return [msgspec.json.decode(row.document, type=kind) for row in rows]
