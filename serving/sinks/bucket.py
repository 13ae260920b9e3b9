"""Logs in Cloud Storage."""

from __future__ import annotations

from collections.abc import Sequence

from serving.journal import Kind, Record
from serving.sinks.rows import line, moment, runs
from serving.storage import Files

# What is collected is in memory, about three times.
_MOST_BYTES = 64 << 20


class BucketSink:
    """Objects in a folder per day below a gs:// prefix, each written once, whole.

    Records that come again replace the object they came in: it has the same name.
    """

    def __init__(
        self, prefix: str, kind: Kind, files: Files, *, rotate_bytes: int, rotate_seconds: float
    ) -> None:
        self.collect_bytes = min(rotate_bytes, _MOST_BYTES)
        self.collect_seconds = rotate_seconds
        self._prefix = prefix.rstrip("/")
        self._kind = kind
        self._files = files

    def write(self, records: Sequence[Record], key: str) -> int:
        """Create an object for each day."""
        for folder, some in runs(records, self._kind):
            name = f"{folder}/{moment(some[0]):%H%M%S}-{key}.jsonl"
            self._files.write(
                f"{self._prefix}/{name}", b"".join([line(record, self._kind) for record in some])
            )
        return 0
