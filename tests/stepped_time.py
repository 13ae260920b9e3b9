"""An event loop whose time goes on when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class SteppedLoop(asyncio.SelectorEventLoop):
    """Its clock stands still between calls of `advance`: do not wait for its timers in any other way."""

    now = 0.0

    def time(self) -> float:
        return self.now


async def advance(seconds: float) -> None:
    """Let the time of the running SteppedLoop go on, and what is due happen."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SteppedLoop)
    loop.now += seconds
    for _ in range(5):
        await asyncio.sleep(0)


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        runner.run(main)
