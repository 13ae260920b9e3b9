"""Writes log records to local folders and to standard output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.errors import ServingError
from serving.logs.journal import JournalRecord, LogKind
from serving.logs.sinks import Sink
from serving.logs.sinks.record_encoding import (
    encode_line,
    encode_line_with_project,
    group_by_folder,
    record_time,
)

_CHUNK = 1 << 16
# Nothing but a file is opened, and none that was not there or is somebody else's is made or emptied.
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(slots=True)
class _OpenFile:
    """A folder's current file; `identity` is its device and inode."""

    path: Path
    identity: tuple[int, int]
    size: int
    since: float


class FolderSink:
    """Files in a folder per day, one line per record.

    Readers see whole lines as soon as they are written. A file is closed after `rotate_bytes` or
    `rotate_seconds`. Raises ServingError for a folder that `folders` do not allow.

    Other processes may write to the same folders. The names of our files contain `journal`, the number of the
    journal of their records: only these are appended to, or repaired after a crash; no existing file is taken
    for a new one.
    """

    collect_bytes = 4 << 20
    collect_seconds = 0.0

    def __init__(
        self,
        folder: Path,
        kind: LogKind,
        *,
        journal: int,
        rotate_bytes: int,
        rotate_seconds: float,
        folders: LocalFolderPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._kind = kind
        self._owner = f"{journal:08x}"
        self._rotate_bytes = rotate_bytes
        self._rotate_seconds = rotate_seconds
        self._folders = folders or LocalFolderPolicy()
        self._clock = clock
        self._open_files: dict[str, _OpenFile] = {}

    def write(self, records: Sequence[JournalRecord], key: str) -> int:
        """Append to the files of the records' days."""
        now = self._clock()
        self._open_files = {
            name: file for name, file in self._open_files.items() if now - file.since < self._rotate_seconds
        }
        done: list[tuple[_OpenFile, bytes]] = []
        try:
            for name, some in group_by_folder(records, self._kind):
                file = self._current_file(name, some[0], now)
                data = b"".join([encode_line_with_project(record, self._kind) for record in some])
                done.append((file, data))
                with _open_locked(file.path, file.identity) as descriptor:
                    _write_all(descriptor, data)
        except (OSError, ServingError):
            self._undo_writes(done)
            raise
        for file, data in done:
            file.size += len(data)
        return 0

    def _undo_writes(self, done: Sequence[tuple[_OpenFile, bytes]]) -> None:
        """Remove what was written; the next write begins new files, since these may be gone."""
        self._open_files = {}
        for file, data in done:
            with contextlib.suppress(OSError), _open_locked(file.path, file.identity) as descriptor:
                written = os.pread(descriptor, len(data) + 1, file.size)
                if not data.startswith(written):  # somebody else has written to it
                    continue
                if file.size:
                    os.ftruncate(descriptor, file.size)
                else:
                    file.path.unlink()

    def _current_file(self, name: str, first: JournalRecord, now: float) -> _OpenFile:
        file = self._open_files.get(name)
        if file is None or file.size >= self._rotate_bytes:
            folder = self._folder / name
            self._folders.check_path(str(folder))
            folder.mkdir(parents=True, exist_ok=True)
            _remove_partial_line(folder, self._owner)
            path = folder / f"{record_time(first):%H%M%S}-{self._owner}-{secrets.token_hex(4)}.jsonl"
            file = self._open_files[name] = _OpenFile(path, _create_file(path), 0, now)
        return file


class StdoutSink:
    """Lines on standard output, for a collector of containers' logs."""

    collect_bytes = 1 << 20
    collect_seconds = 0.0

    def __init__(self, kind: LogKind) -> None:
        self._kind = kind

    def write(self, records: Sequence[JournalRecord], key: str) -> int:
        sys.stdout.buffer.write(b"".join([encode_line(record, self._kind) for record in records]))
        sys.stdout.buffer.flush()
        return 0


class TeeSink:
    """Writes the same records to two sinks."""

    def __init__(self, first: Sink, second: Sink) -> None:
        self.collect_bytes = min(first.collect_bytes, second.collect_bytes)
        self.collect_seconds = min(first.collect_seconds, second.collect_seconds)
        self._sinks = first, second

    def write(self, records: Sequence[JournalRecord], key: str) -> int:
        """Returns the larger number of refused records."""
        return max(sink.write(records, key) for sink in self._sinks)


def _create_file(path: Path) -> tuple[int, int]:
    """Create a new file; returns its identity."""
    descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        return _file_identity(os.fstat(descriptor))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _open_locked(path: Path, identity: tuple[int, int]) -> Iterator[int]:
    """Open and lock a file. Raises FileNotFoundError if it is gone or has been replaced."""
    descriptor = os.open(path, _FLAGS)
    try:
        if _file_identity(os.fstat(descriptor)) != identity:
            raise FileNotFoundError(f"{path} was replaced by another file")
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _file_identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _remove_partial_line(folder: Path, owner: str) -> None:
    """Remove an incomplete line, which a killed writer may have left in its last file of a folder.

    Its record is delivered again: it was not committed.
    """
    files = folder.glob(f"*-{owner}-*.jsonl")
    last = max(files, key=lambda path: path.lstat().st_mtime, default=None)
    if last is None:
        return
    try:
        descriptor = os.open(last, _FLAGS)
    except OSError:  # no file, or gone
        return
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        end = _end_of_lines(descriptor, status.st_size)
        if end < status.st_size:
            os.ftruncate(descriptor, end)
    except OSError:  # a copy of this server is at it, or the file system has no locks
        return
    finally:
        os.close(descriptor)


def _end_of_lines(descriptor: int, size: int) -> int:
    while size > 0:
        start = max(0, size - _CHUNK)
        newline = os.pread(descriptor, size - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        size = start
    return 0
