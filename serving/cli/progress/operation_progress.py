"""Waits for operations and shows their progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from serving.cli.api_client import ApiClient, ServerUnreachable, parse_rpc_status
from serving.cli.console import print_note, print_warning

PhaseCallback = Callable[[str], None]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


def wait_until_done(client: ApiClient, operation: dict[str, Any], title: str) -> Any:
    """The response of the operation once it is done; its warnings are printed.

    Raises the error it ends with, as `parse_rpc_status` makes it.
    """
    if not operation.get("done"):
        operation = _poll_operation(client, operation["name"], title)
    for warning in operation.get("metadata", {}).get("warnings", ()):
        print_warning(warning)
    if "error" in operation:
        raise parse_rpc_status(operation["error"])
    return operation.get("response", {})


def _poll_operation(client: ApiClient, name: str, title: str) -> dict[str, Any]:
    pause = _FIRST_PAUSE
    try:
        with _show_progress(title) as report:
            while True:
                operation = client.call("GET", name)
                report(operation.get("metadata", {}).get("phase", ""))
                if operation.get("done"):
                    return operation
                time.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
    except (KeyboardInterrupt, ServerUnreachable):
        print_note(
            f"The operation goes on. To follow it: pilotlight operations wait {name.rpartition('/')[2]}"
        )
        raise


@contextmanager
def _show_progress(title: str) -> Iterator[PhaseCallback]:
    """A live line where there is a terminal, else one line per phase."""
    with _show_spinner(title) if sys.stderr.isatty() else _show_lines(title) as report:
        yield report


@contextmanager
def _show_spinner(title: str) -> Iterator[PhaseCallback]:
    from rich.console import Console  # noqa: PLC0415  start-up time
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{title} ...")
        yield lambda phase: progress.update(task, description=f"{title} ... {phase}", refresh=True)


@contextmanager
def _show_lines(title: str) -> Iterator[PhaseCallback]:
    start = time.monotonic()
    shown = ""
    print_note(f"{title} ...")

    def report_phase(phase: str) -> None:
        nonlocal shown
        if phase and phase != shown:
            shown = phase
            print_note(f"{phase} (after {time.monotonic() - start:.1f} s)")

    yield report_phase
