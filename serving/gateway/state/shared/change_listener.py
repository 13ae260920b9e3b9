"""Hears of commits of other servers, by PostgreSQL's LISTEN.

Whoever may connect to the database may NOTIFY too: what is heard is a reason to look, and nothing more.
"""

from __future__ import annotations

import contextlib
from typing import Any

import sqlalchemy as sa

from serving.errors import Unavailable
from serving.gateway.state.shared.database import RETRY_AFTER, describe_database_error, translate_errors

CHANNEL = "pilotlight_changes"
# Of a revision, which is a BIGINT.
_MAX_DIGITS = 19


class ChangeListener:
    """A connection of its own, made anew when it is lost. All calls block and are made on one thread."""

    def __init__(self, engine: sa.Engine, address: str) -> None:
        self._engine = engine
        self._address = address
        self._connection: sa.Connection | None = None

    def wait(self, seconds: float) -> int | None:
        """The revision of a commit, once there is one within so many seconds.

        None if there is none, or some may have been missed. Raises Unavailable.
        """
        if self._connection is None:
            self._connect()
            return None
        driver: Any = self._connection.connection.driver_connection
        try:
            heard = driver.notifies(timeout=seconds, stop_after=1)
            return max((_parse_revision(told.payload) for told in heard), default=None)
        except self._engine.dialect.loaded_dbapi.Error as error:
            self.close()
            raise Unavailable(
                f"The connection to the database {self._address} is lost: {describe_database_error(error)}.",
                retry_after=RETRY_AFTER,
            ) from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                connection.invalidate()
                connection.close()

    def _connect(self) -> None:
        with translate_errors(self._address):
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            try:
                connection.exec_driver_sql(f"LISTEN {CHANNEL}")
            except BaseException:
                connection.close()
                raise
            self._connection = connection


def _parse_revision(payload: str) -> int:
    """One below all others for a payload that is no revision."""
    is_revision = payload.isascii() and payload.isdigit() and len(payload) <= _MAX_DIGITS
    return int(payload) if is_revision else -1
