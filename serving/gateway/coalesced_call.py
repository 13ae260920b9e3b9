"""One call for all who want its result at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager


class CoalescedCall:
    """All who ask before `work` begins share one call of it; it begins when `hold_turn` is entered.

    It runs in a task of its own, which goes on when those who wait for it are cancelled.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[None]],
        hold_turn: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self._work = work
        self._hold_turn = hold_turn
        self._waiting: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Raises what `work` and `hold_turn` raise."""
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._run())
            # Those who wait get it; asyncio would log the error of a call that all have stopped waiting for.
            self._waiting.add_done_callback(_mark_as_retrieved)
        await asyncio.shield(self._waiting)

    async def _run(self) -> None:
        try:
            async with self._hold_turn():
                self._waiting = None
                await self._work()
        finally:
            if self._waiting is asyncio.current_task():
                self._waiting = None


def _mark_as_retrieved(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
