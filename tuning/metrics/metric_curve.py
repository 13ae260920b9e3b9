"""The values of a metric that a trial has written so far."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

# Of the values between two looks at a curve so many are kept, evenly spread, and the last.
MAX_PENDING = 200


class MetricValue(NamedTuple):
    """A value at a step, which may be NaN or infinite; `time` is in seconds since 1970, 0 if unknown."""

    step: int
    value: float
    time: float = 0.0


class SeenTag(NamedTuple):
    """The last value of a tag, and the file that has it."""

    tag: str
    value: float
    file: str


class MetricCurve:
    """Collects values in the order of their writing, in bounded memory."""

    def __init__(self) -> None:
        self._final: MetricValue | None = None
        self._pending: list[MetricValue] = []
        self._stride = 1
        self._skipped = 0

    @property
    def final(self) -> MetricValue | None:
        """The value of the highest step, and of those at that step the latest."""
        return self._final

    def add(self, values: Iterable[MetricValue]) -> None:
        for value in values:
            if self._final is None or value.step >= self._final.step:
                self._final = value
            self._skipped += 1
            if self._skipped >= self._stride:
                self._skipped = 0
                self._pending.append(value)
            if len(self._pending) >= 2 * MAX_PENDING:
                del self._pending[::2]
                self._stride *= 2

    def take_finite(self) -> list[MetricValue]:
        """The finite values since the last call, thinned if they are many; the final one is among them."""
        values, final = self._pending, self._final
        if final is not None and self._skipped and final not in values[-1:]:
            values.append(final)
        self._pending, self._stride, self._skipped = [], 1, 0
        return [one for one in values if math.isfinite(one.value)]


def open_regular_file(path: Path) -> BinaryIO:
    """Raises OSError, also for what is no regular file. A pipe that a program has left is not waited for."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    file = open(path, "rb", opener=lambda name, _: os.open(name, flags))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is no regular file")
    return file
