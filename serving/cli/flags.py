"""Turns a command function into the flags of a command.

A parameter that is a dataclass stands for a group of flags, one per field, so that commands share them
without repeating them. `Client` stands for the flags that say which server is meant.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from serving import config
from serving.cli.client import Client
from serving.cli.output import Output
from serving.cli.settings import parameters_of
from serving.config import ClientConfig

_REGION = inspect.Parameter(
    "region",
    inspect.Parameter.KEYWORD_ONLY,
    default="",
    annotation=Annotated[
        str, typer.Option(help="Accepted as gcloud has it; one server is every region.", show_default=False)
    ],
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Group:
    """Flags that together make one argument of a command."""

    parameters: list[inspect.Parameter]
    build: Callable[..., Any]


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every group of its parameters spread out into flags."""
    hints = typing.get_type_hints(command, include_extras=True)
    groups: dict[str, _Group] = {}
    own: list[inspect.Parameter] = []
    common: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if hint is Client or dataclasses.is_dataclass(hint):
            groups[parameter.name] = _group(hint)
            flags_of = common if hint in {Client, Output} else own
            flags_of += groups[parameter.name].parameters
        else:
            own.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    def run(**flags: Any) -> None:
        built = {
            name: group.build(**{parameter.name: flags.pop(parameter.name) for parameter in group.parameters})
            for name, group in groups.items()
        }
        with ExitStack() as stack:
            for argument in built.values():
                if isinstance(argument, Client):
                    stack.enter_context(argument)
            command(**flags, **built)

    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    run.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
    return run


def _group(kind: Any) -> _Group:
    if kind is Client:
        return _Group([*parameters_of(ClientConfig), _REGION], _connect)
    hints = typing.get_type_hints(kind, include_extras=True)
    return _Group(
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


def _connect(region: str, **given: Any) -> Client:
    return Client(config.load(ClientConfig, given), region)
