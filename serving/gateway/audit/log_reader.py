"""Reads the audit log newest first, a page at a time. All calls block."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import orjson

from serving.gateway.audit.log_folder import AuditEntry, AuditQuery, list_log_files, parse_day

_BLOCK_BYTES = 128 << 10
# What may have been written after the first line of a call until its result.
_RESULT_WITHIN_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class AuditPosition:
    """Everything before `offset` in the file of `day`, and all earlier days."""

    day: datetime.date
    offset: int

    def __str__(self) -> str:
        return f"{self.day}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> AuditPosition:
        """Raises ValueError."""
        day, _, offset = text.partition(":")
        return cls(datetime.date.fromisoformat(day), int(offset))


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Entries, newest first. `next_position` is where to go on, None at the beginning of the log.

    `is_cut` is whether the page ends because enough was read, not because it is full. The first line of a
    call is left out where its result is there.
    """

    entries: tuple[AuditEntry, ...]
    next_position: AuditPosition | None
    is_cut: bool = False


def read_newest(
    folder: Path, query: AuditQuery, position: AuditPosition | None, *, most: int, max_bytes: int
) -> AuditPage:
    """The last `most` entries before a position, the newest if None; reads some `max_bytes` at most.

    Raises OSError.
    """
    found: list[AuditEntry] = []
    read = 0
    for file in reversed(list_log_files(folder)):
        day = parse_day(file)
        if query.since is not None and day < query.since.astimezone(datetime.UTC).date():
            break
        if position is not None and day > position.day:
            continue
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            end = min(position.offset, size) if position is not None and day == position.day else size
            answered = _read_answered_calls(stream, end)
            for start, line in _iter_lines_backward(stream, end):
                if len(found) == most or read > max_bytes:
                    return AuditPage(
                        tuple(found), AuditPosition(day, start + len(line)), is_cut=len(found) < most
                    )
                read += len(line)
                if (entry := _match_line(line, query, answered)) is not None:
                    found.append(entry)
    return AuditPage(tuple(found), None)


def _match_line(line: bytes, query: AuditQuery, answered: set[str]) -> AuditEntry | None:
    """The entry of a line if it is to be shown; `answered` are calls whose later lines were read."""
    try:
        entry: AuditEntry = orjson.loads(line)
        operation = entry.get("operation", {})
        if operation.get("first") and operation["id"] in answered:
            return None
        answered.add(operation.get("id", ""))
        return entry if query.matches(entry) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        # A machine that stopped may leave part of a line.
        return None


def _read_answered_calls(stream: BinaryIO, start: int) -> set[str]:
    """The ids of the calls that have lines soon after a position."""
    stream.seek(start)
    calls = set()
    for line in stream.read(_RESULT_WITHIN_BYTES).splitlines():
        try:
            calls.add(orjson.loads(line).get("operation", {}).get("id", ""))
        except (ValueError, AttributeError):
            continue
    return calls


def _iter_lines_backward(stream: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """The complete lines that end at `end` or before, the last one first, each with its offset."""
    rest, position = b"", end
    while position:
        size = min(_BLOCK_BYTES, position)
        position -= size
        stream.seek(position)
        rest = stream.read(size) + rest
        begin, *lines = rest.splitlines(keepends=True) or [b""]
        offset = position + len(rest)
        for line in reversed(lines):
            offset -= len(line)
            if line.endswith(b"\n"):
                yield offset, line
        rest = begin
    if rest.endswith(b"\n"):
        yield 0, rest
