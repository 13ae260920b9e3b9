"""Writes log records to Cloud Storage."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from serving.artifacts.storage import FileStore
from serving.logs.journal import JournalRecord, LogKind
from serving.logs.sinks.record_encoding import encode_line, group_by_folder, record_time

# What is collected is in memory, about three times.
_MAX_COLLECTED_BYTES = 64 << 20


class BucketSink:
    """Objects in a folder per day below a gs:// prefix, each written once; none is ever replaced.

    Repeated records are recognised by the name of their object.
    """

    def __init__(
        self, prefix: str, kind: LogKind, files: FileStore, *, rotate_bytes: int, rotate_seconds: float
    ) -> None:
        self.collect_bytes = min(rotate_bytes, _MAX_COLLECTED_BYTES)
        self.collect_seconds = rotate_seconds
        self._prefix = prefix.rstrip("/")
        self._kind = kind
        self._files = files

    def write(self, records: Sequence[JournalRecord], key: str) -> int:
        """Create an object for each day."""
        for folder, some in group_by_folder(records, self._kind):
            lines = b"".join([encode_line(record, self._kind) for record in some])
            self._create_object(f"{self._prefix}/{folder}/{record_time(some[0]):%H%M%S}-{key}", lines)
        return 0

    def _create_object(self, stem: str, lines: bytes) -> None:
        for number in itertools.count(1):
            uri = f"{stem}.jsonl" if number == 1 else f"{stem}-{number}.jsonl"
            if self._files.create_if_absent(uri, lines):
                return
            there = self._files.read(uri)
            if there.startswith(lines):
                return
            # The lines came before, and perhaps fewer of them; or the object is somebody else's.
            lines = lines.removeprefix(there)
