"""The log writer's side of a journal. All calls are blocking."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from serving.logs.journal.file_format import (
    JournalBlock,
    JournalRecord,
    LogKind,
    decode_records,
    list_segments,
    read_block,
    read_metadata,
    segment_path,
)
from serving.logs.journal.position import ReadPosition

_METADATA_FILE = "journal.json"
# Small records take many times their bytes as objects: so many are read at once, about.
_MAX_RECORDS = 4096


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Consecutive records and the number of the first; `size` is their bytes in the journal.

    `end` is the position after them, without their outcome; `lost` counts damaged records before or among
    them.
    """

    first: int
    records: Sequence[JournalRecord]
    size: int
    lost: int
    end: ReadPosition


class JournalReader:
    """Reads a journal from its stored position. A journal has one reader at a time."""

    def __init__(self, folder: Path) -> None:
        card = read_metadata(folder / _METADATA_FILE)
        if card is None:
            raise FileNotFoundError(f"{folder} holds no journal")
        self.kind = LogKind(card["kind"])
        self.address: str = card["address"]
        self.uid: int = card["uid"]
        self.position = ReadPosition.load(folder)
        self._folder = folder

    def read(self, most: int) -> RecordChunk | None:
        """Whole blocks of about `most` bytes or 4,096 records; None if there is nothing to read."""
        # Listed before anything is read: a segment before the last one grows no more.
        there = list_segments(self._folder)
        segment, offset, number = self.position.segment, self.position.offset, self.position.records
        found: list[JournalRecord] = []
        size = lost = 0
        first = number
        while size < most and len(found) < _MAX_RECORDS:
            block = self._read_block(segment, offset)
            if block is None:
                later = [other for other in there if other > segment]
                if not later:
                    break
                segment, offset = later[0], 0
                continue
            first = block.first if not found else first
            lost += max(0, block.first - number)
            number = block.first + block.records
            found += decode_records(block, self.uid)
            size += block.end - offset
            offset = block.end
        if not found and (segment, offset) == (self.position.segment, self.position.offset):
            return None
        end = replace(self.position, segment=segment, offset=offset, records=number)
        return RecordChunk(first, found, size, lost, end)

    def commit(self, chunk: RecordChunk, dropped: int = 0) -> None:
        """Move behind a chunk whose records were sent, except `dropped` ones.

        Raises OSError if the position cannot be stored: it is then stored by the next commit.
        """
        self.position = replace(
            chunk.end,
            sent=chunk.end.sent + len(chunk.records) - dropped,
            dropped=chunk.end.dropped + dropped + chunk.lost,
        )
        self.position.save(self._folder)
        for number in list_segments(self._folder):
            if number < chunk.end.segment:
                segment_path(self._folder, number).unlink(missing_ok=True)

    def backlog_bytes(self) -> int:
        """Approximate bytes that are not read yet."""
        return sum(
            size - (self.position.offset if number == self.position.segment else 0)
            for number, size in list_segments(self._folder).items()
            if number >= self.position.segment
        )

    def _read_block(self, segment: int, offset: int) -> JournalBlock | None:
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(segment_path(self._folder, segment), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return read_block(fd, offset)
            finally:
                os.close(fd)
        return None
