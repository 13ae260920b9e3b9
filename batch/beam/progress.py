"""How far a job is, as its workers on this machine tell: a file each in one folder, added up by the job.

A worker writes its totals in place, and touches its file also while nothing comes of a long call: a worker
that is stopped, or stuck so that none of its threads runs, falls silent.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from batch.messages import JobCounts
from serving.errors import Cancelled

_TOTALS = struct.Struct("=QQQdd")
_BEAT_SECONDS = 1.0
# Of the first bad records, this many are told of when a job is stopped for its errors.
_MOST_EXAMPLES = 3
# Where this file is, workers stop.
_STOP = "stop"


class ProgressTotals(NamedTuple):
    """What was done: records predicted and refused, bytes read, and from when to when (since the epoch)."""

    predictions: int = 0
    errors: int = 0
    stored: int = 0
    begun: float = math.inf
    ended: float = 0.0

    def add(self, other: ProgressTotals) -> ProgressTotals:
        """Both together."""
        return ProgressTotals(
            self.predictions + other.predictions,
            self.errors + other.errors,
            self.stored + other.stored,
            min(self.begun, other.begun),
            max(self.ended, other.ended),
        )

    @property
    def seconds(self) -> float:
        """From the first record read to the last result written."""
        return max(0.0, self.ended - self.begun)


class ProgressWriter:
    """A worker's end. `folder` is "" on machines that nobody looks at from here."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._totals = ProgressTotals()
        self._examples = 0

    def start(self) -> None:
        """Show that this worker is alive, from now on."""
        if self._folder:
            self._file  # noqa: B018  made at first use
            threading.Thread(target=self._touch_regularly, name="meter", daemon=True).start()

    def add(self, done: ProgressTotals, examples: Sequence[str] = ()) -> None:
        """Count what was done, and keep the first examples of what was wrong.

        Raises Cancelled when the job is to stop.
        """
        if not self._folder:
            return
        if Path(self._folder, _STOP).exists():
            raise Cancelled("The job was stopped.")
        self._totals = self._totals.add(done)
        os.pwrite(self._file, _TOTALS.pack(*self._totals), 0)
        if examples and self._examples < _MOST_EXAMPLES:
            self._examples += len(examples)
            with Path(self._folder, f"{os.getpid()}.examples").open("ab") as file:
                file.writelines(msgspec.json.encode(example) + b"\n" for example in examples[:_MOST_EXAMPLES])

    @cached_property
    def _file(self) -> int:
        """This process's file. A process may have had a meter before: that one's totals count on."""
        path = Path(self._folder, str(os.getpid()))
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        self._totals = self._totals.add(_unpack_totals(os.pread(file, _TOTALS.size, 0)))
        os.pwrite(file, _TOTALS.pack(*self._totals), 0)
        return file

    def _touch_regularly(self) -> None:
        never = threading.Event()
        while not never.wait(_BEAT_SECONDS):
            # A disk in trouble costs this beat, not all that follow.
            with contextlib.suppress(OSError):
                os.utime(self._file)


class ProgressReader:
    """The job's end: what all workers that ever wrote into `folder` have done."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._since = clock()
        # By file: the beat that was seen last, and since when. The time in it is of a clock that may be set.
        self._beats: dict[str, tuple[int, float]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def read_totals(self) -> ProgressTotals:
        """The sum so far."""
        total = ProgressTotals()
        for file in self._worker_files():
            total = total.add(_unpack_totals(file.read_bytes()))
        return total

    def read_counts(self, bytes_total: int) -> JobCounts:
        """The sum so far, as it is told."""
        total = self.read_totals()
        stored = min(total.stored, bytes_total)
        return JobCounts(total.predictions, total.errors, stored, bytes_total, len(self._worker_files()))

    def longest_silence(self, processes: int = 0) -> float:
        """For how many seconds the most silent worker has said nothing; of `processes`, some may never.

        To be asked often: a worker's silence begins when it is first seen.
        """
        now = self._clock()
        beats = {file.name: (file.stat().st_mtime_ns, now) for file in self._worker_files()}
        for name, (beat, since) in self._beats.items():
            if name in beats and beats[name][0] == beat:
                beats[name] = (beat, since)
        self._beats = beats
        heard = [since for _, since in beats.values()]
        if len(heard) < processes:
            heard.append(self._since)
        return max((now - since for since in heard), default=0.0)

    def read_examples(self) -> list[str]:
        """Some of the first records that were refused, in words."""
        found = [
            msgspec.json.decode(line, type=str)
            for file in sorted(self._folder.glob("*.examples"))
            for line in file.read_bytes().splitlines()
        ]
        return found[:_MOST_EXAMPLES]

    def stop_workers(self) -> None:
        """Have all workers stop where they are."""
        (self._folder / _STOP).touch()

    def _worker_files(self) -> list[Path]:
        return [file for file in self._folder.iterdir() if file.name.isdigit()]


def _unpack_totals(data: bytes) -> ProgressTotals:
    # A worker's file is empty for a moment.
    return ProgressTotals(*_TOTALS.unpack(data)) if data else ProgressTotals()
