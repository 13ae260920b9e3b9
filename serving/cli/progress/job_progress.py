"""Shows the progress of a batch prediction: a live line on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from serving.cli.commands.nodes import format_duration
from serving.cli.console import print_note

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Seconds between two lines where nothing but numbers has changed.
_LINE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """Records predicted and refused, and input bytes read of all; None stands for unknown.

    `rate` is in records per second.
    """

    state: str
    predictions: int = 0
    errors: int = 0
    bytes: int = 0
    bytes_total: int = 0
    rate: float | None = None
    seconds_left: float | None = None

    @property
    def records(self) -> int:
        return self.predictions + self.errors

    def __str__(self) -> str:
        parts = []
        if self.records:
            parts.append(f"{self.records:,} records")
        if self.rate:
            parts.append(f"{self.rate:,.0f} records/s")
        if self.errors:
            parts.append(f"{self.errors:,} errors")
        if self.seconds_left is not None:
            parts.append(f"{format_duration(self.seconds_left)} left")
        return f"{self.state}: {', '.join(parts)}" if parts else self.state


class ProgressDisplay(Protocol):
    def show(self, snapshot: ProgressSnapshot) -> None: ...

    def log(self, line: str) -> None: ...


@contextmanager
def open_progress_display(title: str) -> Iterator[ProgressDisplay]:
    """A live line with a bar where there is a terminal, else lines."""
    if not sys.stderr.isatty():
        print_note(f"{title} ...")
        yield _LineDisplay()
        return
    from rich.console import Console  # noqa: PLC0415  start-up time
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
        BarColumn(bar_width=12),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _BarDisplay(title, progress, progress.add_task(f"{title} ...", total=None))


class _LineDisplay:
    def __init__(self) -> None:
        self._state = ""
        self._shown = ""
        self._next = 0.0

    def show(self, snapshot: ProgressSnapshot) -> None:
        text, now = str(snapshot), time.monotonic()
        if snapshot.state != self._state or (text != self._shown and now >= self._next):
            self._state, self._shown, self._next = snapshot.state, text, now + _LINE_SECONDS
            print_note(text)

    def log(self, line: str) -> None:
        print_note(line)


class _BarDisplay:
    def __init__(self, title: str, progress: Progress, task: TaskID) -> None:
        self._title = title
        self._progress = progress
        self._task = task

    def show(self, snapshot: ProgressSnapshot) -> None:
        self._progress.update(
            self._task,
            description=f"{self._title} ... {snapshot}",
            total=snapshot.bytes_total or None,
            completed=snapshot.bytes,
            refresh=True,
        )

    def log(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, emoji=False)


def find_new_lines(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """The lines added to a log, from its last lines before and after."""
    for shared in range(min(len(before), len(after)), 0, -1):
        if list(before[-shared:]) == list(after[:shared]):
            return list(after[shared:])
    return list(after)
