"""What this machine, or the container around us, has to give, and what processes take of it.

`root` stands for "/": where the kernel's files are is told by tests only.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from autoscaler.pools import MemoryUsage

_ROOT = Path("/")
_V2_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")


def count_cores(root: Path = _ROOT) -> int:
    """The number of usable processors: the affinity of this process, within the quota of its cgroup."""
    return max(1, min((_count_processors(), *(math.ceil(quota) for quota in _cpu_quotas(root)))))


def available_memory(root: Path = _ROOT) -> int:
    """Bytes that processes can still allocate: what the machine has left, within the limit of our cgroup."""
    left: int = psutil.virtual_memory().available
    return max(0, min((left, *_memory_headrooms(root))))


def identify_machine(root: Path = _ROOT) -> str:
    """A name shared by processes that reach each other by loopback addresses, until the next boot."""
    return f"{socket.gethostname()} {_read_text(root / 'proc/sys/kernel/random/boot_id')}"


def oom_kills(root: Path = _ROOT) -> int:
    """A counter that grows when the kernel kills a process for want of memory."""
    kills = _read_field(root / "proc/vmstat", "oom_kill")
    for folder in _cgroup_folders(root, "memory"):
        kills += _read_field(folder / "memory.events", "oom_kill") + _read_field(
            folder / "memory.oom_control", "oom_kill"
        )
    return kills


def measure_memory(*pids: int) -> MemoryUsage:
    """The memory of processes in total; raises ProcessLookupError. Takes milliseconds for a big one."""
    private = proportional = 0
    for pid in pids:
        try:
            info = psutil.Process(pid).memory_full_info()
        except psutil.Error as error:
            raise ProcessLookupError(f"nothing is known of process {pid}") from error
        private += info.uss
        proportional += getattr(info, "pss", info.rss)
    return MemoryUsage(private, proportional)


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process and its threads since its start; raises ProcessLookupError."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error as error:
        raise ProcessLookupError(f"nothing is known of process {pid}") from error
    seconds: float = times.user + times.system
    return seconds


def main_thread_run_delay(pid: int) -> float:
    """How long the main thread of a process has been ready to run without a processor, since its start.

    0 where the kernel does not count that.
    """
    numbers = _read_text(Path(f"/proc/{pid}/schedstat")).split()
    return int(numbers[1]) / 1e9 if len(numbers) > 1 else 0.0


def all_threads_run_delay(pid: int) -> float:
    """How long all threads of a process have been ready to run without a processor, since each one's start.

    0 where the kernel does not count that, or the process has ended.
    """
    waited = 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            numbers = _read_text(thread / "schedstat").split()
            waited += int(numbers[1]) if len(numbers) > 1 else 0
    return waited / 1e9


def anonymous_memory(pid: int) -> int | None:
    """Bytes of memory of a process without those of files; at least its own pages.

    Unlike `measure_memory` it takes microseconds. None when it cannot be known.
    """
    pages = _read_text(Path(f"/proc/{pid}/statm")).split()
    return (int(pages[1]) - int(pages[2])) * resource.getpagesize() if len(pages) > 2 else None


def _count_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_quotas(root: Path) -> Iterator[float]:
    """The numbers of processors that cgroups with a limit allow."""
    for folder in _cgroup_folders(root, "cpu"):
        quota, _, period = _read_text(folder / "cpu.max").partition(" ")  # v2: "max 100000"
        if not period:
            quota, period = _read_text(folder / "cpu.cfs_quota_us"), _read_text(folder / "cpu.cfs_period_us")
        with contextlib.suppress(ValueError):
            if float(quota) > 0 and float(period) > 0:
                yield float(quota) / float(period)


def _memory_headrooms(root: Path) -> Iterator[int]:
    """The bytes left in cgroups that have a limit. Reclaimable page cache counts as free."""
    for folder in _cgroup_folders(root, "memory"):
        for limit, usage, files in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with contextlib.suppress(ValueError):
                used = int(_read_text(folder / usage)) - _read_field(folder / "memory.stat", files)
                yield int(_read_text(folder / limit)) - max(0, used)


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folder of our cgroup and those above it, in both versions of cgroups.

    Inside a container the path in /proc may be that outside; then the mount point is our cgroup.
    """
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts = [root / mount for mount in _V2_MOUNTS]
        elif controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / controller]
        else:
            continue
        for mount in mounts:
            folder = mount / path.strip("/")
            while folder != mount:
                if folder.exists():
                    yield folder
                folder = folder.parent
            yield mount


def _read_field(path: Path, name: str) -> int:
    """A number from a file of names and numbers; 0 if it is missing."""
    for line in _read_text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _read_text(path: Path) -> str:
    """The text of a file; "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
