"""Entries of tiny nodes: what the processes of test_local_pool.py and test_pilot.py do."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, MutableSequence
from pathlib import Path
from typing import Any, cast

from autoscaler.node_memory import Mark
from autoscaler.node_process import ReportCallback

Board = MutableSequence[int]


def echo(arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board) -> int:
    """Answers each connection with a line; SIGTERM ends it after the connection under way."""
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    report({"ready": {"pid": os.getpid(), "given": arguments["word"], "variable": os.environ["VARIABLE"]}})
    listener.settimeout(0.05)
    while not stopping:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            connection.setblocking(True)
            line = connection.makefile().readline()
            connection.sendall(f"{arguments['word']} {line}".encode())
    return 0


def tell(arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board) -> int:
    """Reports what it is: all that a process is born with."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    report(
        {
            "ready": {
                "arguments": dict(arguments),
                "environment": dict(os.environ),
                "folder": str(Path.cwd()),
                "argv": sys.argv,
                "stdin": str(Path("/proc/self/fd/0").readlink()),
                "output": [str(Path(f"/proc/self/fd/{number}").readlink()) for number in (1, 2)],
                "signals": {
                    line.split(":")[0]: int(line.split(":")[1], 16)
                    for line in Path("/proc/self/status").read_text().splitlines()
                    if line.startswith(("SigBlk", "SigIgn", "SigCgt"))
                },
                "parent": os.getppid(),
                "leads": os.getpid() == os.getsid(0) == os.getpgrp(),
                "threads": threading.active_count(),
                "open": len(list(Path("/proc/self/fd").iterdir())),
                "random": [random.random(), numpy_random()],
                "board": len(board),
                "name": Path("/proc/self/comm").read_text().strip(),
                "oom": Path("/proc/self/oom_score_adj").read_text().strip(),
            }
        }
    )
    while True:
        time.sleep(60)


def numpy_random() -> float | None:
    """The next random number of numpy, if it is there already."""
    numpy = sys.modules.get("numpy.random")
    return numpy.random() if numpy is not None else None


def deaf(arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board) -> int:
    """Is ready and does not care about SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report({"ready": {}})
    while True:
        time.sleep(60)


def slow(arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board) -> int:
    """Never becomes ready."""
    while True:
        time.sleep(60)


def detach(
    arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board
) -> int:
    """Closes all that it has not opened, as daemons do, and goes on."""
    os.closerange(3, 4096)
    report({"ready": {}})
    while True:
        time.sleep(60)


def babble(
    arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board
) -> int:
    """Begins a report that has no end."""
    report({"pid": os.getpid()})
    while True:
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if link.readlink().name.startswith("socket:"):
                    os.write(int(link.name), b"x" * (1 << 16))


def refuse(
    arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board
) -> int:
    """Says why it cannot be ready."""
    report({"failed": "there is no model"})
    return 1


def starve(
    arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board
) -> int:
    """Says what the machine is short of."""
    report({"short": "no thread"})
    return 1


def abort(arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board) -> int:
    """Dies as TensorFlow does when no thread can be started: the reason is far from the last line."""
    print("F0000 env.cc:84] Thread tf_pool creation via pthread_create() failed.", file=sys.stderr)
    for number in range(40):
        print(f"    @ {number} in a library", file=sys.stderr, flush=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def fail(arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board) -> int:
    """Dies of an exception after some chatter."""
    for number in range(100):
        print("chatter", number, file=sys.stderr)
    print("x" * (1 << 17), file=sys.stderr)
    raise RuntimeError("no such luck")


def crash(arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board) -> int:
    """Dies of the signal it is told."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), arguments["signal"])
    return 0


def leave(arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board) -> int:
    """Is ready, and ends by itself when a file is there."""
    report({"ready": {}})
    while not Path(arguments["gate"]).exists():
        time.sleep(0.01)
    return 7


def note(arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board) -> int:
    """Is ready, notes something on its board, and dies."""
    report({"ready": {}})
    board[0], board[2] = Mark.COMPUTED, Mark.COMPUTING
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def count(arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board) -> int:
    """Counts something behind its marks, and answers."""
    memoryview(cast(bytearray, board))[-16:].cast("Q")[1] = 1 << 40
    return echo(arguments, listener, report, board)


def brood(arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board) -> int:
    """Is ready with a child, and the child of a child, that would live on and hold its output open."""
    code = "import subprocess, sys; subprocess.Popen(['sleep', '600']); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
    while not (grandchildren := children.read_text().split()):
        time.sleep(0.01)
    report({"ready": {"brood": [child.pid, *map(int, grandchildren)]}})
    signal.sigwait({signal.SIGTERM})
    return 0


def limits(
    arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board
) -> int:
    """Reports what it may take, and whether it could have more rights."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    status = Path("/proc/self/status").read_text()
    try:
        files = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
    except OSError as error:
        opened = error.strerror
    else:
        opened = str(len(files))
    report(
        {
            "ready": {
                "core": resource.getrlimit(resource.RLIMIT_CORE),
                "files": resource.getrlimit(resource.RLIMIT_NOFILE),
                "nice": os.nice(0),
                "privileges": "NoNewPrivs:\t1" not in status,
                "opened": opened,
            }
        }
    )
    while True:
        time.sleep(60)


def greedy(
    arguments: Mapping[str, Any], listener: socket.socket, report: ReportCallback, board: Board
) -> int:
    """Takes memory: before it is ready or after, and in vain where it is another's."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if arguments["at"] == "ready":
        report({"ready": {}})
    taken = [os.urandom(1 << 20) for _ in range(arguments["mebibytes"])]
    if arguments["at"] == "start":
        report({"ready": {"taken": len(taken)}})
    while True:
        time.sleep(60)
