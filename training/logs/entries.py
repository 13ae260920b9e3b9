"""The lines of a log, and the names of the files they are in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import msgspec

# The task of lines that the supervisor writes itself.
SERVICE_TASK = "service"
_NAME = re.compile(r"(\d+)\.([\w-]+)\.(\d+)\.(\d+)\.jsonl")


class LogEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line.

    `time` is RFC 3339, UTC, with microseconds. `id` grows with each line of the job.
    """

    time: str
    id: str
    severity: str
    task: str
    text: str
    trial: str = ""


class Segment(NamedTuple):
    """One file of a stream, by what its name says."""

    trial: int
    task: str
    attempt: int
    number: int

    @property
    def file_name(self) -> str:
        return f"{self.trial}.{self.task}.{self.attempt}.{self.number:06d}.jsonl"

    @property
    def stream(self) -> tuple[int, str, int]:
        return self[:3]


def list_segments(folder: Path) -> list[Segment]:
    """All segments in a folder, those of a stream in order; none if there is no such folder."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    found = filter(None, map(_NAME.fullmatch, names))
    return sorted(Segment(int(one[1]), one[2], int(one[3]), int(one[4])) for one in found)
