"""Child processes of the server, adopted ones included: their output, their end, their process group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from autoscaler import linux

logger = logging.getLogger(__name__)

_LINE_LIMIT = 1 << 16
_TAIL_LINES = 20
# What libraries write before they end a process for which the machine has no further thread. TensorFlow
# aborts, with a stack trace after the reason.
_SHORTAGE_TEXTS = ("pthread_create", "Resource temporarily unavailable", "can't start new thread")


def _ignore_line(_: str) -> None:
    pass


class ProcessOutput:
    """The reading end of a process's output pipe; `tail` has its last lines. Takes the descriptor.

    `shortage` is the last line, however far from the end, that tells of too few threads on the machine.
    `on_line` gets every line; it must not block or raise.
    """

    def __init__(self, fd: int, name: str, on_line: Callable[[str], None] = _ignore_line) -> None:
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.shortage = ""
        self._fd = fd
        self._name = name
        self._on_line = on_line

    async def read_lines(self) -> None:
        """Read and log until all writers have closed the pipe, or until cancelled."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LINE_LIMIT)
        pipe = os.fdopen(self._fd, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while True:
                try:
                    line = await reader.readline()
                except ValueError:  # a line over the limit was dropped
                    continue
                if not line:
                    return
                text = line.decode(errors="replace").rstrip()
                self.tail.append(text)
                if any(words in text for words in _SHORTAGE_TEXTS):
                    self.shortage = text
                logger.info("%s: %s", self._name, text)
                self._on_line(text)
        finally:
            transport.close()


# Seconds between two polls for an end that must come, and how many polls there are.
_POLL_SECONDS, _MOST_POLLS = 0.005, 1000
# How much of a process's last output an error has.
_DESCRIBED_LINES, _LINE_CHARACTERS = 5, 300


class ChildProcess:
    """A child that leads a process group of its own; the group is killed when it ends.

    To be made on the event loop. `exit` is done once it has ended and been reaped: its exit code, minus the
    number of the signal it died of, or None if that cannot be known.
    """

    def __init__(self, pid: int, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._loop = asyncio.get_running_loop()
        self._popen = popen
        self.exit: asyncio.Future[int | None] = self._loop.create_future()
        self._group_gone: asyncio.Future[None] = self._loop.create_future()
        if linux.AVAILABLE:
            self._pidfd = os.pidfd_open(pid)
            self._loop.add_reader(self._pidfd, self._reap_process, _MOST_POLLS)
        elif popen is not None:
            threading.Thread(target=self._wait_in_thread, args=(popen,), daemon=True).start()

    def send_signal(self, number: signal.Signals) -> None:
        if not self.exit.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int | None:
        """Wait for its end; the result is that of `exit`."""
        return await asyncio.shield(self.exit)

    async def wait_group_gone(self) -> None:
        await asyncio.shield(self._group_gone)

    def _reap_process(self, polls: int) -> None:
        # Until it is reaped, no other process or group can have its pid.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._loop.remove_reader(self._pidfd)
        try:
            result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            if polls and self._is_alive():  # its first parent is about to end
                self._loop.call_later(_POLL_SECONDS, self._reap_process, polls - 1)
                return
            code = None
        else:
            if result is None:
                self._loop.add_reader(self._pidfd, self._reap_process, polls)
                return
            code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        os.close(self._pidfd)
        self._set_exit(code)

    def _is_alive(self) -> bool:
        """False if the pilot, in whose group it was forked, was reaped together with it."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _wait_in_thread(self, popen: subprocess.Popen[bytes]) -> None:
        code = popen.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._set_exit, code)

    def _set_exit(self, code: int | None) -> None:
        if self._popen is not None:
            self._popen.returncode = code if code is not None else 0
        self.exit.set_result(code)
        self._reap_group(_MOST_POLLS)

    def _reap_group(self, polls: int) -> None:
        """Reap the rest of its group: orphans become our children."""
        try:
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            polls = 0
        if polls:
            self._loop.call_later(_POLL_SECONDS, self._reap_group, polls - 1)
        else:
            self._group_gone.set_result(None)


class OrphanReaper:
    """Reaps orphans that became our children, have ended, and that nobody waits for."""

    def __init__(self) -> None:
        self._ended_before: frozenset[int] = frozenset()

    def reap(self) -> None:
        """Reap those that had ended at the last call already; whoever waits for a child reaps it sooner."""
        ended = frozenset(_list_zombies())
        for pid in ended & self._ended_before:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._ended_before = ended - self._ended_before


def _list_zombies() -> Iterator[int]:
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # ended meanwhile
            for pid in task.read_text().split():
                if Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    yield int(pid)


def spawn_child(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    descriptors: Sequence[int] = (),
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
) -> ChildProcess:
    """Start a program in a session of its own; raises OSError. Blocks for about a millisecond.

    `stdout` and `stderr` None are those of the server. To be called in the main thread: on Linux a child can
    be tied to the life of the thread that made it.
    """
    started = subprocess.Popen(
        arguments,
        env=dict(environment),
        pass_fds=descriptors,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,  # Ctrl-C at the terminal is the server's to handle
    )
    try:
        return ChildProcess(started.pid, started)
    except OSError:  # no descriptor is left for its pidfd
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        raise


def describe_thread_shortage(code: int | None, line: str) -> str:
    """How a process ended that could start no thread and wrote this line about it."""
    how = f"died of signal {_signal_name(-code)}" if code is not None and code < 0 else "ended"
    return f"{how}: the machine has no further thread for it. It wrote: {line[:_LINE_CHARACTERS]}"


def describe_exit(code: int | None, tail: Sequence[str]) -> str:
    """How a process ended that nobody had asked to end, with its last lines of output."""
    if code is None:
        how = "ended with an unknown status."
    elif code == -signal.SIGKILL:
        how = "was killed from outside (signal SIGKILL); it may have run out of memory."
    elif code < 0:
        how = f"died of signal {_signal_name(-code)}."
    else:
        how = f"ended with exit code {code}."
    lines = [line[:_LINE_CHARACTERS] for line in list(tail)[-_DESCRIBED_LINES:]]
    return how + (f" Its last output: {' | '.join(lines)}" if lines and code != 0 else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has none
        return str(number)
