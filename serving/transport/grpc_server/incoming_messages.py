"""Messages on their way: they must come in time, and not too many long ones at once.

gRPC does not tell how much of a message is there. But it takes no more than a window of one that is not being
read, and short ones are there at once: so whatever has been arriving for long is taken for as long as may be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from serving.config import ServerSettings
from serving.errors import ClientTooSlow, ServingError, Unavailable

# Seconds between two looks, and those after which a message counts as a long one.
_CHECK_INTERVAL = _SLOW_AFTER = 1.0


class IncomingMessage(Protocol):
    """A call whose message is on its way."""

    def interrupt(self, error: ServingError) -> None:
        """It is waited for no longer."""


class IncomingMessages:
    """All that are on their way, the longest first. There is no timer while there are none."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], float]) -> None:
        self._seconds = settings.body_timeout
        self._bytes = settings.arriving_bytes
        self._max_slow = max(1, settings.arriving_bytes // settings.max_body_bytes)
        self._clock = clock
        self._started: dict[IncomingMessage, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: IncomingMessage) -> None:
        """A message begins."""
        self._started[call] = self._clock()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_INTERVAL, self._on_timer)

    def remove(self, call: IncomingMessage) -> None:
        """It is there, or will never be."""
        self._started.pop(call, None)

    def __len__(self) -> int:
        return len(self._started)

    def enforce_limits(self, now: float) -> None:
        """End what takes too long, and what has taken longest if there is too much."""
        long = [call for call, since in self._started.items() if now - since >= _SLOW_AFTER]
        for place, call in enumerate(long):
            if now - self._started[call] >= self._seconds:
                error: ServingError = ClientTooSlow(
                    f"The message was not there within {self._seconds:g} s (setting body_timeout)."
                )
            elif place < len(long) - self._max_slow:
                error = Unavailable(
                    f"Too many messages are arriving (setting arriving_bytes = {self._bytes}), and this one "
                    "has been arriving for longest.",
                    retry_after=1,
                )
            else:
                continue
            del self._started[call]
            call.interrupt(error)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self.enforce_limits(self._clock())
        finally:
            if self._started:
                self._timer = asyncio.get_running_loop().call_later(_CHECK_INTERVAL, self._on_timer)
