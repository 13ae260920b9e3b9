"""Reads logs in folders as the log writer makes them. All calls are blocking, in bounded memory."""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from serving.errors import InvalidArgument

# What one answer may be made of; a single line may be longer.
_BYTES = 8 << 20
_SCANNED = 32 << 20
_BEGIN = "begin"
_CURSOR = re.compile(r"(dt=\d{4}-\d\d-\d\d/[\w-]+\.jsonl):(\d+)")

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries, oldest first. `cursor` is where those after them begin."""

    entries: Sequence[Entry]
    cursor: str


class LogFiles:
    """The files of a log, `FOLDER/dt=DAY/NAME.jsonl`, and which of their entries are meant."""

    def __init__(self, folder: Path, meant: Callable[[Entry], bool]) -> None:
        self._folder = folder
        self._meant = meant

    def last(self, limit: int, since: str = "") -> Page:
        """The last entries, of those from the moment `since` on, a time as the log has it."""
        names = self._names()
        found: list[Entry] = []
        size = 0
        for name in reversed(names):
            if size >= _BYTES or name < f"dt={since[:10]}":
                break
            entries, taken, more = self._tail(name, limit - len(found), since, _BYTES - size)
            found[:0] = entries
            size += taken
            if more:
                break
        return Page(found, self._end(names))

    def after(self, cursor: str, limit: int) -> Page:
        """The entries after a cursor, the first of them. Raises InvalidArgument."""
        first, offset = _parse(cursor)
        found: list[Entry] = []
        scanned = size = 0
        for name in self._names():
            if name < first:
                continue
            start = offset if name == first else 0
            cursor = f"{name}:{start}"
            for line, end in self._lines(name, start):
                if len(found) >= limit or size >= _BYTES or scanned >= _SCANNED:
                    return Page(found, cursor)
                cursor = f"{name}:{end}"
                scanned += len(line)
                entry = self._entry(line)
                if entry is not None:
                    found.append(entry)
                    size += len(line)
        return Page(found, cursor)

    def _tail(self, name: str, limit: int, since: str, most: int) -> tuple[list[Entry], int, bool]:
        """The last entries of a file, their size, and whether it has more."""
        kept: deque[tuple[Entry, int]] = deque()
        size, more = 0, False
        for line, _ in self._lines(name, 0):
            entry = self._entry(line)
            if entry is None or entry["time"] < since:
                continue
            kept.append((entry, len(line)))
            size += len(line)
            while len(kept) > limit or (size > most and len(kept) > 1):
                size -= kept.popleft()[1]
                more = True
        return [entry for entry, _ in kept], size, more

    def _entry(self, line: bytes) -> Entry | None:
        """What a line says, None when that is not meant."""
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError:  # somebody else's file
            return None
        meant = isinstance(entry, dict) and isinstance(entry.get("time"), str) and self._meant(entry)
        return entry if meant else None

    def _names(self) -> list[str]:
        """Those of all files, in the order of their times."""
        return sorted(f"{path.parent.name}/{path.name}" for path in self._folder.glob("dt=*/*.jsonl"))

    def _end(self, names: Sequence[str]) -> str:
        """The cursor behind everything."""
        if not names:
            return _BEGIN
        end = 0
        for _, end in self._lines(names[-1], 0):  # noqa: B007  the last one counts
            pass
        return f"{names[-1]}:{end}"

    def _lines(self, name: str, start: int) -> Iterator[tuple[bytes, int]]:
        """Whole lines from a byte on, each with the byte it ends at."""
        try:
            file = (self._folder / name).open("rb")
        except FileNotFoundError:  # it was removed meanwhile
            return
        with file:
            file.seek(start)
            yield from _whole(file, start)


def _whole(file: BinaryIO, start: int) -> Iterator[tuple[bytes, int]]:
    lines = itertools.takewhile(lambda line: line.endswith(b"\n"), file)
    for line in lines:
        start += len(line)
        yield line, start


def _parse(cursor: str) -> tuple[str, int]:
    if cursor == _BEGIN:
        return "", 0
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidArgument(
            f"Field: cursor Error: {cursor!r} is no cursor; take the one of the last answer.", field="cursor"
        )
    return match[1], int(match[2])
