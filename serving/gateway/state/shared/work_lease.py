"""Who does the work of the servers that share a database: one of them, for as long as it renews its lease.

Each new holder gets a number above all before, the fence. What the work writes names it, so that a server
that has stood still for longer than its lease changes nothing more.
"""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa

from serving.gateway.state.shared.database import HEAD, LEASES, translate_errors

WORK_LEASE = "work"

_IS_WORK = LEASES.c.name == WORK_LEASE
_NOW = sa.func.clock_timestamp(type_=sa.DateTime(timezone=True))
# Nobody is given a lease for longer: one that would end later is left by a clock that was set back.
_LONGEST = sa.literal(datetime.timedelta(minutes=10), sa.Interval)
_IS_OVER = sa.not_(LEASES.c.ends_at.between(_NOW, _NOW + _LONGEST))


class WorkLease:
    """The lease in a database, by its own clock. All calls block, and raise Unavailable."""

    def __init__(self, engine: sa.Engine, address: str) -> None:
        self._engine = engine
        self._address = address

    def take_or_renew(self, holder: str, seconds: float) -> int | None:
        """Have the lease for so many seconds from now on; returns its fence, None if another has it."""
        ends_at = _NOW + sa.literal(datetime.timedelta(seconds=seconds), sa.Interval)
        with translate_errors(self._address), self._engine.begin() as connection:
            found = _read_lease(connection)
            if found is not None and found.holder == holder:
                renewed = sa.update(LEASES).where(_IS_WORK, LEASES.c.holder == holder)
                return connection.execute(
                    renewed.values(ends_at=ends_at).returning(LEASES.c.fence)
                ).scalar_one_or_none()
            if found is not None and not found.is_over:
                return None
            # After the commits of the holder before, which check the lease under this lock.
            connection.execute(sa.select(HEAD).with_for_update())
            if _read_lease(connection) is None:
                first = {"name": WORK_LEASE, "holder": holder, "fence": 1, "ends_at": ends_at}
                connection.execute(sa.insert(LEASES).values(first))
                return 1
            taken = (
                sa.update(LEASES)
                .where(_IS_WORK, _IS_OVER)
                .values(holder=holder, fence=LEASES.c.fence + 1, ends_at=ends_at)
            )
            return connection.execute(taken.returning(LEASES.c.fence)).scalar_one_or_none()

    def release(self, holder: str) -> None:
        """Let another server have the lease at once."""
        with translate_errors(self._address), self._engine.begin() as connection:
            mine = sa.update(LEASES).where(_IS_WORK, LEASES.c.holder == holder)
            connection.execute(mine.values(holder="", ends_at=_NOW))

    def find_holder(self) -> str | None:
        """Who has the lease now."""
        with translate_errors(self._address), self._engine.begin() as connection:
            found = _read_lease(connection)
            return None if found is None or found.is_over else str(found.holder)


def _read_lease(connection: sa.Connection) -> sa.Row[Any] | None:
    # Not its end, which may be none that Python knows.
    found = sa.select(LEASES.c.holder, LEASES.c.fence, _IS_OVER.label("is_over"))
    return connection.execute(found.where(_IS_WORK)).one_or_none()
