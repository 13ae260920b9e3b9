"""What processes print: every line logged, the last ones kept."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

_LINE_LIMIT = 1 << 16
_TAIL_LINES = 20


def _ignore_line(_: str) -> None:
    pass


class ProcessOutput:
    """The reading end of a process's output pipe; `tail` are its last lines. Takes the descriptor.

    `hear` is told of every line; it must not block or raise.
    """

    def __init__(self, fd: int, name: str, on_line: Callable[[str], None] = _ignore_line) -> None:
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._fd = fd
        self._name = name
        self._on_line = on_line

    async def read_lines(self) -> None:
        """Read and log until the last writer is gone, or until cancelled."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LINE_LIMIT)
        pipe = os.fdopen(self._fd, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while True:
                try:
                    line = await reader.readline()
                except ValueError:  # a line over the limit was thrown away
                    continue
                if not line:
                    return
                text = line.decode(errors="replace").rstrip()
                self.tail.append(text)
                logger.info("%s: %s", self._name, text)
                self._on_line(text)
        finally:
            transport.close()
