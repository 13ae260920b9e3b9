"""The node's side of a predictor process: its start, its requests, and its end."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from serving.config import environment_without_settings
from serving.errors import LoadFailed, Unavailable
from serving.predictor import predictor_command
from serving.predictor.program import Message, encode_message, receive_message, send_parts

# Seconds for a predictor that has closed its connection to exit, and for a pilot to fork one.
_EXIT_TIMEOUT, _PILOT_TIMEOUT = 5.0, 5.0
_MAX_STATUS_BYTES = 16
_STDERR = 2

# Waits a few seconds until a process has ended; returns its exit code, minus its signal, or None if unknown.
WaitForExit = Callable[[], int | None]


class _StartedProcess(NamedTuple):
    """A predictor that has started and sent its pid."""

    pid: int
    connection: socket.socket
    wait_for_exit: WaitForExit
    close: Callable[[], None]  # to be called when it is gone


class PredictorProcess:
    """A running predictor process. Raises LoadFailed when it cannot be started.

    It is forked from the pilot that listens at that address, or started cold if there is none.
    """

    def __init__(self, interpreter: str, pilot: str = "") -> None:
        self.interpreter = interpreter
        reading, self._lifeline = os.pipe()  # the predictor lives for as long as the writing end
        try:
            self._process = (_fork_from_pilot(pilot, reading) if pilot else None) or _start_interpreter(
                interpreter, reading
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(reading)
        self._request_lock = threading.Lock()
        self._closed = False
        self._shared_fate = False

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def load_model(self, wanted: Mapping[str, Any]) -> Message:
        """Have it load a model, with the environment and the limits of this process."""
        process = {
            "environment": environment_without_settings(),
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
        }
        return self.send_request({"load": wanted, "process": process})

    def send_request(self, head: Mapping[str, Any], body: Any = b"") -> Message:
        """Send a message and wait for its answer. Raises Unavailable when the predictor ends instead."""
        front, view = encode_message(dict(head), body)
        with self._request_lock:
            try:
                send_parts(self._process.connection, front, view)
                answer = receive_message(self._process.connection)
            except (OSError, ValueError):
                answer = None
            if answer is None:
                raise self._handle_exit()
        return answer

    def share_fate(self) -> None:
        """From now on end this process as the predictor ends, so that its parent sees why."""
        self._shared_fate = True
        threading.Thread(target=self._watch_connection, name="predictor", daemon=True).start()

    def close(self) -> None:
        """End the predictor."""
        if self._closed:
            return
        self._closed = True
        self._process.connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that watches
        self._process.connection.close()
        os.close(self._lifeline)
        self._process.close()

    def _watch_connection(self) -> None:
        poll = select.poll()
        poll.register(self._process.connection, 0)  # POLLHUP, which needs no asking for
        poll.poll()
        with self._request_lock:
            if not self._closed:
                self._handle_exit()

    def _handle_exit(self) -> Unavailable:
        code = self._process.wait_for_exit()
        said = f"The predictor process of the model ended ({_describe_exit(code)})."
        if self._shared_fate:
            print(said, file=sys.stderr, flush=True)
            sys.stdout.flush()
            if code is not None and code < 0:
                os.kill(os.getpid(), -code)
                os._exit(128 - code)  # a signal that does not end this process
            os._exit(code or 1)
        return Unavailable(said)


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "unknown exit status"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _fork_from_pilot(pilot: str, lifeline: int) -> _StartedProcess | None:
    """A predictor from the pilot that listens at this address; None if that gives none."""
    with contextlib.ExitStack() as undo:
        connection = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        status, theirs = os.pipe()
        undo.callback(os.close, status)
        connection.settimeout(_PILOT_TIMEOUT)
        try:
            connection.connect(pilot)
            socket.send_fds(connection, (b"n",), (_STDERR, lifeline, theirs))
        except OSError:
            return None
        finally:
            os.close(theirs)
        pid = _receive_pid(connection)
        if pid is None:
            return None
        undo.pop_all()
    connection.settimeout(None)

    def wait_for_exit() -> int | None:
        # Not select.select, which takes no descriptor over 1023: a model may have that many files open.
        poll = select.poll()
        poll.register(status, select.POLLIN)
        code = os.read(status, _MAX_STATUS_BYTES) if poll.poll(_EXIT_TIMEOUT * 1000) else b""
        return int(code) if code else None

    return _StartedProcess(pid, connection, wait_for_exit, lambda: os.close(status))


def _start_interpreter(interpreter: str, lifeline: int) -> _StartedProcess:
    """A predictor that begins as a new interpreter. Raises LoadFailed.

    It speaks over a socket from its first message on, and other interpreters cannot import a module of ours
    that would bind it to the lifeline: the program does that itself.
    """
    connection, theirs = socket.socketpair()
    try:
        with theirs:
            started = subprocess.Popen(
                predictor_command(interpreter, "serve", str(theirs.fileno()), str(lifeline)),
                pass_fds=(theirs.fileno(), lifeline),
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                stderr=_STDERR,
                start_new_session=True,
            )
    except OSError as error:
        connection.close()
        raise LoadFailed(f"Cannot start {interpreter}: {error.strerror or error}.") from error

    def wait_for_exit() -> int | None:
        try:
            return started.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            return None

    def reap_process() -> None:
        started.wait()

    pid = _receive_pid(connection)
    if pid is None:
        code = wait_for_exit()
        started.kill()
        started.wait()
        connection.close()
        raise LoadFailed(f"{interpreter} cannot run a predictor ({_describe_exit(code)}).")
    return _StartedProcess(pid, connection, wait_for_exit, reap_process)


def _receive_pid(connection: socket.socket) -> int | None:
    """The pid from a predictor's first message; None if it is gone, or another program."""
    try:
        hello = receive_message(connection)
    except (OSError, ValueError):
        return None
    return None if hello is None else int(hello[0]["pid"])
