"""Keeps the log writer running, a child process, so that the gateway needs no storage client."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections.abc import Mapping

from autoscaler.processes import ChildProcess, spawn_child
from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.logs.sinks.writer_options import LogWriterOptions

logger = logging.getLogger(__name__)

_MIN_PAUSE, _MAX_PAUSE = 0.5, 30.0
# The pause is reset after a writer lived this many seconds.
_STABLE_AFTER = 60.0
# Seconds for its last records.
_STOP_TIMEOUT = 10.0


class LogWriterProcess:
    """The process: started on demand and restarted when it dies, until `close`."""

    def __init__(
        self, options: LogWriterOptions, environment: Mapping[str, str], supervisor: Supervisor
    ) -> None:
        self._options = options
        self._environment = environment
        self._supervisor = supervisor
        self._loop: BackgroundLoop | None = None
        self._process: ChildProcess | None = None
        # It has no lifeline but this: after the server's end, in whatever way, it delivers the last records.
        self._input: int | None = None
        self._is_closing = False
        self._pause = 0.0

    @property
    def pid(self) -> int | None:
        """None while there is no process."""
        return None if self._process is None else self._process.pid

    def ensure_started(self) -> None:
        if self._loop is None and not self._is_closing:
            self._loop = self._supervisor.start_loop(
                "log-writer", self._wait_pause, self._run_once, within=math.inf
            )

    async def close(self) -> None:
        """Let the process deliver what it can within seconds, then stop it."""
        self._is_closing = True
        self._close_input()
        if self._loop is not None:
            await self._loop.stop(_STOP_TIMEOUT)

    async def _wait_pause(self) -> None:
        await asyncio.sleep(self._pause)

    async def _run_once(self) -> None:
        clock = asyncio.get_running_loop().time
        started, self._pause = clock(), max(_MIN_PAUSE, min(_MAX_PAUSE, self._pause * 2))
        code = await self._run_process()
        if self._is_closing:
            return
        logger.error("the log writer ended (exit code %s) and is started again; nothing is lost", code)
        if clock() - started > _STABLE_AFTER:
            self._pause = _MIN_PAUSE

    async def _run_process(self) -> int | None:
        self._process, self._input = self._spawn()
        try:
            return await self._process.wait()
        except BaseException:
            self._process.kill()  # a restart must not find another writer
            raise
        finally:
            self._process = None
            self._close_input()

    def _spawn(self) -> tuple[ChildProcess, int]:
        """The process, and the writing end of its input; raises OSError."""
        stdin, writing = os.pipe()
        try:
            command = (sys.executable, "-m", "serving.logs.sinks", self._options.to_argument())
            return spawn_child(command, environment=self._environment, stdin=stdin), writing
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(stdin)

    def _close_input(self) -> None:
        """Ask the process to deliver what it can, and to end."""
        if self._input is not None:
            os.close(self._input)
            self._input = None
