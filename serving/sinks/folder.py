"""Logs in folders of this machine, and on standard output."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.errors import ServingError
from serving.journal import Kind, Record
from serving.local_folders import LocalFolders
from serving.sinks import Sink
from serving.sinks.rows import line, moment, runs

_CHUNK = 1 << 16


@dataclass(slots=True)
class _Open:
    """The file that a folder's records go to now."""

    path: Path
    size: int
    since: float


class FolderSink:
    """Files in a folder per day, with a line for each record.

    Lines are there for readers as soon as they are written, only ever whole ones. A file gets no more once it
    has `rotate_bytes` or `rotate_seconds` have passed. Where `folders` do not let it write, it fails.
    """

    collect_bytes = 4 << 20
    collect_seconds = 0.0

    def __init__(
        self,
        folder: Path,
        kind: Kind,
        *,
        rotate_bytes: int,
        rotate_seconds: float,
        folders: LocalFolders | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._kind = kind
        self._rotate_bytes = rotate_bytes
        self._rotate_seconds = rotate_seconds
        self._folders = folders or LocalFolders()
        self._clock = clock
        self._open: dict[str, _Open] = {}

    def write(self, records: Sequence[Record], key: str) -> int:
        """Append to the files of their days."""
        now = self._clock()
        self._open = {
            name: file for name, file in self._open.items() if now - file.since < self._rotate_seconds
        }
        done: list[tuple[_Open, int]] = []
        try:
            for name, some in runs(records, self._kind):
                file = self._file(name, some[0], now)
                data = b"".join([line(record, self._kind) for record in some])
                done.append((file, len(data)))
                _append(file.path, data)
        except (OSError, ServingError):
            self._undo([file for file, _ in done])
            raise
        for file, length in done:
            file.size += length
        return 0

    def _undo(self, files: Sequence[_Open]) -> None:
        """Take back what was written, and begin with other files the next time: these may be gone."""
        self._open = {}
        for file in files:
            with contextlib.suppress(OSError):
                if file.size:
                    os.truncate(file.path, file.size)
                else:
                    file.path.unlink()

    def _file(self, name: str, first: Record, now: float) -> _Open:
        file = self._open.get(name)
        if file is None or file.size >= self._rotate_bytes:
            folder = self._folder / name
            self._folders.check(str(folder))
            folder.mkdir(parents=True, exist_ok=True)
            _mend(folder)
            path = folder / f"{moment(first):%H%M%S}-{secrets.token_hex(4)}.jsonl"
            file = self._open[name] = _Open(path, 0, now)
        return file


class StdoutSink:
    """Lines on standard output, for whoever collects those of a container."""

    collect_bytes = 1 << 20
    collect_seconds = 0.0

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def write(self, records: Sequence[Record], key: str) -> int:
        """Print them."""
        sys.stdout.buffer.write(b"".join([line(record, self._kind) for record in records]))
        sys.stdout.buffer.flush()
        return 0


class Both:
    """Two sinks that get the same records."""

    def __init__(self, first: Sink, second: Sink) -> None:
        self.collect_bytes = min(first.collect_bytes, second.collect_bytes)
        self.collect_seconds = min(first.collect_seconds, second.collect_seconds)
        self._sinks = first, second

    def write(self, records: Sequence[Record], key: str) -> int:
        """Write them to both; refused are those that either refuses."""
        return max(sink.write(records, key) for sink in self._sinks)


def _append(path: Path, data: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]


def _mend(folder: Path) -> None:
    """Cut off half a line, which a writer that was killed may have left in the last file of a folder.

    Its record comes again: it was not noted as sent.
    """
    last = max(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime, default=None)
    if last is None:
        return
    with last.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        keep = end
        while keep > 0:
            start = max(0, keep - _CHUNK)
            file.seek(start)
            newline = file.read(keep - start).rfind(b"\n")
            if newline >= 0:
                keep = start + newline + 1
                break
            keep = start
        if keep < end:
            file.truncate(keep)
