"""The `pilotlight` command. Each group of commands has a module; `main` is the entry point."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from serving import config
from serving.cli import serve
from serving.cli.console import print_error
from serving.cli.flags import settings_parser
from serving.config import NodeConfig, ServeConfig
from serving.errors import ServingError

_FAILED = 1
_UNREACHABLE = 3
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; an error is one sentence on standard error, never a traceback.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server answers, 130 interrupted.
    """
    try:
        _run_command(sys.argv[1:] if arguments is None else arguments)
    except ServingError as error:
        from serving.cli.api_client import ServerUnreachable  # noqa: PLC0415  start-up time

        print_error(error.message)
        sys.exit(_UNREACHABLE if isinstance(error, ServerUnreachable) else _FAILED)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _run_command(words: Sequence[str]) -> None:
    """`serve` and `node` are parsed without typer where possible, which starts them faster."""
    match words:
        case ["node", *rest] if typed := settings_parser.parse_settings(rest, NodeConfig):
            sys.exit(serve.node(serve.load_node_settings(typed.settings, typed.file)))
        case ["serve", *rest] if typed := settings_parser.parse_settings(rest, ServeConfig):
            sys.exit(serve.serve(config.load_sourced_settings(ServeConfig, typed.settings, typed.file)))
        case _:
            from serving.cli.app import build, build_command_tree  # noqa: PLC0415  start-up time
            from serving.cli.flags.argument_order import reorder_arguments  # noqa: PLC0415

            build()(reorder_arguments(words, build_command_tree()), standalone_mode=True)
