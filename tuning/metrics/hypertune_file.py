"""Reads the file in which `hypertune` reports metrics: one JSON object per line.

The package truncates the file at each report and writes its latest 100 lines anew, so a reader may find it
empty or with half a line; others append to it. A line has the tag with its value as text, and four or five
more keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tuning.metrics.metric_curve import MetricCurve, MetricValue, SeenTag, open_regular_file

_OTHER_KEYS = frozenset({"global_step", "timestamp", "trial", "checkpoint_path"})
# A longer line is none of the package's. Lines of a file that is rewritten are compared with those before.
_MAX_LINE_BYTES, _MAX_KNOWN_LINES = 1 << 16, 1000
_MAX_TAGS = 100
# What one look may read, and the last one: a sparse file has any size.
_BUDGET_BYTES, _LAST_BUDGET_BYTES = 8 << 20, 256 << 20


class HypertuneFile:
    """Follows one file. Values of `tag` go to `curve`."""

    def __init__(self, path: Path, tag: str) -> None:
        self.curve = MetricCurve()
        self._path = path
        self._tag = tag
        self._offset = 0
        # The line that ends at the offset, and the last lines that were read.
        self._last_line = b""
        self._known: dict[bytes, None] = {}
        self._seen: dict[str, float] = {}

    @property
    def seen_tags(self) -> list[SeenTag]:
        return [SeenTag(tag, value, str(self._path)) for tag, value in self._seen.items()]

    def read(self, *, at_end: bool = False) -> None:
        """Read what is new, a bounded part of it.

        `at_end`: nobody writes any more, so more is read, and a last line without its end counts too.
        """
        try:
            file = open_regular_file(self._path)
        except OSError:
            return
        with file:
            self._seek_new_lines(file)
            self.curve.add(self._read_values(file, at_end=at_end))

    def _seek_new_lines(self, file: BinaryIO) -> None:
        """Go on where the last reading ended; at the start if what it had read is not there any more."""
        start = self._offset - len(self._last_line)
        file.seek(start)
        if file.read(len(self._last_line)) != self._last_line:
            self._offset, self._last_line = 0, b""
            file.seek(0)

    def _read_values(self, file: BinaryIO, *, at_end: bool) -> Iterator[MetricValue]:
        most = self._offset + (_LAST_BUDGET_BYTES if at_end else _BUDGET_BYTES)
        while self._offset < most and (line := file.readline(_MAX_LINE_BYTES)):
            if not line.endswith(b"\n") and not (at_end or len(line) == _MAX_LINE_BYTES):
                return
            self._offset += len(line)
            self._last_line = line
            if line in self._known:
                continue
            self._remember(line)
            report = _parse_report(line)
            self._note_tags(report)
            if self._tag in report:
                step, time = (_parse_number(report.get(key)) for key in ("global_step", "timestamp"))
                value = _parse_number(report[self._tag])
                if value is not None:
                    yield MetricValue(_to_step(step), value, time or 0.0)

    def _remember(self, line: bytes) -> None:
        self._known[line] = None
        if len(self._known) > _MAX_KNOWN_LINES:
            del self._known[next(iter(self._known))]

    def _note_tags(self, report: dict[str, Any]) -> None:
        for tag in report.keys() - _OTHER_KEYS:
            value = _parse_number(report[tag])
            if value is not None and (tag in self._seen or len(self._seen) < _MAX_TAGS):
                self._seen[tag] = value


def _parse_report(line: bytes) -> dict[str, Any]:
    """{} for what is no report."""
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def _parse_number(value: Any) -> float | None:
    """Numbers are written as texts, among them "nan" and "-inf"."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _to_step(step: float | None) -> int:
    return int(step) if step is not None and abs(step) < 2**63 else 0
