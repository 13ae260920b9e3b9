"""The format of a journal's files."""

from __future__ import annotations

import enum
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

# One record: time, and the lengths of what follows: name, request id, data, answer.
RECORD_HEADER = struct.Struct("<dHHII")
# Several records: magic, bytes, number of records, number of the first one, CRC-32 of the bytes that follow.
BLOCK_HEADER = struct.Struct("<4sIIQI")
_BLOCK_MAGIC = b"PLJ1"

_SEGMENT = ".segment"
# Metadata is overwritten in place, which works on a full disk too.
_METADATA_BYTES = 4096
_READ_ATTEMPTS = 5


class LogKind(enum.StrEnum):
    """The kind of a journal's records."""

    REQUESTS = "requests"
    ACCESS = "access"
    CONSOLE = "console"


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One record of a log.

    `id` is the same each time the record is read; `time` is in seconds since the epoch; `name` is the full
    name of the version. For requests, `data` and `answer` are the two bodies; for other kinds `data` is an
    encoded record.
    """

    id: str
    time: float
    name: str
    request_id: str
    data: bytes
    answer: bytes


@dataclass(frozen=True, slots=True)
class JournalBlock:
    """A complete block: the number of its first record, how many there are, its end in the segment."""

    first: int
    records: int
    payload: bytes
    end: int


def journal_folder(root: Path, kind: LogKind, address: str) -> Path:
    """The folder of an address's journal; "" for a kind with a single journal."""
    if not address:
        return root / kind
    return root / f"{kind}-{hashlib.sha256(address.encode()).hexdigest()[:16]}"


# ---- segments


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}{_SEGMENT}"


def list_segments(folder: Path) -> dict[int, int]:
    """Sizes of the existing segments by number, in order."""
    found: dict[int, int] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SEGMENT):
                try:
                    found[int(entry.name.removesuffix(_SEGMENT))] = entry.stat().st_size
                except FileNotFoundError:  # the writer is past it
                    continue
    return dict(sorted(found.items()))


def encode_block_header(payload: bytes, records: int, first: int) -> bytes:
    return BLOCK_HEADER.pack(_BLOCK_MAGIC, len(payload), records, first, zlib.crc32(payload))


def read_block(fd: int, offset: int) -> JournalBlock | None:
    """The block at an offset of a segment; None if there is none, or an incomplete or damaged one."""
    head = os.pread(fd, BLOCK_HEADER.size, offset)
    if len(head) < BLOCK_HEADER.size:
        return None
    mark, size, records, first, checksum = BLOCK_HEADER.unpack(head)
    if mark != _BLOCK_MAGIC:
        return None
    start = offset + BLOCK_HEADER.size
    payload = os.pread(fd, size, start)
    if len(payload) < size or zlib.crc32(payload) != checksum:
        return None
    return JournalBlock(first, records, payload, start + size)


def read_blocks(path: Path) -> Iterator[JournalBlock]:
    """The complete blocks of a segment."""
    offset = 0
    with path.open("rb", buffering=0) as file:
        while (block := read_block(file.fileno(), offset)) is not None:
            yield block
            offset = block.end


def decode_records(block: JournalBlock, uid: int) -> Iterator[JournalRecord]:
    """The records of a block. `uid` is the 32-bit id of the journal."""
    payload, offset = block.payload, 0
    for number in range(block.first, block.first + block.records):
        time, *lengths = RECORD_HEADER.unpack_from(payload, offset)
        offset += RECORD_HEADER.size
        parts = []
        for length in lengths:
            parts.append(payload[offset : offset + length])
            offset += length
        name, request_id, data, answer = parts
        yield JournalRecord(
            _make_record_id(time, uid, number), time, name.decode(), request_id.decode(), data, answer
        )


def _make_record_id(time: float, uid: int, number: int) -> str:
    """32 hex digits that sort by time, as those of a UUID of version 7 do."""
    return f"{int(time * 1000) & 0xFFFFFFFFFFFF:012x}{uid:08x}{number & 0xFFFFFFFFFFFF:012x}"


# ---- metadata


def write_metadata(path: Path, values: dict[str, Any]) -> None:
    """Overwrite a small file in place. Raises OSError."""
    text = orjson.dumps(values)
    data = (b"%b\n%08x" % (text, zlib.crc32(text))).ljust(_METADATA_BYTES)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.pwrite(fd, data, 0) < len(data):
            raise OSError(f"only a part of {path} could be written")
    finally:
        os.close(fd)


def read_metadata(path: Path) -> dict[str, Any] | None:
    """The content of a small file; None if it is missing or damaged."""
    for _ in range(_READ_ATTEMPTS):
        try:
            text, _, checksum = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        if checksum.strip() == b"%08x" % zlib.crc32(text):
            values: dict[str, Any] = orjson.loads(text)
            return values
        # It was read while it was written.
    return None
