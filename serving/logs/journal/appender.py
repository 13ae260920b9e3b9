"""The server's side of a journal. Calls that touch the disk are blocking."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from serving.logs.journal.file_format import (
    RECORD_HEADER,
    LogKind,
    encode_block_header,
    list_segments,
    read_blocks,
    read_metadata,
    segment_path,
    write_metadata,
)
from serving.logs.journal.position import JournalCounts, ReadPosition, count_outcomes

_METADATA_FILE = "journal.json"
_SEGMENT_BYTES = 8 << 20
# A segment that was read to its end is left behind once it is this large.
_ROTATE_BYTES = 256 << 10
# What a record costs beside its content, in memory and on disk.
_RECORD_OVERHEAD = 256
# Readers hold a few blocks in memory.
_BATCH_BYTES = 1 << 20


@dataclass(slots=True)
class BlockBuilder:
    """Records of the next block; `size` is in bytes."""

    parts: list[bytes] = field(default_factory=list)
    records: int = 0
    size: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the records are enough for a block."""
        return self.size >= _BATCH_BYTES

    @staticmethod
    def record_size(data: bytes, answer: bytes) -> int:
        """Bytes of a record with its overhead."""
        return _RECORD_OVERHEAD + len(data) + len(answer)

    def add_record(self, time: float, name: bytes, request_id: bytes, data: bytes, answer: bytes) -> None:
        """Add a record; see `JournalRecord`. Nothing is copied or converted."""
        head = RECORD_HEADER.pack(time, len(name), len(request_id), len(data), len(answer))
        self.parts += (head + name + request_id, data, answer)
        self.records += 1
        self.size += self.record_size(data, answer)


class JournalAppender:
    """Writes records into the journal of an address; `limit` is in bytes, for all of its segments."""

    def __init__(self, folder: Path, kind: LogKind, address: str, limit: int) -> None:
        self.kind = kind
        self.address = address
        self._folder = folder
        self._limit = limit
        self._segment_bytes = max(1, min(_SEGMENT_BYTES, limit // 4))
        self._fd: int | None = None
        self._number = self._end = 0
        self._uid = 0
        self._records = self._dropped = 0
        self._metadata_written = False

    @classmethod
    def find_existing(cls, root: Path, limit: int) -> Iterable[JournalAppender]:
        """The journals that earlier servers left below a folder."""
        for folder in sorted(root.iterdir()) if root.is_dir() else ():
            card = read_metadata(folder / _METADATA_FILE) if folder.is_dir() else None
            if card is not None:
                yield cls(folder, LogKind(card["kind"]), card["address"], limit)

    def open(self) -> int:
        """The descriptor of the segment to append to, made if there is none. Raises OSError."""
        if self._fd is not None:
            return self._fd
        self._folder.mkdir(parents=True, exist_ok=True)
        there = list_segments(self._folder)
        position = ReadPosition.load(self._folder)
        card = read_metadata(self._folder / _METADATA_FILE) or {}
        self._number = max([position.segment, *there])
        fd = self._begin_segment()
        self._uid = card.get("uid") or random.getrandbits(32)
        # The card is written after the block, and so may be behind by one.
        self._records = max(card.get("records", 0), self._read_record_count(there), position.records)
        self._dropped += card.get("dropped", 0)
        self._write_metadata()
        return fd

    def append(self, batch: BlockBuilder) -> None:
        """Write a block, or drop it beyond the limit. Raises OSError, without having changed anything."""
        fd = self.open()
        if sum(list_segments(self._folder).values()) + batch.size > self._limit:
            self.count_dropped(batch.records)
            return
        if self._end >= self._segment_bytes or self._should_rotate():
            fd = self._begin_segment()
        payload = b"".join(batch.parts)
        self._write_block(fd, encode_block_header(payload, batch.records, self._records) + payload)
        self._records += batch.records
        self._metadata_written = False

    def count_dropped(self, records: int) -> None:
        """Count records that are dropped."""
        self._dropped += records
        self._metadata_written = False

    def checkpoint(self) -> JournalCounts:
        """Store the counts, rotate a segment that has been read, and return the counts. Raises OSError."""
        self.open()
        position = ReadPosition.load(self._folder)
        if not self._metadata_written:
            self._write_metadata()
        if self._should_rotate():
            self._begin_segment()
        return count_outcomes(self._records, self._dropped, position)

    def close(self) -> None:
        """Close, and remove segments if all have been read. Raises OSError."""
        if self._fd is None:
            return
        os.close(self._fd)
        self._fd = None
        if self._is_fully_read():
            for number in list_segments(self._folder):
                segment_path(self._folder, number).unlink(missing_ok=True)

    def _should_rotate(self) -> bool:
        return self._end >= _ROTATE_BYTES and self._is_fully_read()

    def _is_fully_read(self) -> bool:
        return ReadPosition.load(self._folder).records == self._records

    def _read_record_count(self, there: dict[int, int]) -> int:
        """Number of records up to the last block."""
        for number in reversed(there):
            ends = [block.first + block.records for block in read_blocks(segment_path(self._folder, number))]
            if ends:
                return ends[-1]
        return 0

    def _begin_segment(self) -> int:
        path = segment_path(self._folder, self._number + 1)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._end = fd, 0
        self._number += 1
        return fd

    def _write_block(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            done = 0
            while done < len(view):
                done += os.pwrite(fd, view[done:], self._end + done)
        except OSError:
            os.ftruncate(fd, self._end)
            raise
        self._end += len(view)

    def _write_metadata(self) -> None:
        card = {
            "kind": self.kind, "address": self.address, "uid": self._uid,
            "records": self._records, "dropped": self._dropped,
        }  # fmt: skip
        write_metadata(self._folder / _METADATA_FILE, card)
        self._metadata_written = True
