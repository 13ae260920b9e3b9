"""The first thing that runs in a node's process: tie its life to the server's, then call its entry.

Started as `python -m autoscaler.launch JSON`. The JSON names the entry as an import string and the
descriptors the process was given.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

Report = Callable[[Mapping[str, Any]], None]
Entry = Callable[[Mapping[str, Any], socket.socket, Report], int]

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run and with which descriptors.

    `listen_fd` is a listening socket, `control_fd` takes reports as JSON lines, `lifeline_fd` is the
    reading end of a pipe whose only writing end the server holds.
    """

    entry: str
    arguments: Mapping[str, Any]
    listen_fd: int
    control_fd: int
    lifeline_fd: int

    def to_argument(self) -> str:
        """The command-line argument that `main` reads."""
        return json.dumps(asdict(self))


def resolve(entry: str) -> Entry:
    """The function an import string "module:function" names."""
    module, _, function = entry.partition(":")
    found: Entry = getattr(importlib.import_module(module), function)
    return found


def main(argument: str) -> int:
    """Run a node; the result is the exit code."""
    launch = Launch(**json.loads(argument))
    die_with_server(launch.lifeline_fd)
    control = socket.socket(fileno=launch.control_fd)

    def report(message: Mapping[str, Any]) -> None:
        # The server may be gone already; then so are we, any moment now.
        with contextlib.suppress(OSError):
            control.sendall(json.dumps(message).encode() + b"\n")

    entry = resolve(launch.entry)
    return entry(launch.arguments, socket.socket(fileno=launch.listen_fd), report)


def die_with_server(lifeline_fd: int) -> None:
    """End this process, the leader of its group, at once when the server is gone, however it went."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)

    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline_fd, 1)
        # The whole group: with whatever user code has started.
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: frameworks leave threads and destructors that can hang an interpreter's end.
    os._exit(code)
