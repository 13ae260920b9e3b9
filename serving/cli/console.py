"""Lines for people: what others wrote moves no cursor, sets no colour and begins no line."""

from __future__ import annotations

import sys
from enum import StrEnum

from serving.logs.formatters import escape_lines


class Verbosity(StrEnum):
    """What is told on standard error besides what goes on: everything from here on."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"
    NONE = "none"


_ORDER = tuple(Verbosity)


class _ConsoleSettings:
    """What of this process's lines is told; `configure` changes it."""

    verbosity = Verbosity.WARNING
    progress = True


def configure_console(verbosity: Verbosity, *, progress: bool) -> None:
    """Choose what is told from now on; `progress` is whether notes are."""
    _ConsoleSettings.verbosity, _ConsoleSettings.progress = verbosity, progress


def is_enabled(level: Verbosity) -> bool:
    """Whether lines of a level are told."""
    return _ORDER.index(level) >= _ORDER.index(_ConsoleSettings.verbosity)


def print_note(message: str) -> None:
    """A line about what goes on."""
    if _ConsoleSettings.progress:
        _print_line(message)


def print_debug(message: str) -> None:
    """A line for who looks for a fault of ours."""
    if is_enabled(Verbosity.DEBUG):
        _print_line(f"DEBUG: {message}")


def print_warning(message: str) -> None:
    """What a user should know, though it went well."""
    if is_enabled(Verbosity.WARNING):
        _print_line(f"WARNING: {message}")


def print_error(message: str) -> None:
    """An error, in one line."""
    if is_enabled(Verbosity.ERROR):
        _print_line(f"ERROR: {message}")


def _print_line(message: str) -> None:
    print(escape_lines(message), file=sys.stderr, flush=True)
