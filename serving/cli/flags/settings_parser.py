"""Parses the command line of `serve` and `node` without typer.

Importing typer, and every command for its flags, takes a tenth of a second, by which a program's first answer
would be later. Whatever is not simply flags with values is left to typer: help and usage errors.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving import config

_FILE = "config"


@dataclass(frozen=True, slots=True)
class ParsedSettings:
    """The settings that were given, by name, and the file that has more of them."""

    settings: Mapping[str, Any]
    file: Path | None


def parse_settings(words: Sequence[str], kind: type[Any]) -> ParsedSettings | None:
    """The settings that a command line gives; None if it needs typer to parse it."""
    hints = typing.get_type_hints(kind) | {_FILE: Path}
    switches = {config.flag_of_setting(name): (name, True) for name, hint in hints.items() if hint is bool}
    switches |= {config.flag_of_setting(f"no_{name}"): (name, False) for name, _ in switches.values()}
    valued = {config.flag_of_setting(name): name for name, hint in hints.items() if hint is not bool}
    given: dict[str, Any] = {}
    waiting = iter(words)
    for word in waiting:
        flag, equals, value = word.partition("=")
        if word in switches:
            name, on = switches[word]
            given[name] = on
        elif flag in valued:
            name = valued[flag]
            try:
                text = value if equals else next(waiting)
                if config.is_repeatable(hints[name]):
                    given[name] = [*given.get(name, ()), text]
                else:
                    given[name] = hints[name](text)
            except (StopIteration, ValueError):
                return None
        else:
            return None
    return ParsedSettings({name: value for name, value in given.items() if name != _FILE}, given.get(_FILE))
