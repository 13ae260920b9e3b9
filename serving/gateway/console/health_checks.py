"""The checks of `pilotlight doctor` in a process of their own, and whether changes are refused."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from autoscaler.child_launcher import module_command, run_child
from serving.config import ServeConfig, to_environment
from serving.errors import ServingError

logger = logging.getLogger(__name__)

_COMMAND: Final = module_command("serving.cli.health")
# All frameworks are imported, some of them twice, on a machine that also serves.
_MAX_SECONDS: Final = 180.0
_GRACE_SECONDS: Final = 2.0
_WRITE_CHECK_SECONDS: Final = 3.0


class HealthResult(msgspec.Struct, frozen=True):
    """`level` is ok, warn or fail; `advice` is what to do about it."""

    check: str
    level: str
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What a run has found so far; `started` is in seconds since the epoch, None before the first run."""

    results: tuple[HealthResult, ...] = ()
    started: float | None = None
    is_running: bool = False
    trouble: str = ""


class WriteCheck:
    """Whether the server refuses changes, found out while pages are open: in the background, now and then.

    `check` raises Unavailable while changes are refused.
    """

    def __init__(
        self, check: Callable[[], Awaitable[None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._check = check
        self._clock = clock
        self._checked = -math.inf
        self._run: asyncio.Task[None] | None = None
        self._trouble = ""

    def read_trouble(self) -> str:
        """Why changes were refused when it was last looked at, "" if they were not."""
        is_running = self._run is not None and not self._run.done()
        if not is_running and self._clock() - self._checked >= _WRITE_CHECK_SECONDS:
            self._checked = self._clock()
            self._run = asyncio.create_task(self._find_trouble())
        return self._trouble

    async def _find_trouble(self) -> None:
        try:
            await self._check()
        except ServingError as error:
            self._trouble = error.message
        except OSError as error:
            self._trouble = f"The state cannot be written: {error.strerror}."
        else:
            self._trouble = ""


class HealthCheckRunner:
    """`environment` is that of child processes; the checks get the settings that are in force."""

    def __init__(
        self,
        config: ServeConfig,
        environment: Mapping[str, str],
        *,
        command: Sequence[str] = _COMMAND,
        max_seconds: float = _MAX_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._environment = {**environment, **to_environment(config)}
        self._command = command
        self._max_seconds = max_seconds
        self._now = now
        self._run: asyncio.Task[None] | None = None
        self.report = HealthReport()

    def start(self, *, quick: bool) -> None:
        """Begin a run, unless there is one. `quick`: import no framework."""
        if self.report.is_running:
            return
        self.report = HealthReport(started=self._now(), is_running=True)
        self._run = asyncio.create_task(self._run_checks([*self._command, *(["--quick"] if quick else [])]))

    async def _run_checks(self, command: Sequence[str]) -> None:
        trouble = ""
        try:
            async with asyncio.timeout(self._max_seconds):
                await self._run_check_process(command)
        except TimeoutError:
            trouble = f"The checks were ended after {self._max_seconds:.0f} s; those that are missing hang."
        except (OSError, ValueError) as error:
            logger.warning("the checks of the doctor cannot be run: %s", error)
            trouble = f"The checks cannot be run: {error}. `pilotlight doctor` may say more."
        finally:
            self.report = replace(self.report, is_running=False, trouble=trouble)

    async def _run_check_process(self, command: Sequence[str]) -> None:
        """Raises OSError, ValueError."""
        async with run_child(
            command, environment=self._environment, stdin=b"", grace_seconds=_GRACE_SECONDS
        ) as child:
            while line := await child.output.readline():
                result = msgspec.json.decode(line, type=HealthResult)
                self.report = replace(self.report, results=(*self.report.results, result))
            if (code := await child.wait_until_gone()) != 0:
                raise OSError(f"their process ended with exit code {code}")
