"""Nodes as processes on this machine, each on a unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoscaler.launch import Launch
from autoscaler.pools import Listener, Node, NodeSpec, NodeState

logger = logging.getLogger(__name__)

_BACKLOG = 2048
_TAIL_LINES = 20
_LINE_LIMIT = 1 << 16
_PREFIX = "pilotlight-sockets-"


@dataclass(slots=True, eq=False)
class _Process:
    """A node with what only this pool knows about it."""

    node: Node
    spec: NodeSpec
    child: asyncio.subprocess.Process
    control: socket.socket
    lifeline: int
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    failure: str = ""


class LocalPool:
    """Starts node processes; `listener` is told of every change, `drain` is in seconds.

    Use as an async context manager: its tasks live and die with the block.
    """

    def __init__(self, listener: Listener, *, drain: float) -> None:
        self._listener = listener
        self._drain = drain
        self._processes: dict[str, _Process] = {}
        self._numbers = itertools.count(1)
        _sweep(Path(tempfile.gettempdir()))
        # Short on purpose: the path of a unix socket has at most 107 characters.
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        self._tasks = asyncio.TaskGroup()
        # One change at a time: a node that is being started is not among the processes yet.
        self._turn = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> LocalPool:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()
        await self._tasks.__aexit__(None, None, None)
        shutil.rmtree(self._folder, ignore_errors=True)

    def nodes(self, key: str) -> Sequence[Node]:
        """The nodes of a version that are not gone, oldest first."""
        return [process.node for process in self._processes.values() if process.node.key == key]

    async def scale(self, spec: NodeSpec, count: int) -> None:
        """Start or drain nodes until `count` are starting or ready; see NodePool."""
        async with self._turn:
            current = [
                process
                for process in self._processes.values()
                if process.node.key == spec.key
                and process.node.state in (NodeState.STARTING, NodeState.READY)
            ]
            for _ in range(len(current), 0 if self._closed else count):
                await self._start(spec)
            for process in current[count:]:
                self._stop(process)

    async def close(self) -> None:
        """Drain every node and wait until all are gone."""
        async with self._turn:
            self._closed = True
            for process in list(self._processes.values()):
                self._stop(process)
        while self._processes:
            await asyncio.wait(
                [asyncio.ensure_future(process.child.wait()) for process in self._processes.values()]
            )
            await asyncio.sleep(0)  # let the followers note it

    # ---- one node's life

    async def _start(self, spec: NodeSpec) -> None:
        name = f"{next(self._numbers)}"
        path = self._folder / name
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(_BACKLOG)
        control, remote_control = socket.socketpair()
        remote_lifeline, lifeline = os.pipe()
        launch = Launch(
            spec.entry, spec.arguments, listener.fileno(), remote_control.fileno(), remote_lifeline
        )
        node = Node(id=name, key=spec.key, address=str(path))
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "autoscaler.launch",
                launch.to_argument(),
                pass_fds=(listener.fileno(), remote_control.fileno(), remote_lifeline),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(spec.environment),
                limit=_LINE_LIMIT,
                start_new_session=True,  # Ctrl-C at the terminal is the server's to handle
            )
        except BaseException:
            control.close()
            os.close(lifeline)
            path.unlink()
            raise
        finally:
            listener.close()
            remote_control.close()
            os.close(remote_lifeline)
        control.setblocking(False)
        process = _Process(node, spec, child, control, lifeline)
        self._processes[name] = process
        logger.info("%s: node %s starts (pid %d)", spec.title, name, child.pid)
        self._listener(node)
        self._tasks.create_task(self._follow(process))

    def _stop(self, process: _Process) -> None:
        if process.node.state in (NodeState.DRAINING, NodeState.GONE):
            return
        self._change(process, NodeState.DRAINING)
        with contextlib.suppress(ProcessLookupError):
            process.child.terminate()
        asyncio.get_running_loop().call_later(self._drain, self._kill, process)

    def _kill(self, process: _Process) -> None:
        if process.node.state is not NodeState.GONE:
            logger.warning("%s: node %s did not drain in time", process.spec.title, process.node.id)
            with contextlib.suppress(ProcessLookupError):
                process.child.kill()

    async def _follow(self, process: _Process) -> None:
        """From start to exit: hear its reports, keep its last words, note its end."""
        start = asyncio.create_task(self._await_ready(process))
        output = asyncio.create_task(self._read_output(process))
        code = await process.child.wait()
        expected = process.node.state is NodeState.DRAINING
        if process.node.state is NodeState.READY:
            self._change(process, NodeState.DRAINING)  # it can be lent no more
        # What it reported and said last is still in the pipes.
        await asyncio.wait((start, output), timeout=1)
        start.cancel()
        output.cancel()
        process.control.close()
        os.close(process.lifeline)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(process.node.address)  # noqa: PTH108  on tmpfs or page cache: does not block
        del self._processes[process.node.id]
        process.node.reason = process.failure or _describe_exit(code, process.tail)
        log = logger.info if expected else logger.error
        log("%s: node %s is gone: %s", process.spec.title, process.node.id, process.node.reason)
        self._change(process, NodeState.GONE)

    async def _await_ready(self, process: _Process) -> None:
        try:
            async with asyncio.timeout(process.spec.start_timeout):
                message = await self._read_report(process)
        except TimeoutError:
            process.failure = (
                f"The node was not ready after {process.spec.start_timeout:g} s (setting start_timeout)."
            )
            self._kill(process)
            return
        if "failed" in message:
            process.failure = str(message["failed"])
        elif "ready" in message and process.node.state is NodeState.STARTING:
            process.node.report = message["ready"]
            logger.info("%s: node %s is ready", process.spec.title, process.node.id)
            self._change(process, NodeState.READY)

    async def _read_report(self, process: _Process) -> dict[str, Any]:
        """The first report of a node; empty when it ended without one."""
        loop = asyncio.get_running_loop()
        received = b""
        while not received.endswith(b"\n"):
            chunk = await loop.sock_recv(process.control, 1 << 16)
            if not chunk:
                return {}
            received += chunk
        message: dict[str, Any] = json.loads(received.splitlines()[0])
        return message

    async def _read_output(self, process: _Process) -> None:
        stream = process.child.stdout
        if stream is None:
            return
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line over the limit was thrown away
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            process.tail.append(text)
            logger.info("%s: node %s: %s", process.spec.title, process.node.id, text)

    def _change(self, process: _Process, state: NodeState) -> None:
        process.node.state = state
        self._listener(process.node)


def _sweep(folder: Path) -> None:
    """Remove the socket folders of servers that were killed."""
    for leftover in folder.glob(f"{_PREFIX}*-*"):
        pid = leftover.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists():
            shutil.rmtree(leftover, ignore_errors=True)


def _describe_exit(code: int, tail: Sequence[str]) -> str:
    """Why a process ended, in words for the owner of the version."""
    if code == -signal.SIGKILL:
        how = "The node was killed (signal SIGKILL); it may have run out of memory."
    elif code < 0:
        how = f"The node died of signal {signal.Signals(-code).name}."
    else:
        how = f"The node ended with exit code {code}."
    return how + (f" Its last output: {' | '.join(list(tail)[-5:])}" if tail and code != 0 else "")
