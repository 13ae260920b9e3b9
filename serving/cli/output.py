"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys


def complain(message: str) -> None:
    """An error, in one line."""
    print(f"ERROR: {message}", file=sys.stderr)
