"""Single lines on standard error."""

from __future__ import annotations

import sys


def note(message: str) -> None:
    """A line about what goes on."""
    print(message, file=sys.stderr, flush=True)


def complain(message: str) -> None:
    """An error, in one line."""
    print(f"ERROR: {message}", file=sys.stderr)
