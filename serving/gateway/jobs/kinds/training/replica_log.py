"""Reads the log that the supervisor of a training job writes. Blocks."""

from __future__ import annotations

import contextlib
import datetime
import heapq
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from serving.gateway.jobs.log_lines import JobLogLine
from training.logs.entries import LogEntry, Segment, list_segments
from training.logs.reader import (
    LogPosition,
    LogQuery,
    decode_line,
    open_segment,
    position_of,
    read_entries,
)

# After a page the thread releases the interpreter to others.
_PAGE_LINES, _YIELD_SECONDS = 5000, 0.0005
# Of the newest segment of each replica, for the last lines of all.
_TAIL_BYTES = 64 << 10


def iter_log_lines(folder: Path, since: int) -> Iterator[JobLogLine]:
    """The lines from a time on, in microseconds since the epoch, in order."""
    position = LogPosition(format_time(since)) if since > 0 else LogPosition()
    while True:
        entries = read_entries(folder, LogQuery(after=position, limit=_PAGE_LINES))
        for entry in entries:
            with contextlib.suppress(ValueError):  # a time or an id of the program's own
                yield to_log_line(entry)
        if len(entries) < _PAGE_LINES:
            return
        position = position_of(entries[-1])
        time.sleep(_YIELD_SECONDS)


def read_last_lines(folder: Path, count: int) -> list[str]:
    """The texts of the last lines of all replicas, each behind the name of its task."""
    newest: dict[tuple[int, str, int], Segment] = {}
    for segment in list_segments(folder):
        newest[segment.stream] = segment
    tails = [_read_tail(folder, segment, count) for segment in newest.values()]
    merged = heapq.merge(*tails, key=position_of)
    return [f"{entry.task}: {entry.text}" for entry in deque(merged, maxlen=count)]


def to_log_line(entry: LogEntry) -> JobLogLine:
    moment = datetime.datetime.fromisoformat(entry.time)
    micros = int(moment.replace(microsecond=0).timestamp()) * 1_000_000 + moment.microsecond
    # A mark of dropped lines has the id of the line before it, with a "+" behind.
    number = int(entry.id.rstrip("+"))
    return JobLogLine(micros, number, entry.severity, entry.task, entry.text, entry.trial)


def format_time(micros: int) -> str:
    """As entries have it."""
    seconds, rest = divmod(micros, 1_000_000)
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"


def _read_tail(folder: Path, segment: Segment, count: int) -> list[LogEntry]:
    try:
        with open_segment(folder, segment) as log:
            start = max(0, log.seek(0, 2) - _TAIL_BYTES)
            log.seek(start)
            lines = log.read().splitlines(keepends=True)[bool(start) :]
    except OSError:  # dropped meanwhile
        return []
    return [entry for entry in map(decode_line, lines[-count:]) if entry is not None]
