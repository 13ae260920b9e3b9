"""Starts the process that suggests trials (`python -m tuning`), and speaks to it.

It listens on a unix socket and answers requests in their order. The gateway imports none of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from autoscaler.child_launcher import RunningChild, module_command, run_child
from autoscaler.node_process import LaunchSpec
from autoscaler.pools import NodePool, PilotSpec
from serving.scratch_folders import scratch_folder
from tuning.messages import SuggesterOrder, TuningAnswer

_ENTRY = "tuning.suggester:start"
_GRACE_SECONDS = 5.0
# Online predictions come first.
_NICE = 5
# Bytes of a line, above what the largest answer takes.
_LINE_LIMIT = 1 << 26
_STDERR = 2
_DECODER: msgspec.json.Decoder[TuningAnswer] = msgspec.json.Decoder(TuningAnswer)


class SuggesterLost(Exception):
    """The process has ended, or hangs."""


class Suggester(Protocol):
    """A process that is ready for requests."""

    @property
    def has_ended(self) -> bool:
        """Whether it was seen to end, as one that is killed while it is idle."""

    async def ask(self, line: bytes, within: float) -> TuningAnswer:
        """Send a request; raises SuggesterLost without an answer `within` so many seconds."""


# Runs a process for the length of a block. Raises SuggesterLost if it does not become ready, OSError if it
# cannot be started.
ConnectSuggester = Callable[[], AbstractAsyncContextManager[Suggester]]


@dataclass(frozen=True, slots=True)
class SuggesterConnection:
    """A `Suggester` behind a socket."""

    child: RunningChild
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def has_ended(self) -> bool:
        return self.reader.at_eof() or self.reader.exception() is not None

    async def ask(self, line: bytes, within: float) -> TuningAnswer:
        try:
            async with asyncio.timeout(within):
                self.writer.write(line)
                await self.writer.drain()
                answer = await self.reader.readline()
            return _DECODER.decode(answer)
        except TimeoutError as error:
            self.child.process.kill()
            raise SuggesterLost(f"it did not answer within {within:g} s") from error
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise SuggesterLost(f"it has ended: {error}") from error


@dataclass(frozen=True, slots=True)
class SuggesterLauncher:
    """Starts processes, in forks of `pilot` or cold; their environment is the pilot's."""

    pool: NodePool
    pilot: PilotSpec
    start_seconds: float = 60.0

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncGenerator[SuggesterConnection]:
        with scratch_folder("suggestions") as folder:
            address = folder / "socket"
            async with self._run_process(address) as child:
                connection = await self._open_connection(child, address)
                try:
                    yield connection
                finally:
                    connection.writer.close()
                    await child.stop()

    @contextlib.asynccontextmanager
    async def _run_process(self, address: Path) -> AsyncGenerator[RunningChild]:
        order = SuggesterOrder(str(address), nice=_NICE)
        launch = LaunchSpec(_ENTRY, msgspec.to_builtins(order), self.pilot.environment)
        async with contextlib.AsyncExitStack() as running:
            child = await running.enter_async_context(
                self.pool.run_forked(self.pilot, launch, output=_STDERR, grace_seconds=_GRACE_SECONDS)
            )
            if child is None:
                child = await running.enter_async_context(
                    run_child(
                        module_command("tuning"),
                        environment=self.pilot.environment,
                        stdin=msgspec.json.encode(order),
                        grace_seconds=_GRACE_SECONDS,
                    )
                )
            yield child

    async def _open_connection(self, child: RunningChild, address: Path) -> SuggesterConnection:
        try:
            async with asyncio.timeout(self.start_seconds):
                if not await child.output.readline():
                    raise SuggesterLost("it ended while it started")
                streams = await asyncio.open_unix_connection(os.fspath(address), limit=_LINE_LIMIT)
                return SuggesterConnection(child, *streams)
        except TimeoutError as error:
            raise SuggesterLost(f"it was not ready within {self.start_seconds:g} s") from error
        except OSError as error:
            raise SuggesterLost(f"it cannot be reached: {error}") from error
