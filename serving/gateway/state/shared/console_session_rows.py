"""Sessions of the console in the database, so that each server knows who has signed in at another."""

from __future__ import annotations

import datetime

import sqlalchemy as sa

from serving.gateway.state.shared.database import CONSOLE_SESSIONS, translate_errors

_NOW = sa.func.clock_timestamp(type_=sa.DateTime(timezone=True))


class ConsoleSessionRows:
    """Rows of sessions, which end by the clock of the database. All calls block, and raise Unavailable."""

    def __init__(self, engine: sa.Engine, address: str) -> None:
        self._engine = engine
        self._address = address

    def add(self, session: str, token: bytes, seconds: float, most: int) -> None:
        """Keep a session for so many seconds, and of all the `most` that end last."""
        ends_at = _NOW + sa.literal(datetime.timedelta(seconds=seconds), sa.Interval)
        kept = sa.select(CONSOLE_SESSIONS.c.id).order_by(CONSOLE_SESSIONS.c.ends_at.desc()).limit(most)
        is_over = sa.or_(CONSOLE_SESSIONS.c.ends_at <= _NOW, CONSOLE_SESSIONS.c.id.not_in(kept))
        with translate_errors(self._address), self._engine.begin() as connection:
            added = {"id": session, "token": token, "ends_at": ends_at}
            connection.execute(sa.insert(CONSOLE_SESSIONS).values(added))
            connection.execute(sa.delete(CONSOLE_SESSIONS).where(is_over))

    def find(self, session: str, seconds: float) -> tuple[bytes, float] | None:
        """The token of a session that has not ended, and how many seconds it has to go.

        One that has more than `seconds` to go was made before the clock was set back: it has ended, too.
        """
        latest = _NOW + sa.literal(datetime.timedelta(seconds=seconds), sa.Interval)
        left = sa.extract("epoch", CONSOLE_SESSIONS.c.ends_at - _NOW)
        found = sa.select(CONSOLE_SESSIONS.c.token, left.label("left")).where(
            CONSOLE_SESSIONS.c.id == session, CONSOLE_SESSIONS.c.ends_at.between(_NOW, latest)
        )
        with translate_errors(self._address), self._engine.begin() as connection:
            row = connection.execute(found).one_or_none()
        return None if row is None else (bytes(row.token), float(row.left))

    def remove(self, session: str) -> None:
        with translate_errors(self._address), self._engine.begin() as connection:
            connection.execute(sa.delete(CONSOLE_SESSIONS).where(CONSOLE_SESSIONS.c.id == session))
