"""Processes that a benchmark starts: on a core, marked, measured, and ended with all that they started."""

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

# Every process of a server inherits this variable, so that none is missed, measured or ended.
MARK = "BENCH_TAG"
_END_SECONDS = 15.0
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """What is started inside runs on this core only; None leaves it as it is."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def move(pid: int, core: int) -> None:
    """Have a running process, with all its threads, on this core only."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def end_on_sigterm() -> None:
    """Leave by way of `finally` on the first SIGTERM; further ones do not disturb that."""

    def leave(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)


@contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str] | None = None, output: IO[bytes] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is asked to end when the block does, and killed when it does not."""
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
class Usage:
    """What the processes of a server hold and have used."""

    processes: int
    rss_mib: float
    pss_mib: float
    """Memory, where what several processes share counts once."""
    cpu: Mapping[int, float]
    """Seconds of each process by pid."""


class Group:
    """A process and all that it starts, known by their descent, and by their mark if they left home."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str) -> None:
        self.process = process
        self._mark = f"{MARK}={mark}".encode()

    def pids(self) -> list[int]:
        """Those that are alive."""
        marked = {int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and self._has(one)}
        return sorted(marked | self._family())

    def usage(self) -> Usage:
        """Measured now."""
        pids = self.pids()
        memory = [_memory(pid) for pid in pids]
        return Usage(
            len(pids),
            round(sum(rss for rss, _ in memory) / 1024, 1),
            round(sum(pss for _, pss in memory) / 1024, 1),
            {pid: cpu_seconds(pid) for pid in pids},
        )

    def _family(self) -> set[int]:
        # nginx has the name of its process where the environment was: it shows no mark.
        if self.process.poll() is not None:
            return set()
        try:
            first = psutil.Process(self.process.pid)
            return {first.pid, *(one.pid for one in first.children(recursive=True))}
        except psutil.Error:
            return set()

    def _has(self, folder: Path) -> bool:
        try:
            return self._mark in (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # another user's, or gone meanwhile
            return False


@contextmanager
def group(
    command: Sequence[str], environment: Mapping[str, str], core: int | None, log: Path
) -> Iterator[Group]:
    """A server in the background; whatever is left of it at the end of the block is killed."""
    mark = uuid.uuid4().hex
    with log.open("wb") as output:
        found: Group | None = None
        try:
            with contextlib.ExitStack() as stack:
                with on_core(core):
                    process = stack.enter_context(running(command, {**environment, MARK: mark}, output))
                found = Group(process, mark)
                yield found
        finally:
            if found is not None:
                _kill(found)


def _kill(found: Group) -> None:
    end = time.monotonic() + _END_SECONDS
    while (pids := found.pids()) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def cpu_seconds(pid: int) -> float:
    """What a process has used so far; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory(pid: int) -> tuple[int, int]:
    """Resident and proportional memory in KiB."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    values = {line.partition(":")[0]: line.split()[1] for line in lines[1:]}
    return int(values.get("Rss", 0)), int(values.get("Pss", 0))
