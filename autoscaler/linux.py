"""What only Linux offers, in one place. Elsewhere nodes start cold, and watch their lifeline in a thread."""

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
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_GET_CHILD_SUBREAPER = 37
_F_SETSIG = 10
# Seconds between two looks at whether killed processes have ended.
_REAP_EVERY = 0.005


def _prctl(option: int, value: int) -> None:
    result = ctypes.CDLL(None, use_errno=True).prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0)))
    if result != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _is_subreaper() -> bool:
    adopts = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(adopts))
    return bool(adopts.value)


def _has_needed_features() -> bool:
    """Also what calls itself Linux may lack some of it."""
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
    """Have this process killed when its parent, which is to have that pid, is gone; at once if it is."""
    if AVAILABLE:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def die_with_lifeline(lifeline: int) -> None:
    """Have this process and its group, which it leads, killed when the writing end of a pipe is gone.

    On Linux the kernel does it by itself: neither a thread that hogs the interpreter nor a stopped process
    can prevent it. It takes the place of `die_with_parent`, whose signal may be quicker and spares the group.
    """
    if not (AVAILABLE and _kill_group_on_close(lifeline)):
        threading.Thread(
            target=_kill_group_when_closed, args=(lifeline,), name="lifeline", daemon=True
        ).start()
        return
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # it was gone before
        os._exit(1)
    _prctl(_PR_SET_PDEATHSIG, 0)


def _kill_group_on_close(fd: int) -> bool:
    """Have the kernel kill our group when something happens to a descriptor; tells whether it can."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return False
    return True


def _kill_group_when_closed(lifeline: int) -> None:
    with contextlib.suppress(OSError):
        os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def set_subreaper(enabled: bool) -> bool:
    """Whether this process becomes the parent of its descendants' orphans; tells what was before."""
    if not AVAILABLE:
        return False
    before = _is_subreaper()
    _prctl(_PR_SET_CHILD_SUBREAPER, int(enabled))
    return before


def kill_descendants(seconds: float = 5.0) -> int:
    """Kill and reap whatever this process has started and still lives, its descendants included.

    Also those in sessions of their own, whose parents have ended, if this process adopts orphans. To be
    called when nothing is left that should go on; takes so many seconds at most. Returns how many there were.
    """
    if not AVAILABLE:
        return 0
    set_subreaper(True)  # of those that are killed
    killed: set[int] = set()
    deadline = time.monotonic() + seconds
    while (pids := _list_children()) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        killed.update(pids)
        time.sleep(_REAP_EVERY)
    return len(killed)


def _list_children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found += map(int, task.read_text().split())
    return found


def name_process(name: str) -> None:
    """What `ps` and `top` call this process; 15 characters at most."""
    if AVAILABLE:
        text = ctypes.create_string_buffer(name.encode())
        _prctl(_PR_SET_NAME, ctypes.addressof(text))


def raise_oom_score() -> None:
    """When memory runs out, this process goes before the server."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def harden_process(open_files: int = 0, nice: int = 0) -> None:
    """Before code runs that is not ours: no dump of memory when it crashes, and no program that gives rights.

    `check_open_files` is the most descriptors (0: as many as now), `nice` how far others come first.
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
    """The names of this process's threads, of those too that the interpreter knows nothing of."""
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
