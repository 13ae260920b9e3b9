"""All processes of a job: started, read, reaped and ended; also those that have detached themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol

from autoscaler import linux, machine
from training.logs.severity import INFO, SeverityParser
from training.replicas import child
from training.replicas.event_loop import EventLoop
from training.replicas.replica_output import LineReader

OnExit = Callable[[int], None]

# Lines of the end of a process's standard error that are kept.
_TAIL_LINES = 25
# Seconds that the supervisors of containers have to remove them.
REMOVAL_SECONDS = 15.0
# Seconds between two looks at whether killed processes have ended.
_POLL_SECONDS = 0.02


class LineWriter(Protocol):
    """Takes lines of a task, each a severity and a text."""

    def write(self, task: str, lines: Iterable[tuple[str, str]]) -> None: ...


class RunningProcess:
    """A process with the lines it prints; `on_exit` gets its exit code, minus the signal's number."""

    def __init__(self, started: child.Child, task: str, log: LineWriter, on_exit: OnExit) -> None:
        self.pid = started.pid
        self.task = task
        self._log = log
        self.started_at = time.monotonic()
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._started = started
        self._on_exit = on_exit
        self._severity = SeverityParser()
        self._output = LineReader(started.stdout)
        self._errors = LineReader(started.stderr)

    @property
    def readers(self) -> tuple[LineReader, LineReader]:
        return self._output, self._errors

    def read(self, reader: LineReader) -> None:
        lines = reader.read_lines()
        if lines:
            self._write(reader, lines)

    def drain(self) -> None:
        for reader in self.readers:
            for lines in reader.drain():
                self._write(reader, lines)

    def finish(self, exit_code: int) -> None:
        self._started.close_lifeline()
        self._on_exit(exit_code)

    def kill_group(self) -> None:
        """Returns at once. A container is removed by its own supervisor, which takes a moment."""
        if self._started.ends_itself:
            self._started.close_lifeline()
        else:
            self._started.send_signal(signal.SIGKILL)

    def terminate_group(self) -> None:
        self._started.send_signal(signal.SIGTERM)

    def _write(self, reader: LineReader, lines: list[str]) -> None:
        if reader is self._output:
            self._log.write(self.task, [(INFO, line) for line in lines])
        else:
            self.tail.extend(lines)
            self._log.write(self.task, [(self._severity.parse(line), line) for line in lines])


class JobProcesses:
    """Children and other descendants; made in the main thread of a process without other children.

    `runs_containers`: some descendants belong to a container engine, or remove a container once its lifeline
    is closed. They are left alone until they have had the time for that.
    """

    def __init__(self, loop: EventLoop, log: LineWriter, *, runs_containers: bool = False) -> None:
        linux.set_subreaper(True)
        self._loop = loop
        self._log = log
        self._removal_seconds = REMOVAL_SECONDS if runs_containers else 0.0
        self._alive: dict[int, RunningProcess] = {}
        self._readable: dict[int, tuple[RunningProcess, LineReader]] = {}
        self._on_all_gone: Callable[[], None] | None = None
        loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def start(
        self,
        run: Callable[[], NoReturn],
        task: str,
        on_exit: OnExit,
        *,
        log: LineWriter | None = None,
        stdin: int | None = None,
    ) -> RunningProcess:
        """Fork a process whose lines go to `log`, by default the job's, as those of `task`.

        Raises OSError.
        """
        started = child.fork_child(run, stdin=stdin)
        return self._watch(RunningProcess(started, task, log or self._log, on_exit))

    def start_container(
        self, command: list[str], environment: Mapping[str, str], folder: Path, task: str, on_exit: OnExit
    ) -> RunningProcess:
        """Start `serving.runtimes.container.supervisor`; raises OSError."""

        def run() -> NoReturn:
            child.execute(command, environment, folder)

        return self._watch(RunningProcess(child.fork_child(run, ends_itself=True), task, self._log, on_exit))

    def _watch(self, process: RunningProcess) -> RunningProcess:
        self._alive[process.pid] = process
        for reader in process.readers:
            self._readable[reader.fd] = process, reader
            self._loop.add_reader(reader.fd, partial(self._read, reader.fd))
        return process

    def end_all(self, grace_seconds: float, on_all_gone: Callable[[], None]) -> None:
        """Send SIGTERM to all, after a while SIGKILL; calls back when none is left."""
        self._on_all_gone = on_all_gone
        for process in self._alive.values():
            process.terminate_group()
        if not self._removal_seconds:
            for pid in set(linux.list_descendants()) - self._alive.keys():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        self._loop.call_later(0.0, lambda: self._end_remaining(deadline))

    def measure_memory(self, enough: int) -> int:
        """Bytes of memory of all processes: a quick estimate, at least what it is, up to `enough`."""
        pids = linux.list_descendants()
        estimate = sum(machine.anonymous_memory(pid) or 0 for pid in pids)
        if estimate <= enough:
            return estimate
        with contextlib.suppress(ProcessLookupError):  # one has ended meanwhile
            return machine.measure_memory(*pids).private
        return 0

    def kill_all(self) -> None:
        """Kill all at once, without looking at how they end."""
        for process in self._alive.values():
            process.kill_group()
        deadline = time.monotonic() + self._removal_seconds
        while linux.list_descendants() and time.monotonic() < deadline:
            _reap_children()
            time.sleep(_POLL_SECONDS)
        linux.kill_descendants()

    def _end_remaining(self, deadline: float) -> None:
        left = linux.list_descendants()
        now = time.monotonic()
        if left and now >= deadline:
            for process in self._alive.values():
                process.kill_group()
        if left and now >= deadline + self._removal_seconds:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if left:
            self._loop.call_later(_POLL_SECONDS, lambda: self._end_remaining(deadline))
            self._reap()
            return
        self._close_outputs()
        on_all_gone, self._on_all_gone = self._on_all_gone, None
        if on_all_gone is not None:
            on_all_gone()

    def _close_outputs(self) -> None:
        for process, _ in list(self._readable.values()):
            process.drain()
        for fd in list(self._readable):
            self._close_output(fd)

    def _close_output(self, fd: int) -> None:
        del self._readable[fd]
        self._loop.remove_reader(fd)
        os.close(fd)

    def _read(self, fd: int) -> None:
        process, reader = self._readable[fd]
        process.read(reader)
        if reader.at_end:
            self._close_output(fd)

    def _reap(self) -> None:
        """Reap all that have ended; orphans have become children of this process."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            self._finish(
                ended.si_pid, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            )

    def _finish(self, pid: int, exit_code: int) -> None:
        process = self._alive.pop(pid, None)
        if process is not None and exit_code != 0:
            process.kill_group()  # until it is reaped, no other group can have its number
        os.waitpid(pid, 0)
        if process is not None:
            process.drain()
            process.finish(exit_code)


def _reap_children() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
