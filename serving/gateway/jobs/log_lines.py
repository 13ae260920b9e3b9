"""The lines of a job's log, as entries of Cloud Logging have them."""

from __future__ import annotations

import datetime
import io
import itertools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

SEVERITIES = (
    "DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY",
)  # fmt: skip
SERVICE_TASK, WORKER_TASK = "service", "worker"
# More than a log has lines.
_NUMBERS_PER_PLACE = 10**9
# Of one line, in characters.
_MAX_TEXT_LENGTH = 64 << 10
# Only the last lines of a log are read: a job may write as many as will fit.
_MAX_LINES = 200_000
# A line begins with its local time and its severity; others continue the one before.
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:,(\d{3}))? ([A-Z]+) (.*)")
# After so many lines the thread releases the interpreter to others.
_YIELD_EVERY_LINES, _YIELD_SECONDS = 1000, 0.0005


@dataclass(frozen=True, slots=True)
class JobLogLine:
    """One line of a job's log.

    `time` is in microseconds since the epoch, `number` its place among those of the same time.
    """

    time: int
    number: int
    severity: str
    task: str
    text: str
    trial: str = ""

    @property
    def insert_id(self) -> str:
        """An id among the lines of the same time; it grows with `number`."""
        return f"{self.number:020d}"

    @property
    def timestamp(self) -> str:
        """In RFC 3339."""
        seconds, micros = divmod(self.time, 1_000_000)
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{micros:06d}Z"


def parse_log_lines(
    text: str, begin: int, default_task: str = WORKER_TASK, *, place: int = 0
) -> Iterator[JobLogLine]:
    """The last lines of a log, in order; `begin` is the time of those before the first that has one.

    Times never decrease: where clocks do, lines have the latest time so far. `place` distinguishes the parts
    of a log that several servers have written: no two lines of them have the same time and number.
    """
    first = place * _NUMBERS_PER_PLACE
    moment, number, severity, task = begin, first - 1, SEVERITIES[0], default_task
    ends = text.count("\n") + text.count("\r") - text.count("\r\n")
    lines = itertools.islice(io.StringIO(text, newline=None), max(0, ends - _MAX_LINES), None)
    for count, ended_line in enumerate(lines, 1):
        line = ended_line.removesuffix("\n")
        if count % _YIELD_EVERY_LINES == 0:
            time.sleep(_YIELD_SECONDS)
        said, found = line, _LINE.fullmatch(line)
        line_time = None if found is None else _parse_microseconds(found[1], found[2])
        if found is not None and line_time is not None:
            word, said = found[3], found[4]
            if line_time > moment:
                moment, number = line_time, first - 1
            severity = word if word in SEVERITIES else "INFO"
            task = SERVICE_TASK if word == "SERVER" else default_task
        number += 1
        yield JobLogLine(moment, number, severity, task, said[:_MAX_TEXT_LENGTH])


def _parse_microseconds(text: str, millis: str | None) -> int | None:
    try:
        local = datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S")
        return (int(local.timestamp()) * 1000 + int(millis or 0)) * 1000
    except (ValueError, OverflowError, OSError):
        return None
