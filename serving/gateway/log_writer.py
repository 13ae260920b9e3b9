"""Keeps the log writer running: a process of its own, so that the gateway needs no storage client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Mapping

from serving.sinks.places import Options

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LAST_PAUSE = 0.5, 30.0
# A writer that lived so long, in seconds, did not die of how it was started.
_LIVED = 60.0
# What it takes over its last records and a bit.
_END_SECONDS = 10.0


class LogWriter:
    """The process: started when it is needed, started again when it dies, until `close`."""

    def __init__(self, options: Options, environment: Mapping[str, str]) -> None:
        self._options = options
        self._environment = environment
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._over = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """That of the process, None while there is none."""
        return None if self._process is None else self._process.pid

    def need(self) -> None:
        """See that it runs."""
        if self._task is None and not self._over.is_set():
            self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Let it deliver what it can within seconds, and end."""
        self._over.set()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await self._task

    async def _keep(self) -> None:
        pause, clock = _FIRST_PAUSE, asyncio.get_running_loop().time
        while not self._over.is_set():
            started = clock()
            try:
                code = await self._run()
            except OSError as error:
                code = error.errno or 1
                logger.error("the log writer cannot be started: %s", error)
            if self._over.is_set():
                return
            logger.error("the log writer ended (exit code %s) and is started again; nothing is lost", code)
            if clock() - started > _LIVED:
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(_LAST_PAUSE, pause * 2)

    async def _run(self) -> int:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "serving.sinks", self._options.to_argument(),
            stdin=asyncio.subprocess.PIPE,
            env=dict(self._environment),
            start_new_session=True,
        )  # fmt: skip
        if self._over.is_set() and self._process.stdin is not None:
            self._process.stdin.close()
        try:
            return await self._process.wait()
        finally:
            self._process = None
