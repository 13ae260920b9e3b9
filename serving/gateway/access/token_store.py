"""Tokens beside the state, for servers that check them and the command that makes them.

They may run at once: the state file or database is the only thing they share. All calls block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import sqlalchemy as sa

from serving.errors import FailedPrecondition, NotFound, Unavailable
from serving.gateway.access.tokens import TokenRecord
from serving.gateway.state.migrations import document_table, open_sqlite_file

_TABLE = document_table("tokens")


class TokenStore:
    """The tokens in one state file, or in the database of an address; either is created if it is missing.

    Raises what `open_sqlite_file` does. Every call raises Unavailable when it cannot be read or written.
    """

    def __init__(self, place: Path | str) -> None:
        self._engine, self._place = _open_engine(place)
        self._last_documents: Sequence[bytes] | None = None

    def load(self) -> list[TokenRecord]:
        """All tokens, oldest first."""
        return self._decode_records(self._read_documents())

    def load_if_changed(self) -> Sequence[TokenRecord] | None:
        """All tokens if any has changed since the last call, else None."""
        documents = self._read_documents()
        if documents == self._last_documents:
            return None
        found, self._last_documents = self._decode_records(documents), documents
        return found

    def put(self, record: TokenRecord) -> None:
        """Add or replace a token; it is on disk when this returns."""
        with self._open_transaction() as connection:
            connection.execute(sa.delete(_TABLE).where(_TABLE.c.name == record.name))
            connection.execute(
                sa.insert(_TABLE).values(name=record.name, document=msgspec.json.encode(record))
            )

    def revoke(self, name: str, now: float) -> TokenRecord:
        """Revoke a token; one that is revoked already stays as it is. Raises NotFound."""
        found = next((record for record in self.load() if record.name == name), None)
        if found is None:
            raise NotFound(f"There is no token {name!r} in {self._place}; see `pilotlight tokens list`.")
        if found.revoked is None:
            found = msgspec.structs.replace(found, revoked=now)
            self.put(found)
        return found

    def close(self) -> None:
        self._engine.dispose()

    def _read_documents(self) -> Sequence[bytes]:
        with self._open_transaction() as connection:
            return connection.execute(sa.select(_TABLE.c.document).order_by(_TABLE.c.name)).scalars().all()

    def _decode_records(self, documents: Sequence[bytes]) -> list[TokenRecord]:
        try:
            found = [msgspec.json.decode(document, type=TokenRecord) for document in documents]
        except msgspec.DecodeError as error:
            raise FailedPrecondition(
                f"The tokens in {self._place} cannot be read ({error}): they are damaged. Put a copy of it "
                "back, or choose another --state-dir or --state."
            ) from error
        return sorted(found, key=lambda record: record.created)

    @contextmanager
    def _open_transaction(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            reason = str(error.orig).partition("\n")[0]
            raise Unavailable(f"Cannot use the tokens in {self._place}: {reason}.") from error


def _open_engine(place: Path | str) -> tuple[sa.Engine, str]:
    """The engine, and where the tokens are as it may be shown."""
    if isinstance(place, Path):
        return open_sqlite_file(place), str(place)
    from serving.gateway.state.shared import database  # noqa: PLC0415  where it is asked for

    opened = database.open_database(place)
    return opened.engine, opened.address
