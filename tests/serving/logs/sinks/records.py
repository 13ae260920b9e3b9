"""Records for sinks."""

from __future__ import annotations

import msgspec

from serving.logs.journal import JournalRecord
from serving.logs.sinks.cloud_logging_entries import ConsoleLine

NAME = "projects/p/models/m/versions/v"
NOON = 1_893_585_600.0  # 2030-01-02T12:00:00Z
DAY = "dt=2030-01-02"


def record(number: int, data: bytes | None = None, *, time: float = NOON, name: str = NAME) -> JournalRecord:
    body = b"%d" % number if data is None else data
    return JournalRecord(f"{number:032x}", time, name, "request", body, b"{}")


def entry(number: int, **details: object) -> JournalRecord:
    """A line of a console log."""
    return record(number, msgspec.json.encode(ConsoleLine("node", str(number), "here")), **details)  # type: ignore[arg-type]
