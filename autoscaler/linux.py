"""Features that only Linux has. Elsewhere nodes start cold, and watch their lifeline in a thread."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_GET_CHILD_SUBREAPER = 37
_F_SETSIG = 10
# Seconds between two looks at whether killed processes have ended.
_REAP_EVERY = 0.005
# Of nodes and pilots, and of what jobs start: jobs end first when memory runs out.
NODE_OOM_SCORE, JOB_OOM_SCORE = 500, 800


def _prctl(option: int, value: int) -> None:
    result = ctypes.CDLL(None, use_errno=True).prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0)))
    if result != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _is_subreaper() -> bool:
    enabled = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(enabled))
    return bool(enabled.value)


def _has_needed_features() -> bool:
    # Some systems that report themselves as Linux lack a part of it.
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
        _is_subreaper()
    except OSError:
        return False
    return True


AVAILABLE = _has_needed_features()


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, which has that pid; exits if it has ended."""
    if AVAILABLE:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    if AVAILABLE:
        _prctl(_PR_SET_PDEATHSIG, 0)


def die_with_lifeline(lifeline: int) -> None:
    """Have this process and its group, which it leads, killed when the writing end of a pipe is gone.

    On Linux the kernel does it: neither a thread that holds the interpreter lock nor a stopped process can
    prevent it. It replaces `die_with_parent`, whose signal may come sooner and does not reach the group.
    """
    if not (AVAILABLE and _register_kernel_kill(lifeline)):
        threading.Thread(target=_wait_and_kill_group, args=(lifeline,), name="lifeline", daemon=True).start()
        return
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # it was gone before
        os._exit(1)
    outlive_parent()


def _register_kernel_kill(fd: int) -> bool:
    """Have the kernel kill our process group when a descriptor has an event; returns whether it can."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return False
    return True


def _wait_and_kill_group(lifeline: int) -> None:
    with contextlib.suppress(OSError):
        os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def set_subreaper(enabled: bool) -> bool:
    """Set whether this process becomes the parent of its descendants' orphans; returns the old setting."""
    if not AVAILABLE:
        return False
    before = _is_subreaper()
    _prctl(_PR_SET_CHILD_SUBREAPER, int(enabled))
    return before


def kill_descendants(seconds: float = 5.0) -> int:
    """Kill and reap whatever this process has started and still lives, its descendants included.

    Also those in sessions of their own whose parents have ended, if this process is a subreaper. For the end
    of a program; takes `seconds` at most. Returns how many there were.
    """
    if not AVAILABLE:
        return 0
    set_subreaper(True)  # of those that are killed
    killed: set[int] = set()
    deadline = time.monotonic() + seconds
    while (pids := _list_children()) and time.monotonic() < deadline:
        for pid in pids:
            _kill_and_reap(pid)
        killed.update(pids)
        time.sleep(_REAP_EVERY)
    return len(killed)


def kill_orphans(
    least_oom_score: int, is_orphan: Callable[[int], bool] = lambda _: True, seconds: float = 5.0
) -> int:
    """Kill children of this process, a subreaper, with at least that out-of-memory score, and theirs.

    `is_orphan` is asked of each pid, after it was found to be that of a child.

    For orphans whose parent was the subreaper of all that it had started with such a score: as long as it
    lives, none of them is a child of this process. Takes `seconds` at most. Returns how many there were.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + seconds
    # Children of one that was killed become those of this process when it has ended, which may take a while.
    while (pids := _list_orphans(least_oom_score, is_orphan)) and time.monotonic() < deadline:
        for pid in pids:
            _kill_and_reap(pid)
        killed.update(pids)
        time.sleep(_REAP_EVERY)
    return len(killed)


def _list_orphans(least_oom_score: int, is_orphan: Callable[[int], bool]) -> list[int]:
    pids = [pid for pid in _list_children() if _read_oom_score(pid) >= least_oom_score]
    return [pid for pid in pids if is_orphan(pid)]


def _kill_and_reap(pid: int) -> None:
    """Kill a child, and reap it if it has ended already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _read_oom_score(pid: int) -> int:
    """That of a process; low for one that has ended."""
    try:
        return int(Path("/proc", str(pid), "oom_score_adj").read_text())
    except (OSError, ValueError):
        return -1000


def _list_children(pid: str = "self") -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # the process has ended meanwhile
        for task in Path("/proc", pid, "task").glob("*/children"):
            with contextlib.suppress(OSError):  # the thread has
                found += map(int, task.read_text().split())
    return found


def list_descendants() -> list[int]:
    """The pids of all that this process has started and still lives, and of what that has started."""
    found = _list_children()
    for pid in found:  # which grows meanwhile
        found += _list_children(str(pid))
    return found


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show; 15 characters at most."""
    if AVAILABLE:
        text = ctypes.create_string_buffer(name.encode())
        _prctl(_PR_SET_NAME, ctypes.addressof(text))


def raise_oom_score(score: int = NODE_OOM_SCORE, pid: int | str = "self") -> None:
    """Have the kernel kill a process before the server when memory runs out, highest score first."""
    with contextlib.suppress(OSError):
        Path("/proc", str(pid), "oom_score_adj").write_text(str(score))


def harden_process(open_files: int = 0, nice: int = 0) -> None:
    """Restrict this process before code of a model runs: no core dumps, no set-user-ID programs, limits.

    `open_files` is the most descriptors (0: as many as now), `nice` how far others come first.
    """
    # One byte is less than any dump has. With 0 the kernel would still start a program that takes dumps.
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    if open_files:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = open_files if hard == resource.RLIM_INFINITY else min(open_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if nice:
        os.nice(nice)
    if AVAILABLE:
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def thread_names() -> list[str]:
    """The names of all threads of this process, also of those that the interpreter did not start."""
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # ended meanwhile
            names.append(known.get(int(task.name)) or (task / "comm").read_text().strip())
    return names


def create_anonymous_file() -> int:
    """A descriptor of an empty file without a name, in memory if there is such a thing."""
    if AVAILABLE:
        return os.memfd_create("pilotlight")
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())
