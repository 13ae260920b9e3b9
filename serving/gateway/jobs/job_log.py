"""The log of a job: the stderr of its processes, and notes of the server's own.

All calls block for a few milliseconds at most.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import BinaryIO

# A log of more bytes than the first is cut down to its end, about as many as the second.
_MAX_BYTES, _TRIMMED_BYTES = 4 << 20, 1 << 20
_LINE_BYTES = 4096


class JobLog:
    """A file that processes append to."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def open(self) -> BinaryIO:
        """Open the file for a process; creates the folder."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        return self._file.open("ab")

    def add_note(self, text: str) -> None:
        """Add a line of the server's own."""
        with self.open() as log:
            time = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
            log.write(f"{time} SERVER {text}\n".encode())

    def size(self) -> int:
        """In bytes."""
        try:
            return self._file.stat().st_size
        except FileNotFoundError:
            return 0

    def read_text(self) -> str:
        """Return the log, or the end of one that is far over its limit; "" while there is none."""
        try:
            with self._file.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 2 * _MAX_BYTES))
                return log.read(2 * _MAX_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return ""

    def read_tail(self, lines: int, *, since: int = 0) -> list[str]:
        """Return the last lines of those that begin at byte `since` or later; none while there is no log."""
        try:
            with self._file.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                # The log was trimmed meanwhile: all of it is new.
                since = since if since <= size else 0
                start = max(since, size - lines * _LINE_BYTES)
                log.seek(start)
                text = log.read(lines * _LINE_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return []
        found = text.splitlines()
        return (found[1:] if start > since and len(found) > 1 else found)[-lines:]

    def trim(self) -> None:
        """Cut off the beginning of a log that is too long; lines written meanwhile may be lost."""
        size = self.size()
        if size <= _MAX_BYTES:
            return
        with self._file.open("r+b") as log:
            log.seek(size - _TRIMMED_BYTES)
            rest = log.read()
            log.truncate(0)
        # Appended, as the process does, which continues behind it.
        with self.open() as log_end:
            log_end.write(b"[the beginning was cut off]\n" + rest[rest.find(b"\n") + 1 :])
