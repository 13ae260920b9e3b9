"""Follows the scalars in TensorFlow event files below the folders of training jobs."""

from __future__ import annotations

import itertools
import math
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from serving.gateway.console.charts.line_charts import Points
from serving.gateway.thread_pool import ThreadPool
from tuning.metrics.event_records import RecordReader, parse_scalars
from tuning.metrics.metric_curve import open_regular_file

# Of each folder; what is read at a time, and how many folders are remembered.
_MAX_FOLDERS_BELOW: Final = 300
_MAX_FILES: Final = 100
_MAX_LINES: Final = 100
_MAX_POINTS: Final = 400
_BUDGET_BYTES: Final = 4 << 20
_MAX_JOBS: Final = 20

Curves = Mapping[str, Mapping[str, Points]]


class MetricCurveReader:
    """The curves of the job folders that were asked for last; each reading goes on from the one before."""

    def __init__(self) -> None:
        self._folders: OrderedDict[Path, _FollowedFolder] = OrderedDict()
        self._thread = ThreadPool("metric curves", 1, queue=20)

    async def read(self, folder: Path) -> Curves:
        """The points of each line, by tag and by the folder below that has it."""
        followed = self._folders.setdefault(folder, _FollowedFolder(folder))
        self._folders.move_to_end(folder)
        while len(self._folders) > _MAX_JOBS:
            self._folders.popitem(last=False)
        return await self._thread.run(followed.read)


def find_local_folder(job_dir: str) -> Path | None:
    """The folder of a job on this machine; None where it has none, or one in a bucket."""
    path = unquote(job_dir.removeprefix("file://")) if job_dir.startswith("file://") else job_dir
    return Path(path) if path.startswith("/") else None


class _FollowedFolder:
    """All calls block, and are made one after another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._lines: dict[tuple[str, str], _ThinnedLine] = {}

    def read(self) -> Curves:
        budget = _BUDGET_BYTES
        for file in itertools.islice(self._iter_files(), _MAX_FILES):
            budget -= self._read_file(file, budget)
            if budget <= 0:
                break
        curves: dict[str, dict[str, Points]] = {}
        for (tag, name), line in sorted(self._lines.items()):
            curves.setdefault(tag, {})[name] = tuple(line.points)
        return curves

    def _iter_files(self) -> Iterator[Path]:
        """Symbolic links are not followed."""
        for parent, _, names in itertools.islice(os.walk(self._folder), _MAX_FOLDERS_BELOW):
            yield from (Path(parent, name) for name in sorted(names) if "tfevents" in name)

    def _read_file(self, file: Path, budget: int) -> int:
        """Read whole records; returns how many bytes they are. What cannot be read now has none."""
        start = self._offsets.get(file, 0)
        try:
            with open_regular_file(file) as opened:
                size = os.fstat(opened.fileno()).st_size
                opened.seek(start)
                records = RecordReader(opened, size - start, budget)
                for data in records:
                    for scalar in parse_scalars(data):
                        self._add_point(scalar.tag, file, scalar.step, scalar.value)
        except OSError:
            return 0
        self._offsets[file] = start + records.consumed
        return records.consumed

    def _add_point(self, tag: str, file: Path, step: int, value: float) -> None:
        key = tag, str(file.parent.relative_to(self._folder))
        if key in self._lines or len(self._lines) < _MAX_LINES:
            self._lines.setdefault(key, _ThinnedLine()).add(step, value)


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
