"""Entries of tiny nodes: what the processes of test_local_pool.py do."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoscaler.launch import Report


def echo(arguments: Mapping[str, Any], listener: socket.socket, report: Report) -> int:
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


def deaf(arguments: Mapping[str, Any], listener: socket.socket, report: Report) -> int:
    """Is ready and does not care about SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report({"ready": {}})
    while True:
        time.sleep(60)


def slow(arguments: Mapping[str, Any], listener: socket.socket, report: Report) -> int:
    """Never becomes ready."""
    while True:
        time.sleep(60)


def refuse(arguments: Mapping[str, Any], listener: socket.socket, report: Report) -> int:
    """Says why it cannot be ready."""
    report({"failed": "there is no model"})
    return 1


def fail(arguments: Mapping[str, Any], listener: socket.socket, report: Report) -> int:
    """Dies of an exception after some chatter."""
    for number in range(100):
        print("chatter", number, file=sys.stderr)
    print("x" * (1 << 17), file=sys.stderr)
    raise RuntimeError("no such luck")


def crash(arguments: Mapping[str, Any], listener: socket.socket, report: Report) -> int:
    """Dies of the signal it is told."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), arguments["signal"])
    return 0


def leave(arguments: Mapping[str, Any], listener: socket.socket, report: Report) -> int:
    """Is ready, and ends by itself when a file is there."""
    report({"ready": {}})
    while not Path(arguments["gate"]).exists():
        time.sleep(0.01)
    return 7
