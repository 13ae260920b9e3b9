"""The servers that use a database: each renews a row of its own, and reads those of the others.

What rows say is lost when the database is restored or has crashed, and is there again a second later.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from serving.gateway.state.shared.database import PEER_SECRET, SERVERS, translate_errors

_NOW = sa.func.clock_timestamp(type_=sa.DateTime(timezone=True))
# Rows of servers that did not say that they stop are removed after this time.
_KEPT = sa.literal(datetime.timedelta(hours=1), sa.Interval)
_MOST_DOCUMENT_BYTES = 1 << 20

_Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
_MemoryBytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
_PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
_Load = Annotated[float, msgspec.Meta(ge=0)]


class ServerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a server says of itself.

    `id` is that of its state folder. Others reach it at `host` and `port` (0: it takes no requests of
    others); a loopback host only from the same `machine`. `memory_bytes` are what nodes may take, `load` the
    share of memory or processors that is taken. `starting`: its pilots import frameworks yet. `owns_work`: it
    does the work of all. `weight` and `owner_counts`: see `autoscaler.placement.members`.
    """

    id: str
    name: str
    host: str
    port: _Port
    machine: str
    folder: str
    memory_bytes: _MemoryBytes
    processors: _PositiveInt
    weight: int
    load: _Load = 0.0
    nodes: int = 0
    requests: int = 0
    starting: bool = False
    draining: bool = False
    owns_work: bool = False
    owner_counts: Mapping[str, _PositiveInt] = {}


class SeenServer(NamedTuple):
    """A server, and how many seconds ago it renewed its row, by the clock of the database.

    If that clock was set back since, `age` is how far ahead the row is: nobody renews it any more either.
    """

    record: ServerRecord
    age: float


class Membership:
    """The rows of servers. All calls block, and raise Unavailable."""

    def __init__(self, engine: sa.Engine, address: str) -> None:
        self._engine = engine
        self._address = address

    def renew(self, own: ServerRecord) -> list[SeenServer]:
        """Write the own row; returns all, by name.

        Placement computes with what is returned: rows that cannot be used are of another Pilotlight, or of a
        stranger.
        """
        document = msgspec.json.encode(own)
        insert = postgresql.insert(SERVERS).values(id=own.id, document=document, renewed_at=_NOW)
        renewed = insert.on_conflict_do_update(
            index_elements=["id"], set_={"document": document, "renewed_at": _NOW}
        )
        is_over = sa.not_(SERVERS.c.renewed_at.between(_NOW - _KEPT, _NOW + _KEPT))
        age = sa.func.abs(sa.func.extract("epoch", _NOW - SERVERS.c.renewed_at))
        rows_of_all = sa.select(SERVERS.c.id, SERVERS.c.document, age.label("age")).where(
            sa.func.octet_length(SERVERS.c.document) <= _MOST_DOCUMENT_BYTES
        )
        with translate_errors(self._address), self._engine.begin() as connection:
            connection.execute(renewed)
            connection.execute(sa.delete(SERVERS).where(is_over))
            rows = connection.execute(rows_of_all).all()
        seen = []
        for row in rows:
            record = _decode_record(row.document)
            if record is not None and record.id == row.id:
                seen.append(SeenServer(record, float(row.age)))
        return sorted(seen, key=lambda one: (one.record.name, one.record.id))

    def leave(self, server: str) -> None:
        """Remove the row of a server."""
        with translate_errors(self._address), self._engine.begin() as connection:
            connection.execute(sa.delete(SERVERS).where(SERVERS.c.id == server))

    def read_secret(self) -> bytes:
        """The secret by which servers of this database know each other; the first call makes it."""
        made = postgresql.insert(PEER_SECRET).values(place=1, secret=secrets.token_bytes(32))
        with translate_errors(self._address), self._engine.begin() as connection:
            connection.execute(made.on_conflict_do_nothing())
            return bytes(connection.execute(sa.select(PEER_SECRET.c.secret)).scalar_one())


def _decode_record(document: bytes) -> ServerRecord | None:
    try:
        return msgspec.json.decode(document, type=ServerRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
