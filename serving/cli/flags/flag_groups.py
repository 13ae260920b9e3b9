"""Turns a command function into the flags of a command.

A parameter that is a dataclass stands for a group of flags, one per field, so that commands share them
without repeating them. `ApiClient` stands for the flags that select the server.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from serving import config
from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput
from serving.cli.console import Verbosity, configure_console, print_warning
from serving.cli.flags.common_flags import parse_file_path, read_token_file
from serving.cli.flags.settings_flags import build_flags
from serving.config import ClientConfig

_REGION = inspect.Parameter(
    "region",
    inspect.Parameter.KEYWORD_ONLY,
    default="",
    annotation=Annotated[
        str,
        typer.Option(
            help="Accepted as gcloud has it; one server is every region. Studies are kept by region.",
            show_default=False,
        ),
    ],
)


_TOKEN_FILE = inspect.Parameter(
    "access_token_file",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            parser=parse_file_path,
            metavar="FILE",
            help="File with the token, in place of --token.",
            show_default=False,
        ),
    ],
)
_LOG_HTTP = inspect.Parameter(
    "log_http",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--log-http/--no-log-http", help="Log each HTTP request to the server.", show_default=False
        ),
    ],
)


def _create_unused_flag(name: str) -> inspect.Parameter:
    """A gcloud flag that has no effect here; using it prints a warning."""
    option = typer.Option(help="Accepted, and not used: as gcloud has it.", hidden=True)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


# The token names the caller; there is no billing and there are no named configurations.
_UNUSED_FLAGS = tuple(
    map(
        _create_unused_flag,
        ("account", "billing_project", "configuration", "impersonate_service_account", "trace_token"),
    )
)


@dataclasses.dataclass(frozen=True, slots=True)
class _FlagGroup:
    """Flags that together make one argument of a command."""

    parameters: list[inspect.Parameter]
    build: Callable[..., Any]


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each group of its parameters expanded into flags."""
    hints = typing.get_type_hints(command, include_extras=True)
    groups: dict[str, _FlagGroup] = {}
    own: list[inspect.Parameter] = []
    common: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if hint is ApiClient or dataclasses.is_dataclass(hint):
            groups[parameter.name] = _create_group(hint)
            flags_of = common if hint in {ApiClient, CommandOutput} else own
            flags_of += groups[parameter.name].parameters
        else:
            own.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    def run_command(**flags: Any) -> None:
        built: dict[str, Any] = {}
        # Configure the console before anything prints.
        for name, group in sorted(groups.items(), key=lambda item: item[1].build is not CommandOutput):
            given = {parameter.name: flags.pop(parameter.name) for parameter in group.parameters}
            built[name] = argument = group.build(**given)
            if isinstance(argument, CommandOutput):
                configure_console(
                    argument.verbosity or Verbosity.WARNING, progress=argument.user_output_enabled
                )
        with ExitStack() as stack:
            for argument in built.values():
                if isinstance(argument, ApiClient):
                    stack.enter_context(argument)
            command(**flags, **built)

    run_command.__doc__ = command.__doc__
    run_command.__name__ = command.__name__
    run_command.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
    return run_command


def _create_group(kind: Any) -> _FlagGroup:
    if kind is ApiClient:
        flags = [*build_flags(ClientConfig), _REGION, _TOKEN_FILE, _LOG_HTTP, *_UNUSED_FLAGS]
        return _FlagGroup(flags, _create_client)
    hints = typing.get_type_hints(kind, include_extras=True)
    return _FlagGroup(
        [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in dataclasses.fields(kind)
        ],
        kind,
    )


def _create_client(region: str, access_token_file: Path | None, log_http: bool, **given: Any) -> ApiClient:
    for flag in _UNUSED_FLAGS:
        if given.pop(flag.name) is not None:
            print_warning(f"{config.flag_of_setting(flag.name)} is not used: the token says who calls.")
    if access_token_file is not None:
        if given.get("token"):
            raise typer.BadParameter("Give either --token or --access-token-file, not both.")
        given["token"] = read_token_file(access_token_file)
    return ApiClient(config.load_config(ClientConfig, given), region, log_http=log_http)
