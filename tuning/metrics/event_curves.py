"""The curves of all scalars in the TensorFlow event files below a folder, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from tuning.metrics.event_files import EventFolder, EventReader

# Of one folder; what is read at a time.
_MAX_LINES: Final = 100
_MAX_POINTS: Final = 400
_BUDGET_BYTES: Final = 4 << 20

# The points of each line, a step and a value, by tag and by the folder below that has it.
Curves = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]


class EventCurves:
    """Follows a folder: each reading goes on from the one before."""

    def __init__(self, folder: EventFolder) -> None:
        self._reader = EventReader(folder)
        self._lines: dict[tuple[str, str], _ThinnedLine] = {}

    def read(self) -> None:
        """Read what is new, a bounded part of it; raises OSError, after what can be read."""
        for path, scalar in self._reader.read(_BUDGET_BYTES):
            key = scalar.tag, str(PurePosixPath(path).parent)
            if key in self._lines or len(self._lines) < _MAX_LINES:
                self._lines.setdefault(key, _ThinnedLine()).add(scalar.step, scalar.value)

    @property
    def curves(self) -> Curves:
        """What was read so far."""
        found: dict[str, dict[str, Sequence[tuple[float, float]]]] = {}
        for (tag, name), line in sorted(self._lines.items()):
            found.setdefault(tag, {})[name] = tuple(line.points)
        return found


class _ThinnedLine:
    """Points in the order of their writing; every second one is dropped when they are many."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self._stride = 1
        self._skipped = 0

    def add(self, step: int, value: float) -> None:
        if not math.isfinite(value):
            return
        self._skipped += 1
        if self._skipped >= self._stride:
            self._skipped = 0
            self.points.append((float(step), value))
        if len(self.points) > _MAX_POINTS:
            del self.points[1::2]
            self._stride *= 2
