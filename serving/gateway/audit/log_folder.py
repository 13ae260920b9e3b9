"""The audit log's files: one per day, `YYYY-MM-DD.jsonl`, in a folder that only its owner may read.

Lines are only appended. Several processes may append: each addition is whole, under a lock on the file.
All calls block.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FILE_NAME = re.compile(r"(\d{4}-\d{2}-\d{2})\.jsonl")
_OPEN_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC

AuditEntry = Mapping[str, Any]


class AuditLogFolder:
    """`retention_days` is how many past days are kept, 0 all."""

    def __init__(self, path: Path, retention_days: int = 0) -> None:
        self._path = path
        self._retention_days = retention_days
        self._day: datetime.date | None = None
        self._descriptor = -1

    def append(self, lines: Iterable[bytes], day: datetime.date) -> None:
        """Add whole lines to a day's file; when this returns they are on disk.

        Raises OSError, and then none of them is in the file.
        """
        descriptor = self._open_day(day)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            _append_and_sync(descriptor, b"".join(lines))
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._day = -1, None

    def _open_day(self, day: datetime.date) -> int:
        if day == self._day and os.fstat(self._descriptor).st_nlink:
            return self._descriptor
        self.close()
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = os.open(self._path / f"{day}.jsonl", _OPEN_FLAGS, 0o600)
        _sync_folder(self._path)
        self._day = day
        if self._retention_days:
            self._remove_older(day - datetime.timedelta(days=self._retention_days))
        return self._descriptor

    def _remove_older(self, oldest: datetime.date) -> None:
        for path in list_log_files(self._path):
            if parse_day(path) < oldest:
                # What cannot be removed now is tried again tomorrow.
                with contextlib.suppress(OSError):
                    path.unlink()


def audit_log_path(state_dir: Path) -> Path:
    return state_dir / "audit"


def list_log_files(path: Path) -> list[Path]:
    """The files of an audit log, oldest day first."""
    try:
        return sorted(file for file in path.iterdir() if _FILE_NAME.fullmatch(file.name))
    except FileNotFoundError:
        return []


def parse_day(file: Path) -> datetime.date:
    """Return the day of a file, the earliest date there is for a name that is no date."""
    try:
        return datetime.date.fromisoformat(file.stem)
    except ValueError:
        return datetime.date.min


def _append_and_sync(descriptor: int, data: bytes) -> None:
    size = os.lseek(descriptor, 0, os.SEEK_END)
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        data = b"\n" + data  # a machine that stopped in the middle of a line must not spoil the next one
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
        os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Conditions on entries; "" and None match anything.

    `principal` is an e-mail address or a principal, `method` a part of a method's name, `resource` a resource
    or an ancestor of it (`projects/p`, `models/flowers`), `kind` a log, `since` the earliest time, `project`
    the name of the only project.
    """

    principal: str = ""
    method: str = ""
    resource: str = ""
    kind: str = ""
    since: datetime.datetime | None = None
    project: str = ""

    def matches(self, entry: AuditEntry) -> bool:
        payload = entry["protoPayload"]
        return (
            (not self.principal or self.principal in payload["authenticationInfo"].values())
            and self.method.lower() in payload["methodName"].lower()
            and (not self.resource or f"/{self.resource.strip('/')}/" in f"/{payload['resourceName']}/")
            and entry["logName"].endswith(f"%2F{self.kind}" if self.kind else "")
            and (not self.project or f"{payload['resourceName']}/".startswith(f"{self.project}/"))
            and (self.since is None or datetime.datetime.fromisoformat(entry["timestamp"]) >= self.since)
        )


def follow_lines(folder: Path, since: datetime.datetime | None = None) -> Iterator[bytes | None]:
    """The lines of a log from the day of `since` on, oldest first; None whenever there are no more yet."""
    oldest = since.astimezone(datetime.UTC).date() if since else datetime.date.min
    read: dict[str, int] = {}
    while True:
        for file in list_log_files(folder):
            if parse_day(file) >= oldest:
                yield from _read_new_lines(file, read)
        yield None


def _read_new_lines(file: Path, read: dict[str, int]) -> Iterator[bytes]:
    """The complete lines after those already read; `read` has the number of bytes read, by file."""
    with file.open("rb") as stream:
        stream.seek(read.get(file.name, 0))
        while (line := stream.readline()).endswith(b"\n"):
            read[file.name] = stream.tell()
            yield line
