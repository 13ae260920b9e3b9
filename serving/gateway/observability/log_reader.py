"""Reads the log folders that the log writer makes. Calls block, for a bounded time, in bounded memory."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import orjson

from serving.errors import InvalidArgument

# The limits of one page: bytes of entries, bytes read, seconds. A single longer line may exceed them.
_MAX_PAGE_BYTES = 8 << 20
_MAX_READ_BYTES = 32 << 20
_MAX_SECONDS = 1.0
# A block holds the interpreter lock for a fraction of a millisecond. A thread that only released it would
# mostly get it again at once; the pause lets the event loop have it.
_BLOCK = 64 << 10
_PAUSE = 0.0005
# The log writer writes no longer line.
_MAX_LINE = 128 << 20
_BEGIN = "begin"
_DAY = re.compile(r"dt=\d{4}-\d\d-\d\d")
_FILE = re.compile(r"[\w-]+\.jsonl")
_POSITION = re.compile(r"(dt=\d{4}-\d\d-\d\d/[\w-]+\.jsonl):(\d{1,18})")
# O_NONBLOCK: a file may be replaced by anything, and opening a pipe would block.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Entry = dict[str, Any]


class LogEntryHeading(msgspec.Struct, frozen=True):
    """The fields that entries are filtered by."""

    time: str
    project: str = ""
    model: str = ""
    model_version: str = ""


_HEADING = msgspec.json.Decoder(LogEntryHeading)


@dataclass(frozen=True, slots=True)
class LogPage:
    """Entries, the oldest first.

    `cursor` is the position after them. `next_page_token` is the position before them, "" when no earlier
    entry can match.
    """

    entries: Sequence[Entry]
    cursor: str
    next_page_token: str = ""


@dataclass(slots=True)
class _Scan:
    """The entries found for one page, and what reading them cost."""

    limit: int
    is_cancelled: Callable[[], bool]
    found: list[Entry] = field(default_factory=list)
    size: int = 0
    scanned: int = 0
    deadline: float = field(default_factory=lambda: time.monotonic() + _MAX_SECONDS)

    def read_block(self, file: int, length: int, start: int) -> bytes:
        if self.scanned:
            time.sleep(_PAUSE)
        block = os.pread(file, length, start)
        self.scanned += len(block)
        return block

    def add(self, entry: Entry, size: int) -> None:
        self.found.append(entry)
        self.size += size

    @property
    def is_over(self) -> bool:
        """Whether the page must end here."""
        return (
            len(self.found) >= self.limit
            or self.size >= _MAX_PAGE_BYTES
            or self.scanned >= _MAX_READ_BYTES
            or time.monotonic() >= self.deadline
            or self.is_cancelled()
        )


class LogReader:
    """Reads the entries of `FOLDER/dt=DAY/NAME.jsonl` whose heading `matches`.

    Each call ends early once `is_cancelled` returns True; it is called between blocks.
    """

    def __init__(
        self,
        folder: Path,
        matches: Callable[[LogEntryHeading], bool],
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder = folder
        self._matches = matches
        self._is_cancelled = is_cancelled

    def read_last(self, limit: int, since: str = "", page_token: str = "") -> LogPage:
        """The last entries before a page token, none older than `since`.

        `since` is a time in the format of the log. Raises InvalidArgument.
        """
        scan = _Scan(limit, self._is_cancelled)
        cursor = token = ""
        for line, position in self._lines_before(page_token, since, scan):
            cursor = cursor or position
            self._add_matching(line, since, scan)
            if scan.is_over and position != page_token:  # each page makes progress, whatever it costs
                token = position
                break
        return LogPage(scan.found[::-1], cursor or _BEGIN, token)

    def read_after(self, cursor: str, limit: int) -> LogPage:
        """The first entries after a cursor. Raises InvalidArgument."""
        scan = _Scan(limit, self._is_cancelled)
        end = cursor
        for line, end in self._lines_after(cursor, scan):
            self._add_matching(line, "", scan)
            if scan.is_over and end != cursor:
                break
        return LogPage(scan.found, end)

    def _add_matching(self, line: bytes, since: str, scan: _Scan) -> None:
        try:
            heading = _HEADING.decode(line)
            if heading.time >= since and self._matches(heading):
                scan.add(orjson.loads(line), len(line))
        except (msgspec.DecodeError, orjson.JSONDecodeError, RecursionError):  # no entry of the log writer
            pass

    def _lines_before(self, page_token: str, since: str, scan: _Scan) -> Iterator[tuple[bytes, str]]:
        """Whole lines, the last first, each with the token for those before it; the first is empty."""
        newest, end = _parse_position(page_token, "page_token") if page_token else ("", None)
        for name in self._list_files(descending=True):
            if newest and name > newest:
                continue
            with _open_regular_file(self._folder / name) as file:
                if file is None:
                    continue
                for line, start in _lines_before(file, end if name == newest else None, scan):
                    yield line, f"{name}:{start}"
                    if name < f"dt={since[:10]}":
                        return

    def _lines_after(self, cursor: str, scan: _Scan) -> Iterator[tuple[bytes, str]]:
        """Whole lines, each with the cursor for those after it."""
        oldest, offset = ("", 0) if cursor == _BEGIN else _parse_position(cursor, "cursor")
        for name in self._list_files(oldest.partition("/")[0]):
            if name < oldest:
                continue
            with _open_regular_file(self._folder / name) as file:
                if file is None:
                    continue
                start = offset if name == oldest else 0
                yield b"", f"{name}:{start}"
                for line, end in _lines_after(file, start, scan):
                    yield line, f"{name}:{end}"

    def _list_files(self, first_day: str = "", *, descending: bool = False) -> Iterator[str]:
        """File names in the order of time; each day's folder is listed when it is reached."""
        for day in _list_matching(self._folder, _DAY, descending=descending):
            if day >= first_day:
                for file in _list_matching(self._folder / day, _FILE, descending=descending):
                    yield f"{day}/{file}"


def _list_matching(folder: Path, pattern: re.Pattern[str], *, descending: bool) -> list[str]:
    try:
        with os.scandir(folder) as found:
            names = [entry.name for entry in found if pattern.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(names, reverse=descending)


@contextlib.contextmanager
def _open_regular_file(path: Path) -> Iterator[int | None]:
    """A descriptor; None if the file was removed meanwhile or is no regular file."""
    try:
        file = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ELOOP, errno.ENXIO}:
            raise
        yield None
        return
    try:
        yield file if stat.S_ISREG(os.fstat(file).st_mode) else None
    finally:
        os.close(file)


def _lines_after(file: int, start: int, scan: _Scan) -> Iterator[tuple[bytes, int]]:
    """Whole lines from a byte on, each with the byte it ends at."""
    line = bytearray()
    while block := scan.read_block(file, _BLOCK, start):
        *ended, rest = block.split(b"\n")
        for part in ended:
            start += len(part) + 1
            yield bytes(line) + part, start
            line.clear()
        start += len(rest)
        line += rest
        if len(line) > _MAX_LINE:
            line.clear()
            yield b"", start


def _lines_before(file: int, end: int | None, scan: _Scan) -> Iterator[tuple[bytes, int]]:
    """Whole lines that end before a byte, the last first, each with its first byte; the first is empty.

    None is the end of the file. What follows its last newline is a line that is being written.
    """
    size = os.fstat(file).st_size
    start = size if end is None else min(end, size)
    is_whole = False
    parts: list[bytes] = []  # of the line whose beginning is not read yet, last first
    while start > 0:
        block = scan.read_block(file, min(start, _BLOCK), max(0, start - _BLOCK))
        if len(block) < min(start, _BLOCK):  # it was truncated meanwhile
            return
        first, *others = block.split(b"\n")
        for part in reversed(others):
            start -= len(part)
            yield b"".join((part, *reversed(parts))) if is_whole else b"", start
            start -= 1
            parts.clear()
            is_whole = True
        start -= len(first)
        parts.append(first)
        if len(parts) > _MAX_LINE // _BLOCK:
            parts.clear()
            yield b"", start
    yield b"".join(reversed(parts)) if is_whole else b"", 0


def _parse_position(position: str, name: str) -> tuple[str, int]:
    match = _POSITION.fullmatch(position)
    if match is None:
        raise InvalidArgument(
            f"Field: {name} Error: {position!r} is not the {name} of an earlier answer.", field=name
        )
    return match[1], int(match[2])
