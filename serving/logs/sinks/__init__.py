"""Where log records go.

Adding a kind of sink: a class with `write`, and its line in `serving.logs.sinks.sink_factory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from serving.logs.journal import JournalRecord


class Sink(Protocol):
    """Somewhere records go.

    Up to `collect_bytes` are collected before they are written, for `collect_seconds` at most.
    """

    collect_bytes: int
    collect_seconds: float

    def write(self, records: Sequence[JournalRecord], key: str) -> int:
        """Write these records; returns how many of them are refused for good, whenever they come.

        Those it has had before it may write again, or not: readers tell them by their id. `key` names these
        records and is the same when they come again. Raises ServingError or OSError when they can be tried
        again; as if none of them had been written, where that can be had.
        """
