"""Bounds the time and number of messages being received.

gRPC does not tell how much of a message has arrived. But it takes no more than a window of one that is not
being read, and short ones arrive at once: so a message that has been arriving for long counts as one of the
greatest size allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from serving.config import ServerSettings
from serving.errors import ClientTooSlow, ServingError, Unavailable

# Seconds between two checks, and those after which a message counts as slow.
_CHECK_INTERVAL = _SLOW_AFTER = 1.0


class IncomingMessage(Protocol):
    """A message that is being received."""

    def interrupt(self, error: ServingError) -> None:
        """Stop waiting for it; the call fails with the error."""


class IncomingMessages:
    """All messages being received, the oldest first. No timer runs while there are none."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], float]) -> None:
        self._seconds = settings.body_timeout
        self._bytes = settings.arriving_bytes
        self._max_slow = max(1, settings.arriving_bytes // settings.max_body_bytes)
        self._clock = clock
        self._started: dict[IncomingMessage, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: IncomingMessage) -> None:
        self._started[call] = self._clock()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_INTERVAL, self._on_timer)

    def remove(self, call: IncomingMessage) -> None:
        """The message has arrived, or never will."""
        self._started.pop(call, None)

    def __len__(self) -> int:
        return len(self._started)

    def enforce_limits(self, now: float) -> None:
        """Interrupt those that take too long, and the oldest if there are too many slow ones."""
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
