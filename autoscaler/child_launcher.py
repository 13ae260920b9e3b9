"""Runs child processes of the server that are given an input and report on their output, to a sure end.

Two kinds have another protocol, and use `autoscaler.processes.spawn_child` alone: nodes and pilots, which are
passed descriptors and report on a socket; and the log writer, which outlives the server for some seconds.
What a node starts itself (predictor, container, verification) it starts without the autoscaler, which nodes
do not import.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

from autoscaler import linux
from autoscaler.processes import ChildProcess, spawn_child

_LINE_LIMIT = 1 << 20
# Seconds for which the rest of a process's output is awaited once it has ended: others may hold its pipe.
_DRAIN_SECONDS = 1.0

# Stands in a command for the number of the lifeline; see `autoscaler.module_process`.
LIFELINE_PLACEHOLDER = "FD"


def module_command(module: str) -> tuple[str, ...]:
    """The command that runs a module, as `python -m MODULE` does, in a process that ends with the server."""
    return (sys.executable, "-m", "autoscaler.module_process", LIFELINE_PLACEHOLDER, module)


@dataclass(frozen=True, slots=True, eq=False)
class RunningChild:
    """A child and what it prints; lines of `output` over 1 MiB raise ValueError."""

    process: ChildProcess
    output: asyncio.StreamReader
    grace_seconds: float

    async def stop(self) -> None:
        """Ask it to end, and kill it when the grace is over."""
        self.process.terminate()
        await self.wait_until_gone()

    async def wait_until_gone(self) -> int | None:
        """Wait until it and its group are gone; kill it after the grace. Returns its exit code."""
        try:
            async with asyncio.timeout(self.grace_seconds):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
        await self.process.wait_group_gone()
        return await self.process.wait()


@contextlib.asynccontextmanager
async def run_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdin: bytes,
    stderr: int | None = None,
    grace_seconds: float,
    oom_score: int = 0,
) -> AsyncGenerator[RunningChild]:
    """Run a program for the length of the block; raises OSError.

    After the block the process and its group are gone: it may end by itself within the grace, is asked to end
    first if the block raised, and is killed at last. `stderr` None is that of the server. For `oom_score` see
    `linux.raise_oom_score`; 0 leaves it that of the server.
    """
    remote_lifeline, lifeline = os.pipe()
    try:
        try:
            process, output = _spawn(command, environment, stdin, stderr, remote_lifeline)
        finally:
            os.close(remote_lifeline)
        if oom_score:
            linux.raise_oom_score(oom_score, process.pid)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LINE_LIMIT)
        pipe = os.fdopen(output, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        async with end_child_with_block(RunningChild(process, reader, grace_seconds), transport) as child:
            yield child
    finally:
        os.close(lifeline)  # whatever happened above: without it, the process and its group are killed


@contextlib.asynccontextmanager
async def end_child_with_block(
    child: RunningChild, transport: asyncio.BaseTransport
) -> AsyncGenerator[RunningChild]:
    """End a child with the block, as `run_child` says; `transport` is that of its output."""
    loop = asyncio.get_running_loop()
    child.process.exit.add_done_callback(lambda _: loop.call_later(_DRAIN_SECONDS, transport.close))
    try:
        yield child
    except BaseException:
        child.process.terminate()
        raise
    finally:
        try:
            await child.wait_until_gone()
        finally:
            transport.close()


def _spawn(
    command: Sequence[str], environment: Mapping[str, str], stdin: bytes, stderr: int | None, lifeline: int
) -> tuple[ChildProcess, int]:
    """Start the process; returns it and the reading end of its output. Blocks for a few milliseconds."""
    reading, writing = os.pipe()
    try:
        with os.fdopen(linux.create_anonymous_file(), "r+b") as given:
            given.write(stdin)
            given.seek(0)
            child = spawn_child(
                [str(lifeline) if word == LIFELINE_PLACEHOLDER else word for word in command],
                environment=environment,
                descriptors=(lifeline,),
                stdin=given.fileno(),
                stdout=writing,
                stderr=stderr,
            )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return child, reading
