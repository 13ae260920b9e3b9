"""Turns a settings class of `serving.config` into command-line flags, so that no setting is named twice."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from serving import config

T = TypeVar("T")


SettingsLoader = Callable[[Mapping[str, Any], Path | None], T]


def with_settings(
    kind: type[Any], load: SettingsLoader[T]
) -> Callable[[Callable[[T], int]], Callable[..., None]]:
    """Give a command one flag per setting of `kind`, and `--config`.

    It is called with what `load` makes of the given flags and the file; its result is the exit code.
    """

    def decorate_command(command: Callable[[T], int]) -> Callable[..., None]:
        def run_command(**flags: Any) -> None:
            file = flags.pop("config")
            raise typer.Exit(command(load(flags, file)))

        run_command.__doc__ = command.__doc__
        run_command.__name__ = command.__name__
        run_command.__signature__ = inspect.Signature([*build_flags(kind), _CONFIG])  # type: ignore[attr-defined]
        return run_command

    return decorate_command


def build_flags(kind: type[Any]) -> list[inspect.Parameter]:
    """A flag for each setting of a class; its value is None when the flag is not given."""
    hints = typing.get_type_hints(kind)
    return [_build_flag(field, hints[field.name]) for field in dataclasses.fields(kind)]


def _build_flag(field: dataclasses.Field[Any], hint: Any) -> inspect.Parameter:
    """A flag without default: the value may come from the environment or a file."""
    text = field.metadata["help"]
    if field.default not in ("", ()):
        text += f" (default: {field.default})"
    flag = config.flag_of_setting(field.name)
    declaration = f"{flag}/--no-{flag[2:]}" if hint is bool else flag
    option = typer.Option(declaration, help=text, show_default=False)
    typed = list[str] if config.is_repeatable(hint) else hint
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[typed | None, option]
    )


_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option("--config", help="YAML file with any of these settings.", show_default=False),
    ],
)
