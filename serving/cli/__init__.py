"""The `pilotlight` command. Each group of commands has a module; `main` is the entry point."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from serving.cli.app import build
from serving.cli.client import Unreachable
from serving.cli.output import complain
from serving.errors import ServingError

_FAILED = 1
_UNREACHABLE = 3
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that was typed; errors are one sentence on standard error, never a traceback.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server answers, 130 interrupted.
    """
    try:
        build()(arguments, standalone_mode=True)
    except ServingError as error:
        complain(error.message)
        sys.exit(_UNREACHABLE if isinstance(error, Unreachable) else _FAILED)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
