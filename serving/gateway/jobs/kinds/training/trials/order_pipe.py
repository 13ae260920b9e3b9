"""Sends orders to the supervisor of a tuning job."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from training.messages import TrialOrder


class OrderPipe:
    """The named pipe that the supervisor reads. Orders are small, and never wait."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, order: TrialOrder) -> None:
        """Raises OSError if nobody reads."""
        data = msgspec.json.encode(order) + b"\n"
        pipe = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if os.write(pipe, data) < len(data):
                raise OSError(f"{self._path} is full")
        finally:
            os.close(pipe)
