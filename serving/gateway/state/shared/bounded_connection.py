"""Connections that are given up when the database is silent: it may stand still, and TCP does not tell.

The limits that PostgreSQL keeps by itself, such as `statement_timeout`, hold only while it runs.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.waiting import Ready

# psycopg resumes a generator with this when nothing has arrived for a tenth of a second.
_NOTHING_ARRIVED = 0


def bound_connections(engine: sa.Engine, silence_seconds: float) -> None:
    """Let each new connection of an engine raise OperationalError after so many seconds without a byte."""

    @sa.event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, arguments: Any, parameters: Any) -> _BoundedConnection:
        connection = _BoundedConnection.connect(*arguments, **parameters)
        connection.silence_seconds = silence_seconds
        return connection


class _BoundedConnection(psycopg.Connection[Any]):
    silence_seconds: float

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        return super().wait(self._watch_silence(gen), *args, **kwargs)

    def _watch_silence(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        heard_at = time.monotonic()
        try:
            state = next(gen)
            while True:
                ready: Ready | int = yield state
                if ready != _NOTHING_ARRIVED:
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > self.silence_seconds:
                    # Closed, so that it is not taken for one that can be rolled back.
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"it has not answered for {self.silence_seconds:g} s")
                state = gen.send(ready)
        except StopIteration as end:
            return end.value
