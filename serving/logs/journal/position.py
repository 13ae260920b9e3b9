"""How far a journal's reader is, and what that makes of its records."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from serving.logs.journal.file_format import read_metadata, write_metadata

_POSITION_FILE = "position.json"


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The place of the next block, and what has become of the records before it.

    `segment` and `offset` are the place, `records` the number of the first record there; each record before
    it was `sent`, or `dropped`: refused for good by where it was to go, or damaged on disk.
    """

    segment: int = 0
    offset: int = 0
    records: int = 0
    sent: int = 0
    dropped: int = 0

    @classmethod
    def load(cls, folder: Path) -> ReadPosition:
        """The one noted in a journal's folder."""
        values = read_metadata(folder / _POSITION_FILE)
        return cls() if values is None else cls(**values)

    def save(self, folder: Path) -> None:
        """Note it. Raises OSError."""
        write_metadata(folder / _POSITION_FILE, asdict(self))


@dataclass(frozen=True, slots=True)
class JournalCounts:
    """What has become of all records ever: sampled = sent + waiting + dropped."""

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
    """Of a journal that got so many `records` besides those `dropped` before they got there."""
    return JournalCounts(
        sampled=records + dropped,
        sent=position.sent,
        waiting=records - position.sent - position.dropped,
        dropped=dropped + position.dropped,
    )
