"""What there is to give out, read from files as the kernel writes them."""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from autoscaler import machine

GIB = 1 << 30
NO_LIMIT = 9223372036854771712


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 8 processors and 10 GiB left."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10 * GIB))


def write(root: Path, files: dict[str, str | int]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def test_a_machine_without_cgroups(tmp_path: Path) -> None:
    """All that it has."""
    assert machine.count_cores(tmp_path) == 8
    assert machine.available_memory(tmp_path) == 10 * GIB
    assert machine.oom_kills(tmp_path) == 0


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 8), ("150000 100000", 2), ("20000 100000", 1), ("3200000 100000", 8)]
)
def test_the_quota_of_a_container(tmp_path: Path, quota: str, cores: int) -> None:
    """Version 2, the cgroup at the root of the mount; a part of a processor counts as one."""
    write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": quota})

    assert machine.count_cores(tmp_path) == cores


def test_the_memory_of_a_container(tmp_path: Path) -> None:
    """Version 2: the limit less what is used, but what the kernel keeps of files does not count."""
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": 2 * GIB,
            "sys/fs/cgroup/memory.current": GIB,
            "sys/fs/cgroup/memory.stat": f"anon {GIB // 2}\ninactive_file {GIB // 4}\nactive_file 5",
        },
    )

    assert machine.available_memory(tmp_path) == GIB + GIB // 4


def test_a_cgroup_above_may_be_narrower(tmp_path: Path) -> None:
    """The least of all of them counts, whichever it is; "max" is no limit."""
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/pilotlight.service",
            "sys/fs/cgroup/system.slice/memory.max": 3 * GIB,
            "sys/fs/cgroup/system.slice/memory.current": GIB,
            "sys/fs/cgroup/system.slice/cpu.max": "300000 100000",
            "sys/fs/cgroup/system.slice/pilotlight.service/memory.max": "max",
            "sys/fs/cgroup/system.slice/pilotlight.service/memory.current": 5,
            "sys/fs/cgroup/system.slice/pilotlight.service/cpu.max": "max 100000",
        },
    )

    assert machine.available_memory(tmp_path) == 2 * GIB
    assert machine.count_cores(tmp_path) == 3


def test_version_1(tmp_path: Path) -> None:
    """Each controller in a folder of its own; inside a container the path told may be the one outside."""
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/abc\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": GIB,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": GIB // 2,
            "sys/fs/cgroup/memory/memory.stat": f"cache 7\ntotal_inactive_file {GIB // 8}",
            "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": 400_000,
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100_000,
        },
    )

    assert machine.available_memory(tmp_path) == GIB // 2 + GIB // 8
    assert machine.count_cores(tmp_path) == 4
    assert machine.oom_kills(tmp_path) == 3


def test_version_1_without_limits(tmp_path: Path) -> None:
    """Numbers that mean none."""
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": GIB // 2,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1,
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100_000,
        },
    )

    assert machine.available_memory(tmp_path) == 10 * GIB
    assert machine.count_cores(tmp_path) == 8


def test_a_cgroup_that_is_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    """Never less than nothing."""
    files: dict[str, str | int] = {"sys/fs/cgroup/memory.max": 5, "sys/fs/cgroup/memory.current": 9}
    write(tmp_path, {"proc/self/cgroup": "0::/", **files})

    assert machine.available_memory(tmp_path) == 0


def test_kills_for_want_of_memory_are_counted(tmp_path: Path) -> None:
    """Those of the machine and those of the cgroup: either makes the number grow."""
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a",
            "proc/vmstat": "nr_free_pages 5\noom_kill 2",
            "sys/fs/cgroup/a/memory.events": "oom 9\noom_kill 4",
        },
    )

    assert machine.oom_kills(tmp_path) == 6


def test_what_a_process_takes() -> None:
    """What it has written is its own; what it shares counts by its part."""
    pid = os.getpid()
    before = machine.measure_memory(pid)
    mine = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mine.write(b"x" * len(mine))
    grown = machine.measure_memory(pid)
    mine.close()

    assert 28 << 20 < grown.private - before.private < 36 << 20
    assert grown.proportional >= grown.private


def test_what_a_process_computes() -> None:
    """Its own seconds, those of all its threads."""
    before = machine.cpu_seconds(os.getpid())
    while machine.cpu_seconds(os.getpid()) < before + 0.05:
        sum(range(10_000))

    assert before > 0


def test_how_long_a_process_has_waited_for_a_processor() -> None:
    """It only grows; nothing is said of processes that are gone."""
    before = machine.main_thread_run_delay(os.getpid())
    gone = subprocess.Popen(["true"])
    gone.wait()

    assert 0 <= before <= machine.main_thread_run_delay(os.getpid())
    assert machine.main_thread_run_delay(gone.pid) == 0


def test_nothing_is_known_of_a_process_that_is_gone() -> None:
    """ProcessLookupError."""
    gone = subprocess.Popen(["true"])
    gone.wait()

    with pytest.raises(ProcessLookupError):
        machine.measure_memory(gone.pid)
    with pytest.raises(ProcessLookupError):
        machine.cpu_seconds(gone.pid)


def test_this_machine() -> None:
    """Whatever it is, it has something to give."""
    assert machine.count_cores() >= 1
    assert machine.available_memory() > 0
    assert machine.oom_kills() >= 0
