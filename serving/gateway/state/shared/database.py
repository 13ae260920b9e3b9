"""The database of several servers: its address, its tables, and what its errors mean.

Beside the tables of documents that a state file has too, there is one row that all changes lock (`HEAD`), the
last changes one by one (`CHANGES`), who may work (`LEASES`), the servers themselves (`SERVERS`), and who
has signed in to the console (`CONSOLE_SESSIONS`).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from serving.errors import FailedPrecondition, InvalidArgument, Unavailable
from serving.gateway.state.migrations import MIGRATIONS

# Seconds after which a client may retry what the database could not do.
RETRY_AFTER = 5.0

_METADATA = sa.MetaData()
# One row. `id` tells databases apart, `revision` counts commits; `CHANGES` has those from `kept_from` on.
HEAD = sa.Table(
    "catalog_head",
    _METADATA,
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("kept_from", sa.BigInteger, nullable=False),
)
# A record that a commit has written or, if `deleted`, removed; `place` is its place in the commit. `token` is
# that of the whole commit.
CHANGES = sa.Table(
    "catalog_changes",
    _METADATA,
    sa.Column("revision", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("token", sa.Text, nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("deleted", sa.Boolean, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
)
LEASES = sa.Table(
    "catalog_leases",
    _METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
)
# Not logged: each server renews its row every second, and a crash of the database loses nothing of worth.
SERVERS = sa.Table(
    "servers",
    _METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("renewed_at", sa.DateTime(timezone=True), nullable=False),
    prefixes=["UNLOGGED"],
)
PEER_SECRET = sa.Table(
    "peer_secret",
    _METADATA,
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("secret", sa.LargeBinary, nullable=False),
)

# Who has the database cannot sign in with it: `id` is the hash of a cookie, with which `token` is sealed.
CONSOLE_SESSIONS = sa.Table(
    "console_sessions",
    _METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("token", sa.LargeBinary, nullable=False),
    sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
)

_DRIVER = "postgresql+psycopg"
# Held while tables are made or changed: other servers wait for it.
_SCHEMA_LOCK = 0x70696C6F
# A server that is cut off must notice, and one that stands still must not keep a lock.
_SESSION = (
    "SET statement_timeout = '60s'; SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '5s'"
)
_SCHEMA_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '60s'"
_CONNECT_ARGUMENTS = {
    "connect_timeout": 5,
    "application_name": "pilotlight",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 8000,
}
_CONNECTIONS = 4
# Seconds without a byte of an answer after which the database is taken to stand still: longer than it waits
# for a lock. Where tables are made, another server may be at it.
SILENCE_SECONDS, _SCHEMA_SILENCE_SECONDS = 8.0, 65.0


class Database(NamedTuple):
    """An open database. `address` is as it may be shown; `id` tells it from all others."""

    engine: sa.Engine
    address: str
    id: str


def is_database_address(text: str) -> bool:
    return "://" in text


def open_database(address: str, silence_seconds: float = SILENCE_SECONDS) -> Database:
    """Connect, and create or migrate the tables first if needed; one server does it, others wait.

    A call fails after so many seconds without an answer.

    Raises InvalidArgument for another kind of address, FailedPrecondition for a newer schema or without the
    driver, Unavailable if the database cannot be reached.
    """
    url = _parse_address(address)
    shown = _describe_address(url)
    preparing = _create_engine(url, _SCHEMA_SILENCE_SECONDS)
    try:
        with translate_errors(shown), preparing.begin() as connection:
            connection.exec_driver_sql(_SCHEMA_LOCK_TIMEOUT)
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
            identity = _prepare_tables(connection, shown)
    finally:
        preparing.dispose()
    return Database(_create_engine(url, silence_seconds), shown, identity)


def read_schema_version(address: str) -> int | None:
    """The schema of a database, which is left as it is; None if it has no tables yet. Raises as above."""
    with open_unchanged(address) as connection:
        if not sa.inspect(connection).has_table(HEAD.name):
            return None
        return int(connection.execute(sa.select(HEAD.c.schema_version)).scalar_one())


@contextlib.contextmanager
def open_unchanged(address: str) -> Iterator[sa.Connection]:
    """A connection to a database whose tables are left as they are. Raises as above."""
    url = _parse_address(address)
    engine = _create_engine(url, SILENCE_SECONDS)
    try:
        with translate_errors(_describe_address(url)), engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@contextlib.contextmanager
def translate_errors(address: str) -> Iterator[None]:
    """Raises Unavailable for errors of the database."""
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        reason = describe_database_error(error)
        raise Unavailable(
            f"The database {address} cannot be used now: {reason}. Nothing was changed; try again.",
            retry_after=RETRY_AFTER,
        ) from error


def describe_database_error(error: BaseException | None) -> str:
    """The first line: the others are hints, and statements."""
    if isinstance(error, sa.exc.DBAPIError):
        error = error.orig
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _parse_address(text: str) -> sa.URL:
    """The text is in no message: it may hold a password."""
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise InvalidArgument(
            "The address of the state (setting state) cannot be read: expected "
            "postgresql://USER@HOST/DATABASE, with special characters of a password as %XX."
        ) from None
    if url.drivername not in ("postgresql", "postgres"):
        raise InvalidArgument(
            f"The state (setting state) cannot be kept in {url.drivername}: expected "
            "postgresql://USER@HOST/DATABASE. Leave it out to keep it in the state folder."
        )
    return url.set(drivername=_DRIVER)


def _describe_address(url: sa.URL) -> str:
    """The address without password and options, which may hold one."""
    host = url.host or url.query.get("host")
    shown = sa.URL.create(
        "postgresql", url.username, host=host if isinstance(host, str) else None, database=url.database
    )
    return shown.set(port=url.port).render_as_string()


def _create_engine(url: sa.URL, silence_seconds: float) -> sa.Engine:
    try:
        from serving.gateway.state.shared import bounded_connection  # noqa: PLC0415  needs psycopg

        engine = sa.create_engine(
            url,
            connect_args={name: value for name, value in _CONNECT_ARGUMENTS.items() if name not in url.query},
            hide_parameters=True,
            max_overflow=0,
            pool_timeout=RETRY_AFTER,
            # A connection that the database has closed is replaced before it is used.
            pool_pre_ping=True,
            pool_size=_CONNECTIONS,
        )
    except ImportError as error:
        raise FailedPrecondition(
            "A state in PostgreSQL (setting state) needs psycopg, which is not installed: "
            "pip install 'pilotlight[postgres]'."
        ) from error
    bounded_connection.bound_connections(engine, silence_seconds)
    sa.event.listen(engine, "connect", _prepare_session)
    return engine


def _prepare_session(connection: Any, _: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_SESSION)
    connection.commit()


def _prepare_tables(connection: sa.Connection, address: str) -> str:
    """Create and migrate the tables; returns the id of the database."""
    _METADATA.create_all(connection)
    head = connection.execute(sa.select(HEAD)).one_or_none()
    found, known = head.schema_version if head else 0, len(MIGRATIONS)
    if found > known:
        raise FailedPrecondition(
            f"{address} was written by a newer Pilotlight: it has schema {found}, this one knows {known}. "
            "Install that version again, or choose another database (setting state)."
        )
    for migration in MIGRATIONS[found:]:
        migration.apply(connection)
    if head is None:
        database = secrets.token_hex(16)
        connection.execute(
            sa.insert(HEAD).values(place=1, id=database, schema_version=known, revision=0, kept_from=1)
        )
        return database
    if found < known:
        connection.execute(sa.update(HEAD).values(schema_version=known))
    return str(head.id)
