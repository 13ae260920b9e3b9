"""Destinations of log records.

A new kind of sink is a class with `write`, and its line in `serving.logs.sinks.sink_factory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from serving.logs.journal import JournalRecord


class Sink(Protocol):
    """A destination of records.

    Up to `collect_bytes` are collected before a write, for `collect_seconds` at most.
    """

    collect_bytes: int
    collect_seconds: float

    def write(self, records: Sequence[JournalRecord], key: str) -> int:
        """Write records; returns how many of them are refused for good.

        Records may be written again, with the same `key`; a sink may store them twice, since readers
        recognise them by their id. Raises ServingError or OSError if the write can be repeated, if possible
        without having written any.
        """
