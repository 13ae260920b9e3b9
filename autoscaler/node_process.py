"""The main function of a node process, started cold or forked: tie its life to the server's, call its entry.

Started cold as `python -m autoscaler.node_process JSON`, where JSON is `NodeDescriptors.to_argument()`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, MutableSequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, NoReturn

from autoscaler import linux, node_memory

ReportCallback = Callable[[Mapping[str, Any]], None]
NodeEntry = Callable[[Mapping[str, Any], socket.socket, ReportCallback, MutableSequence[int]], int]


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to run: `entry` is an import string "module:function"; for the rest see `linux.harden_process`.

    `watches_lifeline`: the entry gets the descriptor of its lifeline as the argument "lifeline", and ends by
    itself when that is closed, as it has to end processes outside of its group. `name` is what `ps` shows.
    `is_job`: it is killed before nodes when memory runs out, and what has detached itself from it stays its
    child until it ends.
    """

    entry: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    open_files: int = 0
    nice: int = 0
    watches_lifeline: bool = False
    name: str = "pilotlight-node"
    is_job: bool = False

    def to_bytes(self) -> bytes:
        """The content of the file that `read` takes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, fd: int) -> LaunchSpec:
        """Read it from a file; closes the descriptor."""
        with open(fd, "rb") as file:
            file.seek(0)
            return cls(**json.load(file))


@dataclass(frozen=True, slots=True)
class NodeDescriptors:
    """The descriptors a node is given.

    `order` is the file with its LaunchSpec, `listener` a listening socket, `control` takes reports as JSON
    lines, `lifeline` is the reading end of a pipe whose only writing end the server holds, `board` the
    `SharedRegion`.
    """

    order: int
    listener: int
    control: int
    lifeline: int
    board: int

    def as_tuple(self) -> tuple[int, ...]:
        return astuple(self)

    def to_argument(self) -> str:
        """The command-line argument that `main` reads."""
        return json.dumps(asdict(self))


def main(argument: str) -> NoReturn:
    """Run a node that was started cold."""
    handles = NodeDescriptors(**json.loads(argument))
    for fd in handles.as_tuple():
        os.set_inheritable(fd, False)
    linux.die_with_parent(os.getppid())
    restore_signals()
    run_node(LaunchSpec.read(handles.order), handles)


def run_node(order: LaunchSpec, handles: NodeDescriptors) -> NoReturn:
    """Call the node's entry, and end the process with the exit code that it returns."""
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
    arguments = order.arguments
    if order.watches_lifeline:
        linux.outlive_parent()
        arguments = {**arguments, "lifeline": handles.lifeline}
    else:
        linux.die_with_lifeline(handles.lifeline)
    control = socket.socket(fileno=handles.control)

    def send_report(message: Mapping[str, Any]) -> None:
        # The server may have ended; this process is then killed at any moment.
        with contextlib.suppress(OSError):
            control.sendall(json.dumps(message).encode() + b"\n")

    send_report({"pid": os.getpid()})
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that it is in the log when it matters
    linux.raise_oom_score(linux.JOB_OOM_SCORE if order.is_job else linux.NODE_OOM_SCORE)
    if order.is_job:
        linux.set_subreaper(True)
    linux.harden_process(order.open_files, order.nice)
    linux.name_process(order.name)
    sys.argv[:] = [__file__]
    entry = import_entry(order.entry)
    listener = socket.socket(fileno=handles.listener)
    return entry(arguments, listener, send_report, node_memory.attach_region(handles.board))


def restore_signals() -> None:
    """Set all signals as in a process that has inherited none: under `nohup` children ignore SIGHUP."""
    usual: dict[int, signal._HANDLER] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGPIPE: signal.SIG_IGN,
        signal.SIGXFSZ: signal.SIG_IGN,
    }
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        wanted = usual.get(number, signal.SIG_DFL)
        if handler is not None and handler != wanted:  # None: set by a C library
            signal.signal(number, wanted)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def import_entry(entry: str) -> NodeEntry:
    """The function that an import string "module:function" names."""
    module, _, function = entry.partition(":")
    found: NodeEntry = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    main(sys.argv[1])
