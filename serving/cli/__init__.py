"""The `pilotlight` command. Each group of commands has a module; `main` is the entry point."""

from __future__ import annotations

import sys

from serving.cli.app import build
from serving.cli.output import complain
from serving.errors import ServingError

_INTERRUPTED = 130


def main() -> None:
    """Run the command that was typed; errors are one sentence on standard error, never a traceback.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.
    """
    try:
        build()(standalone_mode=True)
    except ServingError as error:
        complain(error.message)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
