"""The store of records in a database that several servers use. All calls block.

A change is written only on the state that it was made of. The row of `HEAD` is locked for that, so commits
are one after the other; what a server lacks is given to it while it holds the lock, and it tries again.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from serving.errors import FailedPrecondition, Unavailable
from serving.gateway.state.catalog_state import TABLES, CatalogState
from serving.gateway.state.migrations import document_table
from serving.gateway.state.records import Record
from serving.gateway.state.shared.change_listener import CHANNEL, ChangeListener
from serving.gateway.state.shared.console_session_rows import ConsoleSessionRows
from serving.gateway.state.shared.database import (
    CHANGES,
    HEAD,
    LEASES,
    RETRY_AFTER,
    SILENCE_SECONDS,
    describe_database_error,
    open_database,
    translate_errors,
)
from serving.gateway.state.shared.membership import Membership
from serving.gateway.state.shared.record_changes import MissedChanges, RecordChange, decode_record
from serving.gateway.state.shared.work_lease import WORK_LEASE, WorkLease
from serving.gateway.state.store import Changes, build_state

K = TypeVar("K", bound=msgspec.Struct)

_TABLES = {name: document_table(name) for name in TABLES.values()}
# A server that lacks more commits than this reads the whole state. Ten times as many are kept, and the oldest
# removed after each so many.
_MOST_MISSED, _KEPT, _REMOVED_AFTER = 1000, 10_000, 500
# Seconds in which it is found out whether a commit was made whose connection was lost.
_OUTCOME_SECONDS, _OUTCOME_DELAY = 5.0, 0.2


class LeaseLost(Unavailable):
    """The work that makes this change belongs to another server by now."""


class CommitTerms(NamedTuple):
    """What a commit is made of: the revision of the state, its own token, and the lease it needs, if any.

    `known_token` is that of the commit that made the state.
    """

    known: int
    token: str
    fence: int | None = None
    known_token: str = ""


class PostgresStore:
    """The state in a database. Use `commit_on` and `release_commit_lock` from one thread.

    Raises what `open_database` raises. Every call raises Unavailable while the database cannot be used.
    """

    def __init__(self, address: str, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._engine, self.address, self.id = open_database(address, silence_seconds)
        self._connection: sa.Connection | None = None  # of the commit that holds the lock
        self.lease = WorkLease(self._engine, self.address)
        self.membership = Membership(self._engine, self.address)
        self.console_sessions = ConsoleSessionRows(self._engine, self.address)

    def load(self) -> CatalogState:
        return self.read_whole()[0]

    def read_whole(self) -> tuple[CatalogState, int, str]:
        """The state, its revision, and the token of the commit that made it.

        Raises FailedPrecondition for data that cannot be read.
        """
        with translate_errors(self.address), self._open_snapshot() as connection:
            head = connection.execute(sa.select(HEAD.c.revision, _select_token(HEAD.c.revision))).one()

            def read_table(table: str, kind: type[K]) -> list[K]:
                return self._read_table(connection, table, kind)

            return build_state(read_table), int(head.revision), head.token

    def read_missed(self, known: int, known_token: str = "") -> MissedChanges | None:
        """What others have committed since a revision; None if nothing.

        `known_token` is that of the commit that made the revision, "" if it is not known.
        """
        with translate_errors(self.address), self._open_snapshot() as connection:
            head = connection.execute(_select_head(known)).one()
            return self._find_missed(connection, head, known, known_token)

    def read_clock(self) -> datetime.datetime:
        """The time by the clock of the database."""
        now = sa.select(sa.func.clock_timestamp(type_=sa.DateTime(timezone=True)))
        with translate_errors(self.address), self._engine.connect() as connection:
            return connection.execute(now).scalar_one()

    def commit(self, changes: Changes) -> None:
        """Write all changes or none, whatever others have committed."""
        with translate_errors(self.address), self._engine.begin() as connection:
            head = connection.execute(sa.select(HEAD).with_for_update()).one()
            self._write_changes(connection, changes, head.revision + 1, "")

    def check_writable(self) -> None:
        with translate_errors(self.address), self._engine.connect() as connection:
            is_read_only = connection.exec_driver_sql("SHOW transaction_read_only").scalar_one() == "on"
        if is_read_only:
            raise Unavailable(
                f"The database {self.address} takes no changes now: it is read-only, as one that follows "
                "another is.",
                retry_after=RETRY_AFTER,
            )

    def commit_on(self, changes: Changes, terms: CommitTerms) -> MissedChanges | None:
        """Write all changes or none, if the state is still that of `terms`.

        Else nothing is written, and what others have committed is returned: the next call, with changes made
        on that, succeeds. Until then all other commits wait, so it must follow at once, or
        `release_commit_lock`. Raises LeaseLost if the lease is another server's by now.
        """
        try:
            with translate_errors(self.address):
                connection = self._begin()
                head = connection.execute(_select_head(terms.known).with_for_update(of=HEAD)).one()
                if terms.fence is not None:
                    self._check_lease(connection, terms.fence)
                missed = self._find_missed(connection, head, terms.known, terms.known_token)
                if missed is not None:
                    return missed
                self._write_changes(connection, changes, terms.known + 1, terms.token)
        except BaseException:
            self.release_commit_lock()
            raise
        self._finish(connection, terms)
        return None

    @property
    def holds_commit_lock(self) -> bool:
        """Whether all other commits wait for the next `commit_on`."""
        return self._connection is not None

    def release_commit_lock(self) -> None:
        """Let others commit, after a `commit_on` that has returned something."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                connection.close()

    def create_listener(self) -> ChangeListener:
        return ChangeListener(self._engine, self.address)

    def close(self) -> None:
        self.release_commit_lock()
        self._engine.dispose()

    @contextlib.contextmanager
    def _open_snapshot(self) -> Iterator[sa.Connection]:
        """A connection to which nothing changes."""
        with (
            self._engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection,
            connection.begin(),
        ):
            yield connection

    def _begin(self) -> sa.Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
            self._connection.begin()
        return self._connection

    def _finish(self, connection: sa.Connection, terms: CommitTerms) -> None:
        try:
            connection.commit()
        except sa.exc.SQLAlchemyError as error:
            self.release_commit_lock()
            if not self._find_outcome(terms):
                raise Unavailable(
                    f"The database {self.address} did not make the change: "
                    f"{describe_database_error(error)}. Try again.",
                    retry_after=RETRY_AFTER,
                ) from error
        else:
            self.release_commit_lock()

    def _find_outcome(self, terms: CommitTerms) -> bool:
        """Whether a commit was made although its answer was lost."""
        made = sa.select(sa.func.count()).where(
            CHANGES.c.token == terms.token, CHANGES.c.revision > terms.known
        )
        deadline = time.monotonic() + _OUTCOME_SECONDS
        while True:
            try:
                with self._engine.begin() as connection:
                    # The session that was lost may not have ended yet: it has the lock until then.
                    connection.execute(sa.select(HEAD).with_for_update())
                    return bool(connection.execute(made).scalar_one())
            except sa.exc.SQLAlchemyError as error:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"The connection to the database {self.address} was lost while a change was "
                        f"committed ({describe_database_error(error)}): it was made, or it was not. Look, "
                        "before you try again.",
                        retry_after=RETRY_AFTER,
                    ) from error
                time.sleep(_OUTCOME_DELAY)

    def _check_lease(self, connection: sa.Connection, fence: int) -> None:
        current = connection.execute(
            sa.select(LEASES.c.fence).where(LEASES.c.name == WORK_LEASE)
        ).scalar_one_or_none()
        if current != fence:
            raise LeaseLost(
                "Another server has taken over the work that this change belongs to. Nothing was changed.",
                retry_after=RETRY_AFTER,
            )

    def _find_missed(
        self, connection: sa.Connection, head: sa.Row[Any], known: int, known_token: str
    ) -> MissedChanges | None:
        # A commit that is too old to be found, or wrote nothing, has no token.
        differs = bool(head.token and known_token) and head.token != known_token
        is_restored = head.revision < known or differs
        if head.revision == known and not is_restored:
            return None
        if is_restored or known + 1 < head.kept_from or head.revision - known > _MOST_MISSED:
            state, revision, token = self.read_whole()
            return MissedChanges(revision, token, state=state, is_restored=is_restored)
        rows = connection.execute(
            sa.select(CHANGES)
            .where(CHANGES.c.revision > known, CHANGES.c.revision <= head.revision)
            .order_by(CHANGES.c.revision, CHANGES.c.place)
        ).all()
        changes = [RecordChange(decode_record(row.table_name, row.document), row.deleted) for row in rows]
        token = rows[-1].token if rows and rows[-1].revision == head.revision else ""
        return MissedChanges(head.revision, token, changes)

    def _write_changes(self, connection: sa.Connection, changes: Changes, revision: int, token: str) -> None:
        rows: list[dict[str, Any]] = []
        for place, ((table, name), record) in enumerate(changes.items()):
            document = _write_record(connection, _TABLES[table], name, record)
            if document is not None:
                rows.append(
                    {
                        "revision": revision,
                        "place": place,
                        "token": token,
                        "table_name": table,
                        "deleted": record is None,
                        "document": document,
                    }
                )
        if rows:
            connection.execute(sa.insert(CHANGES), rows)
        kept_from: dict[str, int] = {}
        if revision % _REMOVED_AFTER == 0 and revision > _KEPT:
            kept_from = {"kept_from": revision - _KEPT}
            connection.execute(sa.delete(CHANGES).where(CHANGES.c.revision < revision - _KEPT))
        head = sa.update(HEAD).values(revision=revision, **kept_from)
        connection.execute(head.returning(sa.func.pg_notify(CHANNEL, str(revision))))

    def _read_table(self, connection: sa.Connection, table: str, kind: type[K]) -> list[K]:
        rows = connection.execute(sa.select(_TABLES[table].c.document))
        try:
            return [msgspec.json.decode(row.document, type=kind) for row in rows]
        except msgspec.DecodeError as error:
            raise FailedPrecondition(
                f"The {table} in the database {self.address} cannot be read ({error}). They were written by "
                "another Pilotlight, or damaged: put back a copy of the database."
            ) from error


def _select_token(revision: sa.ColumnElement[int]) -> sa.Label[str]:
    """The token of the commit that made a revision; "" if that is not known any more."""
    found = sa.select(CHANGES.c.token).where(CHANGES.c.revision == revision).limit(1).scalar_subquery()
    return sa.func.coalesce(found, "").label("token")


def _select_head(known: int) -> sa.Select[Any]:
    """The row of the head, with the token that the database has for a revision."""
    return sa.select(HEAD, _select_token(sa.literal(known)))


def _write_record(
    connection: sa.Connection, table: sa.Table, name: str, record: Record | None
) -> bytes | None:
    """Write or, if it is None, remove a record; returns its document, None if there was none to remove."""
    if record is None:
        removed = sa.delete(table).where(table.c.name == name).returning(table.c.document)
        return connection.execute(removed).scalar_one_or_none()
    document = msgspec.json.encode(record)
    insert = postgresql.insert(table).values(name=name, document=document)
    connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_={"document": document}))
    return document
