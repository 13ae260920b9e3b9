"""The progress of a job on this machine: each worker writes a file in one folder, and the job adds them up.

A worker writes its totals in place, and touches its file regularly, also during a long call: a worker that is
stopped, or whose threads are all stuck, falls silent.
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
# How many of the first rejected records are reported when a job is stopped for its errors.
_MOST_EXAMPLES = 3
# Workers stop where this file exists.
_STOP = "stop"


class ProgressTotals(NamedTuple):
    """Work done: records predicted and rejected, bytes read, start and end (seconds since the epoch)."""

    predictions: int = 0
    errors: int = 0
    stored: int = 0
    begun: float = math.inf
    ended: float = 0.0

    def add(self, other: ProgressTotals) -> ProgressTotals:
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
    """A worker's end. `folder` is "" on other machines, where nothing is written."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._totals = ProgressTotals()
        self._examples = 0

    @property
    def is_local(self) -> bool:
        return bool(self._folder)

    def start(self) -> None:
        """Touch this worker's file regularly from now on."""
        if self._folder:
            self._file  # noqa: B018  made at first use
            threading.Thread(target=self._touch_regularly, name="meter", daemon=True).start()

    def add(self, done: ProgressTotals, examples: Sequence[str] = ()) -> None:
        """Add work done, and keep the first examples of rejected records.

        Raises Cancelled when the job must stop.
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
        """This process's file. A process may have had a writer before, whose totals are added."""
        path = Path(self._folder, str(os.getpid()))
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        self._totals = self._totals.add(_unpack_totals(os.pread(file, _TOTALS.size, 0)))
        os.pwrite(file, _TOTALS.pack(*self._totals), 0)
        return file

    def _touch_regularly(self) -> None:
        never = threading.Event()
        while not never.wait(_BEAT_SECONDS):
            # A failed touch must not end the thread.
            with contextlib.suppress(OSError):
                os.utime(self._file)


class ProgressReader:
    """The job's end: the sum over all workers that ever wrote into `folder`."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._since = clock()
        # By file: its last modification time, and when it was first seen. File times are of another clock.
        self._beats: dict[str, tuple[int, float]] = {}
        self._ended: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def read_totals(self) -> ProgressTotals:
        total = ProgressTotals()
        for file in self._worker_files():
            total = total.add(_unpack_totals(file.read_bytes()))
        return total

    def read_counts(self, bytes_total: int) -> JobCounts:
        total = self.read_totals()
        stored = min(total.stored, bytes_total)
        return JobCounts(total.predictions, total.errors, stored, bytes_total, len(self._worker_files()))

    def longest_silence(self, processes: int = 0) -> float:
        """Seconds since the last sign of life of the most silent worker; of `processes` workers.

        To be called often: a worker's silence is measured from when this sees it first.
        """
        now = self._clock()
        known = (file for file in self._worker_files() if file.name not in self._ended)
        beats = {file.name: (file.stat().st_mtime_ns, now) for file in known}
        for name, (beat, since) in self._beats.items():
            if name in beats and beats[name][0] == beat:
                beats[name] = (beat, since)
        self._beats = beats
        heard = [since for _, since in beats.values()]
        if len(heard) < processes:
            heard.append(self._since)
        return max((now - since for since in heard), default=0.0)

    def mark_worker_ended(self, worker: int) -> None:
        """The worker with this pid has ended: it may be silent."""
        self._ended.add(str(worker))

    def read_rejected_samples(self) -> list[str]:
        found = [
            msgspec.json.decode(line, type=str)
            for file in sorted(self._folder.glob("*.examples"))
            for line in file.read_bytes().splitlines()
        ]
        return found[:_MOST_EXAMPLES]

    def stop_workers(self) -> None:
        (self._folder / _STOP).touch()

    def _worker_files(self) -> list[Path]:
        return [file for file in self._folder.iterdir() if file.name.isdigit()]


def _unpack_totals(data: bytes) -> ProgressTotals:
    # A worker's file is empty for a moment.
    return ProgressTotals(*_TOTALS.unpack(data)) if data else ProgressTotals()
