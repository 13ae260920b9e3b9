"""Writes the log of a job, within its limit."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import msgspec

from training.logs.entries import SERVICE_TASK, LogEntry, Segment, list_segments

SEGMENT_BYTES = 1 << 20

ReadClock = Callable[[], datetime.datetime]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class JobLogWriter:
    """The log of one attempt; what earlier attempts have left in the folder counts for the limit too.

    That of a trial counts only its own lines; see `add_trial_bytes`. Lines that cannot be written, as on a
    full disk, are counted: the number of them is written once there is room again.
    """

    def __init__(
        self, folder: Path, attempt: int, most_bytes: int, trial: str = "", read_clock: ReadClock = _now
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._attempt = attempt
        self._trial = trial
        self._most_bytes = most_bytes
        self._read_clock = read_clock
        self._sizes = {} if trial else _measure_segments(folder)
        self._trial_bytes = 0
        self._streams: dict[str, _OpenSegment] = {}
        self._count = 0
        self._time = ""
        self._lost = 0

    def write(self, task: str, lines: Iterable[tuple[str, str]]) -> None:
        """Write lines of a task, each a severity and a text, with the time of now."""
        time = self._make_timestamp()
        if self._lost:
            lines = [("WARNING", f"{self._lost} lines before this one could not be written."), *lines]
        data = b"".join(self._encode(time, task, severity, text) for severity, text in lines)
        count = data.count(b"\n")
        try:
            self._append(self._find_stream(task), data)
        except OSError:
            self._lost += count - bool(self._lost)
        else:
            self._lost = 0

    @property
    def size(self) -> int:
        """Bytes of the segments that are known."""
        return sum(self._sizes.values())

    def add_trial_bytes(self, size: int) -> None:
        """Take note of a trial that has ended, with the size of its log; keep all together to the limit."""
        self._trial_bytes += size
        if self.size + self._trial_bytes > self._most_bytes:
            self._sizes, self._trial_bytes = _measure_segments(self._folder), 0
            self._drop_excess()

    def close(self) -> None:
        for stream in self._streams.values():
            os.close(stream.fd)
        self._streams.clear()

    def _encode(self, time: str, task: str, severity: str, text: str) -> bytes:
        self._count += 1
        entry_id = f"{self._attempt:04d}{self._count:011d}{int(self._trial or 0):05d}"
        return msgspec.json.encode(LogEntry(time, entry_id, severity, task, text, self._trial)) + b"\n"

    def _make_timestamp(self) -> str:
        """Times never go back, even if the clock does."""
        now = self._read_clock().isoformat(timespec="microseconds").replace("+00:00", "Z")
        self._time = max(self._time, now)
        return self._time

    def _find_stream(self, task: str) -> _OpenSegment:
        stream = self._streams.get(task)
        if stream is None:
            key = (int(self._trial or 0), task, self._attempt)
            known = [segment for segment in self._sizes if segment.stream == key]
            stream = self._streams[task] = self._open_segment(max(known, default=Segment(*key, 0)))
        return stream

    def _open_segment(self, segment: Segment) -> _OpenSegment:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        stream = _OpenSegment(segment, os.open(self._folder / segment.file_name, flags, 0o644))
        self._sizes.setdefault(segment, 0)
        return stream

    def _append(self, stream: _OpenSegment, data: bytes) -> None:
        """Raises OSError; a line is written whole or not at all."""
        before = self._sizes[stream.segment]
        try:
            while data:
                data = data[os.write(stream.fd, data) :]
                self._sizes[stream.segment] = os.fstat(stream.fd).st_size
        except OSError:
            os.ftruncate(stream.fd, before)
            self._sizes[stream.segment] = before
            raise
        if self._sizes[stream.segment] >= SEGMENT_BYTES:
            self._start_next_segment(stream)

    def _start_next_segment(self, stream: _OpenSegment) -> None:
        segment = stream.segment
        # On a full disk the old one is written on.
        with contextlib.suppress(OSError):
            self._streams[segment.task] = self._open_segment(segment._replace(number=segment.number + 1))
            os.close(stream.fd)
        self._drop_excess()

    def _drop_excess(self) -> None:
        while self.size > self._most_bytes:
            segment = choose_dropped(self._sizes)
            if segment is None:
                return
            (self._folder / segment.file_name).unlink(missing_ok=True)
            del self._sizes[segment]


def _measure_segments(folder: Path) -> dict[Segment, int]:
    sizes = {}
    for segment in list_segments(folder):
        with contextlib.suppress(FileNotFoundError):  # a trial has dropped it
            sizes[segment] = (folder / segment.file_name).stat().st_size
    return sizes


def append_service_line(folder: Path, text: str, severity: str = "INFO") -> None:
    """Add to the log of a job what belongs to none of its attempts; raises OSError."""
    log = JobLogWriter(folder, 0, sys.maxsize)
    try:
        log.write(SERVICE_TASK, [(severity, line) for line in text.splitlines()])
    finally:
        log.close()


class _OpenSegment:
    """The segment that lines of a task are appended to."""

    __slots__ = ("fd", "segment")

    def __init__(self, segment: Segment, fd: int) -> None:
        self.segment = segment
        self.fd = fd


def choose_dropped(sizes: Collection[Segment]) -> Segment | None:
    """The second oldest segment of the stream that has most; None if nothing is to be dropped.

    The newest segment is still being filled, so the one before it is an end too. Where no stream has anything
    between its ends, the first trial goes.
    """
    streams: dict[tuple[int, str, int], list[Segment]] = {}
    for segment in sizes:
        streams.setdefault(segment.stream, []).append(segment)
    longest = max(streams.values(), key=len, default=[])
    if len(longest) > 3:
        return sorted(longest)[1]
    return min((segment for segment in sizes if segment.trial), default=None)
