"""What a node's process does, started cold or forked: tie its life to the server's, then call its entry.

Started cold as `python -m autoscaler.node_process JSON`, where the JSON has the numbers of the descriptors that
the process was given.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, MutableSequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, NoReturn

from autoscaler import linux, shared_region

ReportCallback = Callable[[Mapping[str, Any]], None]
NodeEntry = Callable[[Mapping[str, Any], socket.socket, ReportCallback, MutableSequence[int]], int]


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to run: `entry` is an import string "module:function"; for the rest see `linux.confine`."""

    entry: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    open_files: int = 0
    nice: int = 0

    def to_bytes(self) -> bytes:
        """As the file that `read` takes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, fd: int) -> LaunchSpec:
        """From a file, whose descriptor is taken."""
        with open(fd, "rb") as file:
            file.seek(0)
            return cls(**json.load(file))


@dataclass(frozen=True, slots=True)
class NodeDescriptors:
    """The descriptors a node is given.

    `order` is the file with its Order, `listener` a listening socket, `control` takes reports as JSON
    lines, `lifeline` is the reading end of a pipe whose only writing end the server holds, `board` the
    memory it shares with the server.
    """

    order: int
    listener: int
    control: int
    lifeline: int
    board: int

    def as_tuple(self) -> tuple[int, ...]:
        """In the order of the fields."""
        return astuple(self)

    def to_argument(self) -> str:
        """The command-line argument that `main` reads."""
        return json.dumps(asdict(self))


def main(argument: str) -> NoReturn:
    """Live as a node that was started cold."""
    handles = NodeDescriptors(**json.loads(argument))
    for fd in handles.as_tuple():
        os.set_inheritable(fd, False)
    linux.die_with_parent(os.getppid())
    run_node(LaunchSpec.read(handles.order), handles)


def run_node(order: LaunchSpec, handles: NodeDescriptors) -> NoReturn:
    """Be a node until its entry returns, and end the process with the entry's exit code."""
    try:
        code = _run_entry(order, handles)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Not sys.exit: frameworks leave threads and destructors that can hang an interpreter's end.
    os._exit(code)


def _run_entry(order: LaunchSpec, handles: NodeDescriptors) -> int:
    linux.die_with_lifeline(handles.lifeline)
    control = socket.socket(fileno=handles.control)

    def send_report(message: Mapping[str, Any]) -> None:
        # The server may be gone already; then so are we, any moment now.
        with contextlib.suppress(OSError):
            control.sendall(json.dumps(message).encode() + b"\n")

    send_report({"pid": os.getpid()})
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that it is in the log when it matters
    linux.raise_oom_score()
    linux.harden_process(order.open_files, order.nice)
    linux.name_process("pilotlight-node")
    sys.argv[:] = [__file__]
    entry = import_entry(order.entry)
    listener = socket.socket(fileno=handles.listener)
    return entry(order.arguments, listener, send_report, shared_region.attach_region(handles.board))


def import_entry(entry: str) -> NodeEntry:
    """The function an import string "module:function" names."""
    module, _, function = entry.partition(":")
    found: NodeEntry = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    main(sys.argv[1])
