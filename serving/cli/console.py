"""Messages on standard error; control characters from other sources are escaped."""

from __future__ import annotations

import sys
from enum import StrEnum

from serving.logs.formatters import escape_lines


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


def _print_line(message: str) -> None:
    print(escape_lines(message), file=sys.stderr, flush=True)
