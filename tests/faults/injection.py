"""A server whose background tasks fail when a test says so: an error comes out of what a task waits for.

`python -m tests.faults.injection` runs the server; it listens on a unix socket for what a test wants. Nothing
of the server is replaced: the future that a task waits for is given an error, as the event loop gives it one.
"""

from __future__ import annotations

import asyncio
import builtins
import errno
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

SOCKET = "TESTS_INJECTION"


class Found(NamedTuple):
    """A task: its name, and the coroutine that it runs."""

    name: str
    coroutine: str


class Injection:
    """The test's side."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tasks(self) -> list[Found]:
        """All tasks of the event loop."""
        return [Found(*found) for found in self._ask("list")]

    def fail(self, name: str, error: str) -> bool:
        """Have what a task waits for raise; False if there is no such task, or it does not wait.

        `error` is the name of a built-in exception, or "cancel".
        """
        return bool(self._ask("fail", name, error))

    def _ask(self, *words: str) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(self._path))
            connection.sendall(json.dumps(words).encode() + b"\n")
            with connection.makefile() as answer:
                return json.loads(answer.readline())


def _serve(listener: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile() as lines:
            what, *words = json.loads(lines.readline())
            done = asyncio.run_coroutine_threadsafe(_do(what, *words), loop)
            connection.sendall(json.dumps(done.result()).encode() + b"\n")


async def _do(what: str, *words: str) -> Any:
    if what == "list":
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        return [(task.get_name(), getattr(task.get_coro(), "__qualname__", "")) for task in tasks]
    name, error = words
    for task in asyncio.all_tasks():
        if task.get_name() == name:
            return task.cancel() if error == "cancel" else _fail(task, error)
    return False


def _fail(task: asyncio.Future[Any], error: str) -> bool:
    waited_for = getattr(task, "_fut_waiter", None)
    if waited_for is None or waited_for.done():
        return False
    if isinstance(waited_for, asyncio.Task):
        return _fail(waited_for, error)
    kind = getattr(builtins, error)
    details = (errno.EMFILE, os.strerror(errno.EMFILE)) if kind is OSError else ("injected",)
    waited_for.set_exception(kind(*details))
    return True


def _new_event_loop() -> uvloop.Loop:
    loop = _MAKE_LOOP()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.environ[SOCKET])
    listener.listen()
    threading.Thread(target=_serve, args=(listener, loop), daemon=True).start()
    return loop


_MAKE_LOOP = uvloop.new_event_loop

if __name__ == "__main__":
    # What follows is a command of Python's: PYTHON -c PROGRAM ARGUMENTS
    _, _, _, program, *arguments = sys.argv
    uvloop.new_event_loop = _new_event_loop
    sys.argv = ["-c", *arguments]
    exec(program)
