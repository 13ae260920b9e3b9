"""Lines for people: what others wrote moves no cursor, sets no colour and begins no line."""

from __future__ import annotations

import sys

from serving.log_lines import printable_lines


def note(message: str) -> None:
    """A line about what goes on."""
    print(printable_lines(message), file=sys.stderr, flush=True)


def complain(message: str) -> None:
    """An error, in one line."""
    print(f"ERROR: {printable_lines(message)}", file=sys.stderr)
