"""Goes on with what only reads, over a restart of the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from serving.cli.api_client import ServerUnreachable
from serving.cli.console import print_note
from serving.errors import Unavailable

T = TypeVar("T")

_PATIENCE_SECONDS = 300.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 3.0


class Reconnector:
    """Repeats a call while the server cannot be reached or is not ready, for at most `patience` seconds."""

    def __init__(
        self,
        *,
        patience: float = _PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._patience = patience
        self._clock = clock
        self._sleep = sleep

    def call(self, read: Callable[[], T]) -> T:
        """What `read` returns. Raises what it raised last when patience is over."""
        began, pause = self._clock(), _FIRST_PAUSE
        is_told = False
        while True:
            try:
                found = read()
            except (ServerUnreachable, Unavailable) as error:
                if self._clock() - began >= self._patience:
                    raise
                if not is_told:
                    print_note(f"{error} The job may go on; waiting for the server.")
                    is_told = True
                self._sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if is_told:
                print_note("The server answers again.")
            return found
