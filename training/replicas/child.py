"""Forks the processes of a job, each with pipes for its output, and bound to the supervisor's life."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from autoscaler import linux, node_process

# Online predictions come first.
_NICE = 10
# The number of a child's lifeline. A program keeps it open, and so the kernel's signal stays set.
LIFELINE = 3


@dataclass(slots=True, eq=False)
class Child:
    """A process that leads a session of its own; when `lifeline` is closed, its group is killed.

    `ends_itself`: it is not, but sees that, and ends by itself.
    """

    pid: int
    stdout: int
    stderr: int
    lifeline: int
    ends_itself: bool

    def close_lifeline(self) -> None:
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    def send_signal(self, number: int) -> None:
        """Signal the process and its group, as long as it is not reaped."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def fork_child(run: Callable[[], NoReturn], *, stdin: int | None = None, ends_itself: bool = False) -> Child:
    """Fork a process that calls `run`; raises OSError. `run` has descriptors 0 to 2 and the lifeline only.

    `ends_itself` is for programs of our own, which watch their lifeline. Without `stdin` it can read nothing.
    """
    with contextlib.ExitStack() as undo:
        pipes = [os.pipe() for _ in range(3)]
        for fd in (fd for pipe in pipes for fd in pipe):
            undo.callback(os.close, fd)
        (stdout, child_stdout), (stderr, child_stderr), (child_lifeline, lifeline) = pipes
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            streams = (stdin, child_stdout, child_stderr)
            _run_child(run, streams, child_lifeline, ends_itself=ends_itself)
        undo.pop_all()
    for fd in (child_stdout, child_stderr, child_lifeline):
        os.close(fd)
    os.set_blocking(stdout, False)
    os.set_blocking(stderr, False)
    return Child(pid, stdout, stderr, lifeline, ends_itself)


def _run_child(
    run: Callable[[], NoReturn], streams: tuple[int | None, int, int], lifeline: int, *, ends_itself: bool
) -> NoReturn:
    try:
        os.setsid()
        node_process.restore_signals()
        null = os.open(os.devnull, os.O_RDONLY)
        for number, fd in enumerate(streams):
            os.dup2(null if fd is None else fd, number)
        os.dup2(lifeline, LIFELINE)
        os.set_inheritable(LIFELINE, True)
        _release_descriptors(null)
        if not ends_itself:
            _restrict_process()
        run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _restrict_process() -> None:
    """Before a program of the user's runs."""
    if linux.AVAILABLE:
        linux.die_with_lifeline(LIFELINE)
    linux.raise_oom_score(linux.JOB_OOM_SCORE)
    linux.harden_process(nice=_NICE)


def _release_descriptors(null: int) -> None:
    """Give up what belongs to the supervisor.

    Its numbers stay taken: a library that the pilot has used may close, in every fork, the descriptors that
    it once had, whatever has their numbers now (libuv does).
    """
    for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if fd > LIFELINE and fd != null:
            os.dup2(null, fd, inheritable=False)


def execute(command: list[str], environment: Mapping[str, str], folder: Path) -> NoReturn:
    """Become a program, in a working folder."""
    os.chdir(folder)
    os.execve(command[0], command, environment)  # noqa: S606
