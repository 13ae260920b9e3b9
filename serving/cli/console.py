"""Messages on standard error, with control characters from other sources escaped, and Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from enum import StrEnum

from serving.logs.formatters import escape_each_line


class Verbosity(StrEnum):
    """The lowest level of messages that are printed to standard error."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"
    NONE = "none"


_ORDER = tuple(Verbosity)


class _ConsoleSettings:
    """The settings of this process; `configure_console` changes them."""

    verbosity = Verbosity.WARNING
    progress = True


def configure_console(verbosity: Verbosity, *, progress: bool) -> None:
    """Set the lowest level that is printed; `progress`: notes are printed too."""
    _ConsoleSettings.verbosity, _ConsoleSettings.progress = verbosity, progress


def is_enabled(level: Verbosity) -> bool:
    return _ORDER.index(level) >= _ORDER.index(_ConsoleSettings.verbosity)


def print_note(message: str) -> None:
    if _ConsoleSettings.progress:
        _print_line(message)


def print_debug(message: str) -> None:
    if is_enabled(Verbosity.DEBUG):
        _print_line(f"DEBUG: {message}")


def print_warning(message: str) -> None:
    if is_enabled(Verbosity.WARNING):
        _print_line(f"WARNING: {message}")


def print_error(message: str) -> None:
    """Print an error, in one line."""
    if is_enabled(Verbosity.ERROR):
        _print_line(f"ERROR: {message}")


@contextlib.contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C, so that a command cleans up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_line(message: str) -> None:
    print(escape_each_line(message), file=sys.stderr, flush=True)
