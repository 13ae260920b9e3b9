"""The metrics of jobs whose folders are in buckets: child processes read them, with a storage client."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from autoscaler.child_launcher import module_command, run_child
from autoscaler.supervision import Supervisor

logger = logging.getLogger(__name__)

_COMMAND = module_command("training.bucket_curves")
_GRACE_SECONDS = 1.0
# Folders that are followed at a time: each costs a process.
_MAX_FOLLOWED = 3

# `tuning.metrics.event_curves.Curves`.
Curves = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
_DECODER = msgspec.json.Decoder(dict[str, dict[str, list[tuple[float, float]]]])


@dataclass(slots=True)
class _Followed:
    """A folder that somebody has asked for at `asked_at`, and what is known of it."""

    asked_at: float
    curves: Curves = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


class BucketCurveReader:
    """Follows the folders that are asked for, until nobody has asked for `idle_seconds`.

    `environment` is that of the processes, `poll_seconds` the time between two of their looks.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        environment: Mapping[str, str],
        *,
        idle_seconds: float = 60.0,
        poll_seconds: float = 10.0,
    ) -> None:
        self._supervisor = supervisor
        self._environment = environment
        self._idle_seconds = idle_seconds
        self._poll_seconds = poll_seconds
        self._followed: dict[str, _Followed] = {}

    def read(self, folder: str) -> Curves:
        """What is known of a folder so far: the first time nothing."""
        now = time.monotonic()
        found = self._followed.get(folder)
        if found is None:
            self._forget_oldest()
            found = self._followed[folder] = _Followed(now)
            found.task = self._supervisor.start_task(
                "metric-curves", self._follow(folder, found), title=folder
            )
        found.asked_at = now
        return found.curves

    def stop(self) -> None:
        """End all processes."""
        for followed in self._followed.values():
            if followed.task is not None:
                followed.task.cancel()

    def _forget_oldest(self) -> None:
        while len(self._followed) >= _MAX_FOLLOWED:
            name = min(self._followed, key=lambda one: self._followed[one].asked_at)
            task = self._followed.pop(name).task
            if task is not None:
                task.cancel()

    async def _follow(self, folder: str, followed: _Followed) -> None:
        request = msgspec.json.encode({"folder": folder, "poll_seconds": self._poll_seconds})
        try:
            async with run_child(
                _COMMAND, environment=self._environment, stdin=request, grace_seconds=_GRACE_SECONDS
            ) as child:
                while time.monotonic() < followed.asked_at + self._idle_seconds:
                    line = await self._read_line(child.output)
                    if line == b"":
                        return
                    if line is not None:
                        followed.curves = _DECODER.decode(line)
                await child.stop()
        finally:
            if self._followed.get(folder) is followed:
                del self._followed[folder]

    async def _read_line(self, output: asyncio.StreamReader) -> bytes | None:
        """The next line; None if there is none soon, or if it was too long, b"" at the end."""
        try:
            async with asyncio.timeout(self._poll_seconds):
                return await output.readline()
        except (TimeoutError, ValueError):
            return None
