"""Checks of the state folder: its disk, its database, and the processes of its servers."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import re
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from serving.cli.health.result import CheckResult, format_size, report_failure, report_ok, report_warning
from serving.config import ServeConfig
from serving.errors import FailedPrecondition, ServingError
from serving.gateway.state.migrations import MIGRATIONS

_LEAST_FREE, _GOOD_FREE = 256 << 20, 2 << 30
# Seconds; every change of the API waits for some.
_SLOW_FSYNC = 0.1
_WRITE_COUNT = 5
_DATABASE = "state.db"
_CHILD_COMMAND = re.compile(
    r"-m (autoscaler\.(pilot|node_process|module_process)"
    r"|serving\.(artifacts\.prepare|logs\.sinks)|batch(?!\.(pool|boot)))\b"
)
# Commands without a server have such processes too: `pilotlight local batch`.
_OWN_COMMAND = re.compile(r"\b(pilotlight|serving\.cli) ")


def check_writable(folder: Path) -> CheckResult:
    """Whether files can be written and synced, and how quickly."""
    there = _find_existing(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=there) as probe:
            seconds = statistics.median(
                _time_write(Path(probe) / str(number)) for number in range(_WRITE_COUNT)
            )
    except OSError as error:
        return report_failure(
            "state folder",
            f"Nothing can be written in {there}: {error.strerror}.",
            f"Make {folder} a folder that the server's user may write, or choose another --state-dir.",
        )
    seen = f"{folder} can be written; a small file is on disk in {seconds * 1000:.1f} ms"
    if seconds > _SLOW_FSYNC:
        return report_warning(
            "state folder",
            f"{seen}: slow, and each change of the API waits for several.",
            "Use a local disk, not a network file system, or choose another --state-dir.",
        )
    return report_ok("state folder", f"{seen}.")


def check_free_space(config: ServeConfig, folder: Path) -> CheckResult:
    """The free space, compared with the limit of the model cache."""
    free = shutil.disk_usage(_find_existing(folder)).free
    seen = f"{format_size(free)} are free for {folder}"
    if free < _LEAST_FREE:
        return report_failure("disk space", f"{seen}.", "Free some space, or choose another --state-dir.")
    room = free + _measure_folder_size(folder / "cache")
    if free < _GOOD_FREE:
        return report_warning(
            "disk space", f"{seen}: a few models.", "Free some space, or choose another --state-dir."
        )
    if config.cache_bytes > room:
        return report_warning(
            "disk space",
            f"{seen}, and the setting cache_bytes allows a cache of {format_size(config.cache_bytes)}.",
            f"Set --cache-bytes to {room // 2} or less, or the disk fills up before the cache is cleaned.",
        )
    return report_ok("disk space", f"{seen}.")


def check_state_file(folder: Path, *, is_running: bool = False) -> CheckResult:
    """Whether this version can read the state file; `is_running`: a server has it open."""
    file = folder / _DATABASE
    if not file.exists():
        return _report_missing(file, is_running=is_running)
    try:
        with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=2)) as database:
            (found,) = database.execute("PRAGMA user_version").fetchone()
            (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        return _report_damage(file, str(error))
    if verdict != "ok":
        return _report_damage(file, verdict)
    if found > len(MIGRATIONS):
        return report_failure(
            "state file",
            f"{file} has schema {found}; this version knows {len(MIGRATIONS)}.",
            f"Install the newer version again, or put back {file.name}.v{len(MIGRATIONS)} if it is there.",
        )
    if found < len(MIGRATIONS):
        return report_ok(
            "state file",
            f"{file} has schema {found}; the next start brings it to {len(MIGRATIONS)} and keeps a copy.",
        )
    return report_ok("state file", f"{file} is whole and has schema {found}, the newest.")


def check_database(address: str) -> CheckResult:
    """Whether the database with the state can be reached, and this version can read it."""
    from serving.gateway.state.shared.database import read_schema_version  # noqa: PLC0415  start-up time

    try:
        found = read_schema_version(address)
    except FailedPrecondition as error:
        return report_failure("state database", error.message, "Install what is missing.")
    except ServingError as error:
        return report_failure(
            "state database", error.message, "See whether it runs, and whether --state names it rightly."
        )
    if found is None:
        return report_ok("state database", "It can be reached; the first start makes its tables.")
    if found > len(MIGRATIONS):
        return report_failure(
            "state database",
            f"It has schema {found}; this version knows {len(MIGRATIONS)}.",
            "Install the newer version again.",
        )
    return report_ok("state database", f"It can be reached and has schema {found} of {len(MIGRATIONS)}.")


def find_newest_change(folder: Path) -> datetime.datetime | None:
    """The time of the last change of the state."""
    times = []
    for name in (_DATABASE, f"{_DATABASE}-wal"):
        with contextlib.suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return datetime.datetime.fromtimestamp(max(times), datetime.UTC) if times else None


def find_server_pid(folder: Path) -> int | None:
    """The pid of the server that uses the folder; 0 if it is unknown, None if there is no server."""
    try:
        with (folder / "lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                text = file.read().strip()
                return int(text) if text.isdigit() else 0
    except OSError:
        pass
    return None


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    pid: int
    parent: int
    command: str


def list_processes() -> Iterator[ProcessInfo]:
    """All processes that this user can see."""
    for process in psutil.process_iter(["pid", "ppid", "cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        yield ProcessInfo(process.info["pid"], process.info["ppid"], command)


def check_leftovers(found: Iterable[ProcessInfo]) -> CheckResult:
    """Processes of an ended server: pilots, nodes and jobs that have no command of ours as an ancestor.

    Pools of batch workers, and the workers in them, are started beside an engine by others.
    """
    known = {process.pid: process for process in found}
    left = [
        pid
        for pid, process in known.items()
        if _CHILD_COMMAND.search(process.command) and not _has_command_above(pid, known)
    ]
    if not left:
        return report_ok("leftovers", "No process of an ended server is left.")
    pids = " ".join(map(str, sorted(left)))
    return report_warning(
        "leftovers",
        f"{len(left)} processes of a server that has ended are left: {pids}.",
        f"See what they are (`ps -fp {pids.replace(' ', ',')}`) and end them: `kill {pids}`.",
    )


def _has_command_above(pid: int, known: dict[int, ProcessInfo]) -> bool:
    seen: set[int] = set()
    while (process := known.get(pid)) is not None and pid not in seen:
        if _OWN_COMMAND.search(process.command):
            return True
        seen.add(pid)
        pid = process.parent
    return False


def _report_missing(file: Path, *, is_running: bool) -> CheckResult:
    if not is_running:
        return report_ok("state file", f"There is no {file} yet; the first start makes it.")
    return report_failure(
        "state file",
        f"{file} is gone while the server runs: it refuses all changes.",
        "Put it back with its -wal file, or restart the server, which then begins with an empty state.",
    )


def _report_damage(file: Path, reason: str) -> CheckResult:
    copies = ", ".join(sorted(path.name for path in file.parent.glob(f"{file.name}.v*")))
    there = f" ({copies} is there)" if copies else ""
    return report_failure(
        "state file",
        f"{file} is damaged or no database: {reason}.",
        f"Put back a copy of it{there}, or choose another --state-dir.",
    )


def _find_existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _time_write(file: Path) -> float:
    """Seconds to have 4 KiB on disk."""
    begin = time.perf_counter()
    with file.open("wb") as stream:
        stream.write(bytes(4096))
        stream.flush()
        os.fsync(stream.fileno())
    return time.perf_counter() - begin


def _measure_folder_size(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            found += path.stat().st_size if path.is_file() else 0
    return found
