"""Slots for child processes that answer requests: each takes a second of a processor, and its memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from serving.errors import ResourceExhausted

_RETRY_AFTER = 1.0


class ProcessSlots:
    """At most so many `processes` of one class of work run at a time, and so many callers (`queue`) wait."""

    def __init__(self, name: str, processes: int, *, queue: int) -> None:
        self._name = name
        self._free = asyncio.Semaphore(processes)
        self._most = processes + queue
        self._taken = 0

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncGenerator[None]:
        """Have a slot for the length of the block. Raises ResourceExhausted when too many callers wait."""
        if self._taken >= self._most:
            raise ResourceExhausted(
                f"Too many requests of this kind ({self._name}) wait already; try again.",
                retry_after=_RETRY_AFTER,
            )
        self._taken += 1
        try:
            async with self._free:
                yield
        finally:
            self._taken -= 1
