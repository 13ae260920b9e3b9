"""How far a journal has been read, and what became of its records."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from serving.logs.journal.file_format import read_metadata, write_metadata

_POSITION_FILE = "position.json"


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Where the next block is, and what became of the records before it.

    `records` is the number of the first record there. Each record before it was `sent`, or `dropped`: refused
    by its sink for good, or damaged on disk.
    """

    segment: int = 0
    offset: int = 0
    records: int = 0
    sent: int = 0
    dropped: int = 0

    @classmethod
    def load(cls, folder: Path) -> ReadPosition:
        """The position stored in a journal's folder."""
        values = read_metadata(folder / _POSITION_FILE)
        return cls() if values is None else cls(**values)

    def save(self, folder: Path) -> None:
        """Raises OSError."""
        write_metadata(folder / _POSITION_FILE, asdict(self))


@dataclass(frozen=True, slots=True)
class JournalCounts:
    """Counts of all records so far: sampled = sent + waiting + dropped."""

    sampled: int = 0
    sent: int = 0
    waiting: int = 0
    dropped: int = 0

    def __add__(self, other: JournalCounts) -> JournalCounts:
        return JournalCounts(
            self.sampled + other.sampled,
            self.sent + other.sent,
            self.waiting + other.waiting,
            self.dropped + other.dropped,
        )


def count_outcomes(records: int, dropped: int, position: ReadPosition) -> JournalCounts:
    """The counts of a journal with `records` written, and `dropped` instead of being written."""
    return JournalCounts(
        sampled=records + dropped,
        sent=position.sent,
        waiting=records - position.sent - position.dropped,
        dropped=dropped + position.dropped,
    )
