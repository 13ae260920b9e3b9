"""The servers that use a database: each renews a row of its own, and reads those of the others.

What rows say is lost when the database is restored or has crashed, and is there again a second later. So a
row may be removed at any time, and each server removes those of others that nobody renews.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from serving.config import MOST_SERVERS
from serving.gateway.state.shared.database import PEER_SECRET, SERVERS, open_unchanged, translate_errors

_NOW = sa.func.clock_timestamp(type_=sa.DateTime(timezone=True))
# Seconds after which nothing is placed on a server that did not renew its row: shorter than the lease of the
# work.
SILENT_SECONDS = 3.0
_LIVING = sa.literal(datetime.timedelta(seconds=SILENT_SECONDS), sa.Interval)
# A row that was not renewed for so long is that of a server which did not say that it stops. Operators see
# the newest of these, for `_KEPT`.
_GONE = sa.literal(datetime.timedelta(minutes=1), sa.Interval)
_KEPT = sa.literal(datetime.timedelta(hours=1), sa.Interval)
_MOST_KEPT = 32
# Rows that one server removes at a time.
_MOST_REMOVED = 1000
_MOST_DOCUMENT_BYTES = 1 << 17

_Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
_MemoryBytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
# What is told of servers as JSON has no larger numbers.
_MAX_COUNT = 1 << 53
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT)]
_PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=_MAX_COUNT)]
_ProtocolVersion = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
# Loads of all servers are added up.
_Load = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class ScalingReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the server that owns the work has last decided on the number of servers, and what came of it.

    `deployment` is what it scales, "" if it only tells what it wants. `pods` is its number as last read or
    set, None before that; `error` why it could not be, last.
    """

    wanted: _Count
    reason: str
    deployment: str = ""
    pods: _Count | None = None
    error: str = ""

    def describe(self) -> str:
        """In one sentence."""
        wanted = f"{self.wanted} {'server is' if self.wanted == 1 else 'servers are'} wanted: {self.reason}"
        if not self.deployment:
            return f"{wanted}. No Deployment is scaled (setting scaled_deployment)."
        pods = "an unknown number of" if self.pods is None else str(self.pods)
        error = f"; the last error: {self.error}" if self.error else ""
        return f"{wanted}; the Deployment {self.deployment} is set to {pods} pods{error}".rstrip(".") + "."


class ServerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a server says of itself.

    `id` is that of its state folder. Others reach it at `host` and `port` (0: it takes no requests of
    others); a loopback host only from the same `machine`. `memory_bytes` are what nodes may take, `load` the
    share of memory or processors that is taken. `starting`: its pilots import frameworks yet. `owns_work`: it
    does the work of all. `weight` and `owner_counts`: see `autoscaler.placement.members`. `protocols`: the
    oldest and the newest version that it speaks, see `serving.gateway.proxy.peers.peer_protocol`. A field
    that is added needs a default: servers of another Pilotlight read and write these rows too.
    """

    id: str
    name: str
    host: str
    port: _Port
    machine: str
    folder: str
    memory_bytes: _MemoryBytes
    processors: _PositiveCount
    weight: _Count
    load: _Load = 0.0
    nodes: _Count = 0
    requests: _Count = 0
    starting: bool = False
    draining: bool = False
    owns_work: bool = False
    owner_counts: Mapping[str, _PositiveCount] = {}
    protocols: tuple[_ProtocolVersion, _ProtocolVersion] = (1, 1)
    scaling: ScalingReport | None = None


class SeenServer(NamedTuple):
    """A server, and how many seconds ago it renewed its row, by the clock of the database.

    If that clock was set back since, `age` is how far ahead the row is: nobody renews it any more either.
    """

    record: ServerRecord
    age: float


def read_servers(address: str) -> list[SeenServer]:
    """As `Membership.renew` returns them, of a database that is left as it is. Raises as `open_unchanged`."""
    with open_unchanged(address) as connection:
        return _decode_rows(connection.execute(_select_rows("")).all())


class Membership:
    """The rows of servers. All calls block, and raise Unavailable."""

    def __init__(self, engine: sa.Engine, address: str) -> None:
        self._engine = engine
        self._address = address

    def renew(self, own: ServerRecord) -> list[SeenServer]:
        """Write the own row; returns at most MOST_SERVERS rows by name, the living before others.

        Placement computes with what is returned: rows that cannot be used are of another Pilotlight, or of a
        stranger.
        """
        document = msgspec.json.encode(own)
        insert = postgresql.insert(SERVERS).values(id=own.id, document=document, renewed_at=_NOW)
        renewed = insert.on_conflict_do_update(
            index_elements=["id"], set_={"document": document, "renewed_at": _NOW}
        )
        with translate_errors(self._address), self._engine.begin() as connection:
            connection.execute(renewed)
            connection.execute(_build_gone_delete())
            rows = connection.execute(_select_rows(own.id)).all()
        return _decode_rows(rows)

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


def _is_renewed_within(age: sa.ColumnElement[datetime.timedelta]) -> sa.ColumnElement[bool]:
    """By the clock of the database, to which a row from the future is as silent as one from the past."""
    return SERVERS.c.renewed_at.between(_NOW - age, _NOW + age)


def _build_gone_delete() -> sa.Delete:
    """Rows that others hold, because they renew or remove them, are left to the next round."""
    is_gone = sa.not_(_is_renewed_within(_GONE))
    newest = (
        sa.select(SERVERS.c.id)
        .where(is_gone, _is_renewed_within(_KEPT))
        .order_by(SERVERS.c.renewed_at.desc())
        .limit(_MOST_KEPT)
    )
    over = (
        sa.select(SERVERS.c.id)
        .where(is_gone, SERVERS.c.id.not_in(newest))
        .limit(_MOST_REMOVED)
        .with_for_update(skip_locked=True)
    )
    return sa.delete(SERVERS).where(SERVERS.c.id.in_(over))


def _select_rows(own: str) -> sa.Select[tuple[str, bytes, float]]:
    """The own row, and of the others the same for all servers while the same ones live."""
    age = sa.func.abs(sa.func.extract("epoch", _NOW - SERVERS.c.renewed_at), type_=sa.Float)
    return (
        sa.select(SERVERS.c.id, SERVERS.c.document, age.label("age"))
        # Of a row that is neither, the age may be none that can be computed.
        .where(_is_renewed_within(_KEPT), sa.func.octet_length(SERVERS.c.document) <= _MOST_DOCUMENT_BYTES)
        .order_by(SERVERS.c.id != own, sa.not_(_is_renewed_within(_LIVING)), SERVERS.c.id)
        .limit(MOST_SERVERS)
    )


def _decode_rows(rows: Iterable[sa.Row[tuple[str, bytes, float]]]) -> list[SeenServer]:
    """By name; those that can be used."""
    seen = []
    for row in rows:
        record = _decode_record(row.document)
        if record is not None and record.id == row.id:
            seen.append(SeenServer(record, float(row.age)))
    return sorted(seen, key=lambda one: (one.record.name, one.record.id))


def _decode_record(document: bytes) -> ServerRecord | None:
    try:
        return msgspec.json.decode(document, type=ServerRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
