"""The node's end of a predictor: how one is started, asked, and what follows when it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from serving.errors import LoadFailed, ModelFailed
from serving.predictor import command
from serving.predictor.program import Message, receive, send

# Seconds within which a predictor that hung up has ended, and a pilot answers.
_END_SECONDS, _PILOT_SECONDS = 5.0, 5.0
_MOST_STATUS = 16


class Predictor:
    """A running predictor process. One thread at a time may ask it.

    With `shared_fate`, this process ends as the predictor ends, so that whoever watches it sees why.
    """

    def __init__(
        self, connection: socket.socket, lifeline: int, status: int | subprocess.Popen[bytes]
    ) -> None:
        self._connection = connection
        self._lifeline = lifeline  # held open for as long as the predictor is to live
        self._status = status
        self.shared_fate = False
        self.pid = self._greeted()

    def ask(self, head: Mapping[str, Any], body: Any = b"") -> Message:
        """Send a message and wait for its answer. Raises ModelFailed when the predictor ends instead."""
        try:
            send(self._connection, dict(head), body)
            answer = receive(self._connection)
        except OSError:
            answer = None
        if answer is None:
            raise self._lost()
        return answer

    def _greeted(self) -> int:
        """The pid of the process, which is the first that it tells. Raises LoadFailed."""
        try:
            hello = receive(self._connection)
        except OSError:
            hello = None
        if hello is None:
            code = self._exit_code()
            self.close()
            raise LoadFailed(f"The predictor process did not start ({_describe(code)}).")
        return int(hello[0]["pid"])

    def close(self) -> None:
        """End the predictor."""
        self._connection.close()
        os.close(self._lifeline)
        if isinstance(self._status, subprocess.Popen):
            self._status.wait()
        else:
            os.close(self._status)

    def _lost(self) -> ModelFailed:
        code = self._exit_code()
        if self.shared_fate:
            sys.stdout.flush()
            sys.stderr.flush()
            if code is not None and code < 0:
                os.kill(os.getpid(), -code)
            os._exit(code or 1)
        return ModelFailed(f"The predictor process of the model ended ({_describe(code)}).")

    def _exit_code(self) -> int | None:
        """Minus the number of the signal that it died of; None if it cannot be known."""
        if isinstance(self._status, subprocess.Popen):
            try:
                return self._status.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                return None
        told = os.read(self._status, _MOST_STATUS)
        return int(told) if told else None


def _describe(code: int | None) -> str:
    if code is None:
        return "nobody knows how"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def start(interpreter: str, pilot: str = "") -> Predictor:
    """A predictor of an interpreter, forked from its pilot if one listens there, else started cold.

    Raises LoadFailed when neither works.
    """
    reading, lifeline = os.pipe()
    try:
        found = _forked(pilot, reading) if pilot else None
        connection, status = found or _cold(interpreter, reading)
    except OSError as error:
        os.close(lifeline)
        raise LoadFailed(f"Cannot start {interpreter}: {error.strerror or error}.") from error
    finally:
        os.close(reading)
    return Predictor(connection, lifeline, status)


def _forked(pilot: str, lifeline: int) -> tuple[socket.socket, int] | None:
    """From the pilot that listens at this address; None if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    status, theirs = os.pipe()
    try:
        connection.settimeout(_PILOT_SECONDS)
        connection.connect(pilot)
        socket.send_fds(connection, (b"n",), (sys.stderr.fileno(), lifeline, theirs))
        connection.settimeout(None)
    except OSError:
        connection.close()
        os.close(status)
        return None
    finally:
        os.close(theirs)
    return connection, status


def _cold(interpreter: str, lifeline: int) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            started = subprocess.Popen(
                command(interpreter, "serve", str(theirs.fileno()), str(lifeline)),
                pass_fds=(theirs.fileno(), lifeline),
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                stderr=sys.stderr.fileno(),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    return ours, started
