"""Processes of a benchmark: pinned to a core, marked, measured, and ended with all their descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

# Every process of a server inherits this variable, by which all of them are found.
MARK = "BENCH_TAG"
_END_SECONDS = 15.0
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def pinned_to_core(core: int | None) -> Iterator[None]:
    """Run what is started in the block on this core only; None changes nothing."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pin_process(pid: int, core: int) -> None:
    """Move a running process, with all its threads, to this core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def exit_on_sigterm() -> None:
    """Exit by an exception on the first SIGTERM, so that `finally` blocks run; ignore further ones."""

    def exit_once(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    signal.signal(signal.SIGTERM, exit_once)


@contextmanager
def run_process(
    command: Sequence[str], environment: Mapping[str, str] | None = None, output: IO[bytes] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that gets SIGTERM at the end of the block, and SIGKILL if that does not end it."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class ResourceUsage:
    """Memory and CPU time of the processes of a server."""

    processes: int
    rss_mib: float
    pss_mib: float
    """Memory, where what several processes share counts once."""
    cpu: Mapping[int, float]
    """Seconds of each process by pid."""


class ProcessGroup:
    """A process and all its descendants, also those that were orphaned: they have its mark."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str) -> None:
        self.process = process
        self._mark = f"{MARK}={mark}".encode()

    def list_pids(self) -> list[int]:
        marked = {
            int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and self._has_mark(one)
        }
        return sorted(marked | self._list_descendants())

    def measure_usage(self) -> ResourceUsage:
        pids = self.list_pids()
        memory = [_read_memory(pid) for pid in pids]
        return ResourceUsage(
            len(pids),
            round(sum(rss for rss, _ in memory) / 1024, 1),
            round(sum(pss for _, pss in memory) / 1024, 1),
            {pid: cpu_seconds(pid) for pid in pids},
        )

    def _list_descendants(self) -> set[int]:
        # nginx overwrites its environment with the name of its process: it has no mark.
        if self.process.poll() is not None:
            return set()
        try:
            first = psutil.Process(self.process.pid)
            return {first.pid, *(one.pid for one in first.children(recursive=True))}
        except psutil.Error:
            return set()

    def _has_mark(self, folder: Path) -> bool:
        try:
            return self._mark in (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # another user's, or gone meanwhile
            return False


@contextmanager
def run_group(
    command: Sequence[str], environment: Mapping[str, str], core: int | None, log: Path
) -> Iterator[ProcessGroup]:
    """A server in the background; all processes that are left at the end of the block are killed."""
    mark = uuid.uuid4().hex
    with log.open("wb") as output:
        found: ProcessGroup | None = None
        try:
            with contextlib.ExitStack() as stack:
                with pinned_to_core(core):
                    process = stack.enter_context(run_process(command, {**environment, MARK: mark}, output))
                found = ProcessGroup(process, mark)
                yield found
        finally:
            if found is not None:
                _kill_group(found)


def _kill_group(found: ProcessGroup) -> None:
    end = time.monotonic() + _END_SECONDS
    while (pids := found.list_pids()) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process so far; 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _read_memory(pid: int) -> tuple[int, int]:
    """Resident and proportional memory in KiB."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    values = {line.partition(":")[0]: line.split()[1] for line in lines[1:]}
    return int(values.get("Rss", 0)), int(values.get("Pss", 0))
