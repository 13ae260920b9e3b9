"""Reads the log of a job, also while it is being written."""

from __future__ import annotations

import errno
import heapq
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from training.logs.entries import LogEntry, Segment, list_segments

# How near to a position a line is searched for.
_NEAR_BYTES = 1 << 14
_PART_BYTES = 1 << 16
_DECODER = msgspec.json.Decoder(LogEntry)
_DROPPED = "[the log is over its limit: lines were dropped here]"


class LogPosition(NamedTuple):
    """The place of an entry among all of a job; entries behind it are greater."""

    time: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which entries are wanted.

    They are behind `after` and before the time `until`, RFC 3339 in UTC ("": no end), of one `task` and one
    `trial` ("": of any), `limit` at most.
    """

    after: LogPosition = LogPosition()
    until: str = ""
    task: str = ""
    trial: str = ""
    limit: int = 1000


def position_of(entry: LogEntry) -> LogPosition:
    return LogPosition(entry.time, entry.id)


def read_entries(folder: Path, query: LogQuery) -> list[LogEntry]:
    """The first entries that a query asks for, in order; none if there is no log.

    To follow a log, ask again for what is behind the last entry. Reads one segment of each stream besides
    what it returns.
    """
    wanted = [
        segment
        for segment in list_segments(folder)
        if query.task in ("", segment.task) and query.trial in ("", str(segment.trial))
    ]
    streams = [
        _read_stream(folder, list(segments), query.after)
        for _, segments in itertools.groupby(wanted, lambda segment: segment.stream)
    ]
    merged: Iterator[LogEntry] = heapq.merge(*streams, key=position_of)
    if query.until:
        merged = itertools.takewhile(lambda entry: entry.time < query.until, merged)
    return list(itertools.islice(merged, query.limit))


def _read_stream(folder: Path, segments: Sequence[Segment], after: LogPosition) -> Iterator[LogEntry]:
    """The entries of one stream behind a position; where segments are missing, an entry says so."""
    first = _find_first_segment(folder, segments, after)
    last: LogEntry | None = None
    number = segments[first].number
    for segment in segments[first:]:
        if last is not None and segment.number > number + 1:
            dropped = msgspec.structs.replace(last, id=f"{last.id}+", severity="WARNING", text=_DROPPED)
            if position_of(dropped) > after:
                yield dropped
        number = segment.number
        for entry in _read_segment(folder, segment, after):
            last = entry
            if position_of(entry) > after:
                yield entry


def _find_first_segment(folder: Path, segments: Sequence[Segment], after: LogPosition) -> int:
    """The last segment that begins at the position or before it: what is before that is not wanted."""
    for index in range(len(segments) - 1, 0, -1) if after.time else ():
        entry = next(_read_segment(folder, segments[index], LogPosition()), None)
        if entry is not None and position_of(entry) <= after:
            return index
    return 0


def _read_segment(folder: Path, segment: Segment, after: LogPosition) -> Iterator[LogEntry]:
    """The whole lines of a segment from before the position on; none if it was dropped meanwhile.

    The file is open for one part at a time: a job with trials has thousands.
    """
    start: int | None = None
    while True:
        try:
            file = open_segment(folder, segment)
        except OSError:
            return
        with file:
            if start is None:
                _seek_before(file, after)
                start = file.tell()
            file.seek(start)
            lines = file.readlines(_PART_BYTES)
        if not lines:
            return
        start += sum(map(len, lines))
        yield from filter(None, map(decode_line, lines))


def open_segment(folder: Path, segment: Segment) -> BinaryIO:
    """Raises OSError, also for what is no regular file: programs can write here. A pipe is not waited for."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
    file = open(folder / segment.file_name, "rb", opener=lambda name, _: os.open(name, flags))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is no regular file", segment.file_name)
    return file


def decode_line(line: bytes) -> LogEntry | None:
    """None for a line that is not whole, or that no writer has left so, as after a loss of power."""
    if not line.endswith(b"\n"):
        return None
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _seek_before(file: BinaryIO, after: LogPosition) -> None:
    """Go to the start of a line at the position or before it, by bisection."""
    low, high = 0, file.seek(0, os.SEEK_END) if after.time else 0
    while high - low > _NEAR_BYTES:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        entry = decode_line(file.readline())
        if entry is not None and position_of(entry) <= after:
            low = middle
        else:
            high = middle
    file.seek(low)
    if low:
        file.readline()
