"""The log writer, a process of its own: `python -m serving.sinks`.

Reads JSON lines {"address": ..., "row": {...}} on standard input, writes the rows as JSON lines to where
the address says, and tells on standard output how many: {"written": n, "dropped": n}. It ends when its
input does. The gateway talks to it so that it needs no storage client and never waits for a disk.

Adding a kind of sink: a class with `write`, and its line in `make_sink`.
"""

from __future__ import annotations

import datetime
import logging
import queue
import signal
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Protocol

import orjson

from serving.errors import ServingError
from serving.storage import Files

logger = logging.getLogger(__name__)

# An object in a bucket per batch: rather few large ones.
_BUCKET_SECONDS = 10.0
_BUCKET_BYTES = 8 << 20
_FILE_SECONDS = 0.2
# Past this many rows in hand no more are read: the gateway's queue fills, and it knows how to drop.
_ROWS_IN_HAND = 1024


class Sink(Protocol):
    """Somewhere rows go. `seconds` and `size` say how much is collected before it is written."""

    seconds: float
    size: int

    def write(self, lines: list[bytes]) -> None:
        """Write these lines, each ending in a newline. Raises ServingError or OSError."""


class FolderSink:
    """One file per day in a folder."""

    seconds = _FILE_SECONDS
    size = 1 << 20

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, lines: list[bytes]) -> None:
        """Append to today's file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{_now():%Y-%m-%d}.jsonl").open("ab") as file:
            file.write(b"".join(lines))


class BucketSink:
    """One object per batch, in a folder per day under a gs:// prefix."""

    seconds = _BUCKET_SECONDS
    size = _BUCKET_BYTES

    def __init__(self, prefix: str, files: Files) -> None:
        self._prefix = prefix.rstrip("/")
        self._files = files

    def write(self, lines: list[bytes]) -> None:
        """Create one object."""
        name = f"{_now():%Y-%m-%d/%H%M%S}-{uuid.uuid4().hex[:8]}.jsonl"
        self._files.write(f"{self._prefix}/{name}", b"".join(lines))


def make_sink(address: str) -> Sink:
    """The sink an address names."""
    if address.startswith("gs://"):
        return BucketSink(address, Files())
    return FolderSink(Path(address))


class Writer:
    """Collects rows per address and writes each batch when it is old or large enough."""

    def __init__(self) -> None:
        self._sinks: dict[str, Sink] = {}
        self._batches: dict[str, list[bytes]] = {}
        self._sizes: dict[str, int] = {}
        self._due: dict[str, float] = {}

    def add(self, address: str, line: bytes, now: float) -> None:
        """Take one row; `now` in seconds on any clock."""
        if address not in self._sinks:
            self._sinks[address] = make_sink(address)
        batch = self._batches.setdefault(address, [])
        if not batch:
            self._due[address] = now + self._sinks[address].seconds
            self._sizes[address] = 0
        batch.append(line)
        self._sizes[address] += len(line)
        if self._sizes[address] >= self._sinks[address].size:
            self._due[address] = now

    def next_due(self) -> float | None:
        """When the next batch is due, None when there is none."""
        return min(self._due.values(), default=None)

    def flush(self, now: float = float("inf")) -> tuple[int, int]:
        """Write what is due; returns how many rows were written and how many dropped."""
        written = dropped = 0
        for address in [address for address, due in self._due.items() if due <= now]:
            lines = self._batches.pop(address)
            del self._due[address]
            try:
                self._sinks[address].write(lines)
                written += len(lines)
            except (ServingError, OSError) as error:
                logger.error("%d log records for %s are lost: %s", len(lines), address, error)
                dropped += len(lines)
        return written, dropped


def main() -> None:
    """Write until standard input ends."""
    # The server ends us by closing our input, after it has handed over the last rows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="log writer: %(levelname)s %(message)s")
    lines: queue.Queue[bytes] = queue.Queue(_ROWS_IN_HAND)
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    writer = Writer()
    while True:
        due = writer.next_due()
        try:
            line = lines.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
        except queue.Empty:
            _tell(*writer.flush(time.monotonic()))
            continue
        if not line:
            _tell(*writer.flush())
            return
        record = orjson.loads(line)
        writer.add(record["address"], orjson.dumps(record["row"]) + b"\n", time.monotonic())
        if (due := writer.next_due()) is not None and due <= time.monotonic():
            _tell(*writer.flush(time.monotonic()))


def _read(lines: queue.Queue[bytes]) -> None:
    for line in sys.stdin.buffer:
        lines.put(line)
    lines.put(b"")


def _tell(written: int, dropped: int) -> None:
    sys.stdout.buffer.write(orjson.dumps({"written": written, "dropped": dropped}) + b"\n")
    sys.stdout.buffer.flush()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


if __name__ == "__main__":
    main()
