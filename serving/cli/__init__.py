"""The `pilotlight` command. Each group of commands has a module; `main` is the entry point."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from serving import config
from serving.cli import plain, server
from serving.cli.lines import complain
from serving.config import NodeConfig, ServeConfig
from serving.errors import ServingError

_FAILED = 1
_UNREACHABLE = 3
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that was typed; errors are one sentence on standard error, never a traceback.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server answers, 130 interrupted.
    """
    try:
        _run(sys.argv[1:] if arguments is None else arguments)
    except ServingError as error:
        from serving.cli.client import Unreachable  # noqa: PLC0415  start-up time

        complain(error.message)
        sys.exit(_UNREACHABLE if isinstance(error, Unreachable) else _FAILED)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _run(words: Sequence[str]) -> None:
    """Programs have their settings read plainly, if those were typed so; everything else is a command."""
    match words:
        case ["node", *rest] if typed := plain.read(rest, NodeConfig):
            sys.exit(server.node(server.node_settings(typed.settings, typed.file)))
        case ["serve", *rest] if typed := plain.read(rest, ServeConfig):
            sys.exit(server.serve(config.load_config(ServeConfig, typed.settings, typed.file)))
        case _:
            from serving.cli.app import build, command_tree  # noqa: PLC0415  start-up time
            from serving.cli.words import arrange  # noqa: PLC0415

            build()(arrange(words, command_tree()), standalone_mode=True)
