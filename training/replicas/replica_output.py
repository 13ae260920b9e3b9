"""Cuts what a process prints into lines."""

from __future__ import annotations

import os
from collections.abc import Iterator

_READ_BYTES = 1 << 16
# A line is cut into pieces of so many bytes.
_LINE_BYTES = 1 << 16
# Reads that empty a pipe, unless somebody goes on writing to it.
_MOST_READS = 32


class LineReader:
    """The reading end of a pipe that does not block."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._rest = b""
        self.at_end = False

    def read_lines(self) -> list[str] | None:
        """The lines that one read completes, at the end what is left; None if there is nothing to read."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return None
        if not data:
            self.at_end = True
            lines, self._rest = [self._rest] if self._rest else [], b""
        else:
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) >= _LINE_BYTES:
                lines, self._rest = [*lines, self._rest], b""
        return [_decode_line(line) for line in lines]

    def drain(self) -> Iterator[list[str]]:
        """All that has been written so far."""
        for _ in range(_MOST_READS):
            if self.at_end or (lines := self.read_lines()) is None:
                return
            yield lines


def _decode_line(line: bytes) -> str:
    """Of what a progress bar has overwritten, only the last is left, as on a terminal."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
