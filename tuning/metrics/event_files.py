"""Follows the TensorFlow event files below a folder: they grow, and further ones come beside them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, Protocol

from tuning.metrics.event_records import RecordReader, Scalar, parse_scalars
from tuning.metrics.metric_curve import MetricCurve, MetricValue, SeenTag, open_regular_file

_NAME = "tfevents"
# Folders that have a tag count before all others that have it too, as a training set's.
_PREFERRED = frozenset({"validation", "eval", "val"})
# What one look may read, and the last one; files, folders with the tag, and tags that are followed.
_BUDGET_BYTES, _LAST_BUDGET_BYTES = 8 << 20, 256 << 20
_MAX_FILES, _MAX_FOLDERS, _MAX_TAGS = 1000, 100, 300


class FoundFile(NamedTuple):
    """A file by its path below the folder, with its size in bytes."""

    path: str
    size: int


class EventFolder(Protocol):
    """A folder, local or in a bucket. Both raise OSError."""

    def list_files(self) -> Iterable[FoundFile]:
        """All files below it, at any depth."""

    def open(self, file: FoundFile, start: int) -> BinaryIO:
        """A file found before, from byte `start` on."""


class LocalEventFolder:
    """Symbolic links are not followed. With `most_folders` no more are looked into."""

    def __init__(self, folder: Path, *, most_folders: int | None = None) -> None:
        self._folder = folder
        self._most_folders = most_folders

    def list_files(self) -> Iterator[FoundFile]:
        for parent, _, names in itertools.islice(os.walk(self._folder), self._most_folders):
            for name in names:
                path = Path(parent, name)
                if _NAME in name and not path.is_symlink():
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        yield FoundFile(str(path.relative_to(self._folder)), path.stat().st_size)

    def open(self, file: FoundFile, start: int) -> BinaryIO:
        opened = open_regular_file(self._folder / file.path)
        opened.seek(start)
        return opened


class EventReader:
    """Reads the scalars of all event files below a folder, each once."""

    def __init__(self, folder: EventFolder) -> None:
        self._folder = folder
        self._offsets: dict[str, int] = {}

    def read(self, budget: int) -> Iterator[tuple[str, Scalar]]:
        """The scalars of what is new, some `budget` bytes of it, each with the path of its file.

        Raises OSError, after all that can be read.
        """
        files = sorted(file for file in self._folder.list_files() if _NAME in PurePosixPath(file.path).name)
        trouble: OSError | None = None
        for file in files[:_MAX_FILES]:
            try:
                while budget > 0 and (consumed := (yield from self._read_file(file, budget))):
                    budget -= consumed
            except OSError as error:
                trouble = error
        if trouble is not None:
            raise trouble

    def _read_file(self, file: FoundFile, budget: int) -> Generator[tuple[str, Scalar], None, int]:
        """Read whole records; returns how many bytes they are."""
        offset = self._offsets.get(file.path, 0)
        if offset > file.size:  # another file of this name
            offset = 0
        if offset == file.size:
            return 0
        try:
            opened = self._folder.open(file, offset)
        except FileNotFoundError:  # removed meanwhile
            return 0
        with opened:
            records = RecordReader(opened, file.size - offset, budget)
            for data in records:
                for scalar in parse_scalars(data):
                    yield file.path, scalar
        self._offsets[file.path] = offset + records.consumed
        return records.consumed


class EventFiles:
    """Follows the scalar of one tag."""

    def __init__(self, folder: EventFolder, tag: str) -> None:
        self._reader = EventReader(folder)
        self._tag = tag
        self._curves: dict[str, MetricCurve] = {}
        # The last value of each tag and folder, with the file.
        self._seen: dict[tuple[str, str], SeenTag] = {}

    @property
    def curve(self) -> MetricCurve:
        """That of the folder that counts: a preferred one, else the one with the latest value."""
        return max(self._curves.items(), key=lambda item: _rank_folder(*item), default=("", MetricCurve()))[1]

    @property
    def seen_tags(self) -> list[SeenTag]:
        return list(self._seen.values())

    def read(self, *, at_end: bool = False) -> None:
        """Read what is new, a bounded part of it, more `at_end`; raises OSError."""
        for path, scalar in self._reader.read(_LAST_BUDGET_BYTES if at_end else _BUDGET_BYTES):
            self._add_scalar(scalar, path)

    def _add_scalar(self, scalar: Scalar, path: str) -> None:
        folder = str(PurePosixPath(path).parent)
        key = scalar.tag, folder
        if key in self._seen or len(self._seen) < _MAX_TAGS:
            self._seen[key] = SeenTag(scalar.tag, scalar.value, path)
        if scalar.tag != self._tag:
            return
        if folder in self._curves or len(self._curves) < _MAX_FOLDERS:
            curve = self._curves.setdefault(folder, MetricCurve())
            curve.add([MetricValue(scalar.step, scalar.value, scalar.time)])


def _rank_folder(folder: str, curve: MetricCurve) -> tuple[bool, float]:
    final = curve.final
    parts = PurePosixPath(folder).parts
    # Estimators name those of several evaluations eval_NAME.
    is_preferred = any(part in _PREFERRED or part.startswith("eval_") for part in parts)
    return is_preferred, final.time if final is not None else 0.0
