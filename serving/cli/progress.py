"""Waiting for operations, and telling meanwhile what they are at."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from serving.cli.client import Client, Unreachable, rpc_error
from serving.cli.lines import note, warn

Report = Callable[[str], None]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


def wait(client: Client, operation: dict[str, Any], title: str) -> Any:
    """What the operation answers once it is done; its warnings are printed.

    Raises the error it ends with, as `rpc_error` makes it.
    """
    if not operation.get("done"):
        operation = _follow(client, operation["name"], title)
    for warning in operation.get("metadata", {}).get("warnings", ()):
        warn(warning)
    if "error" in operation:
        raise rpc_error(operation["error"])
    return operation.get("response", {})


def _follow(client: Client, name: str, title: str) -> dict[str, Any]:
    """The operation once it is done."""
    pause = _FIRST_PAUSE
    try:
        with _progress(title) as report:
            while True:
                operation = client.call("GET", name)
                report(operation.get("metadata", {}).get("phase", ""))
                if operation.get("done"):
                    return operation
                time.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
    except (KeyboardInterrupt, Unreachable):
        note(f"The operation goes on. To follow it: pilotlight operations wait {name.rpartition('/')[2]}")
        raise


@contextmanager
def _progress(title: str) -> Iterator[Report]:
    """A live line where there is a terminal, else one line per phase."""
    with _live(title) if sys.stderr.isatty() else _plain(title) as report:
        yield report


@contextmanager
def _live(title: str) -> Iterator[Report]:
    from rich.console import Console  # noqa: PLC0415  start-up time
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{title} ...")
        yield lambda phase: progress.update(task, description=f"{title} ... {phase}", refresh=True)


@contextmanager
def _plain(title: str) -> Iterator[Report]:
    start = time.monotonic()
    shown = ""
    note(f"{title} ...")

    def report(phase: str) -> None:
        nonlocal shown
        if phase and phase != shown:
            shown = phase
            note(f"{phase} (after {time.monotonic() - start:.1f} s)")

    yield report
