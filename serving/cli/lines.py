"""Lines for people: what others wrote moves no cursor, sets no colour and begins no line."""

from __future__ import annotations

import sys
from enum import StrEnum

from serving.log_lines import escape_lines


class Verbosity(StrEnum):
    """What is told on standard error besides what goes on: everything from here on."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"
    NONE = "none"


_ORDER = tuple(Verbosity)


class _Told:
    """What of this process's lines is told; `configure` changes it."""

    verbosity = Verbosity.WARNING
    progress = True


def configure(verbosity: Verbosity, *, progress: bool) -> None:
    """Choose what is told from now on; `progress` is whether notes are."""
    _Told.verbosity, _Told.progress = verbosity, progress


def is_told(level: Verbosity) -> bool:
    """Whether lines of a level are told."""
    return _ORDER.index(level) >= _ORDER.index(_Told.verbosity)


def note(message: str) -> None:
    """A line about what goes on."""
    if _Told.progress:
        _print(message)


def debug(message: str) -> None:
    """A line for who looks for a fault of ours."""
    if is_told(Verbosity.DEBUG):
        _print(f"DEBUG: {message}")


def warn(message: str) -> None:
    """What a user should know, though it went well."""
    if is_told(Verbosity.WARNING):
        _print(f"WARNING: {message}")


def complain(message: str) -> None:
    """An error, in one line."""
    if is_told(Verbosity.ERROR):
        _print(f"ERROR: {message}")


def _print(message: str) -> None:
    print(escape_lines(message), file=sys.stderr, flush=True)
