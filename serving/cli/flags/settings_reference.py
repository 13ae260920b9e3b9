"""Writes docs/settings.md from the settings of `serving.config`; `make settings` runs it."""

from __future__ import annotations

import dataclasses
import re
import sys
import typing
from pathlib import Path
from typing import Any

from serving import config
from serving.config import SETTING_SECTIONS, SettingSection, list_section_fields

_INTRODUCTION = """\
# Settings

Every setting of `pilotlight serve`, of `pilotlight node` and of the client commands. `make settings` writes
this page from `serving/config.py`; a test fails when the two differ.

A setting can be given in four ways. The first that has it counts:

1. a flag on the command line: `--request-timeout 30`;
2. a variable of the environment: `PILOTLIGHT_REQUEST_TIMEOUT=30`;
3. a line of the YAML file that `--config` names (`serve` and `node`): `request_timeout: 30`; `on` and `off`
   need no quotes;
4. for a node in a container, the variables of its platform, such as `PORT` and `AIP_HTTP_PORT`
   ([protocols.md](protocols.md#containers)).

A value that is not allowed ends the program at its start, with a message that names the setting, its source
and the values that are allowed. [limits.md](limits.md) says what a client gets when a limit is exceeded.
"""

_BINARY_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def render_page() -> str:
    """The text of docs/settings.md."""
    return "\n".join([_INTRODUCTION, *map(_render_section, SETTING_SECTIONS)])


def _render_section(section: SettingSection) -> str:
    """A table of settings that a class defines itself; what it inherits is in the sections of its bases."""
    hints = typing.get_type_hints(section.kind)
    rows = [_render_row(field, hints[field.name]) for field in list_section_fields(section)]
    head = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    return "\n".join(
        [
            f"## {section.title}: {section.programs}\n" if section.programs else f"## {section.title}\n",
            *head,
            *rows,
            "",
        ]
    )


def _render_row(field: dataclasses.Field[Any], hint: Any) -> str:
    names = f"`{config.flag_of_setting(field.name)}`<br>`{config.PREFIX}{field.name.upper()}`"
    cells = (
        names,
        _render_default(field),
        _render_values(field, hint),
        _escape_markdown(field.metadata["help"]),
    )
    return "| " + " | ".join(cells) + " |"


def _escape_markdown(text: str) -> str:
    return re.sub(r"([|*<])", r"\\\1", text)


def _render_default(field: dataclasses.Field[Any]) -> str:
    default: Any = field.default
    if default in ("", ()):
        return ""
    if field.metadata["unit"] == "bytes":
        for size, name in _BINARY_UNITS:
            if default and default % size == 0:
                return f"`{default}` ({default // size} {name})"
    match default:
        case bool():
            return f"`{str(default).lower()}`"
        case float():
            return f"`{default:g}`"
        case _:
            return f"`{default}`"


def _render_values(field: dataclasses.Field[Any], hint: Any) -> str:
    """The type, unit and bounds of a setting, in the words of a table."""
    metadata = field.metadata
    if hint is bool:
        flag = config.flag_of_setting(field.name)
        return f"`true`, `false`; the flag has no value: `{flag}`, `--no-{flag[2:]}`"
    if metadata["choices"]:
        besides = {"seconds": metadata["or_seconds"], "a port": metadata["or_port"]}
        return ", ".join(
            [f"`{choice}`" for choice in metadata["choices"] if choice]
            + [value for value, is_allowed in besides.items() if is_allowed]
        )
    if config.is_repeatable(hint):
        return "text; the flag may be given several times"
    if hint in (int, float):
        minimum, maximum = metadata["minimum"], metadata["maximum"]
        bounds = f"{minimum:g} to {maximum:g}" if maximum is not None else f"at least {minimum:g}"
        return f"{metadata['unit'] or 'a number'}, {bounds}"
    return "a path" if hint is Path or metadata["route"] else "text"


if __name__ == "__main__":
    sys.stdout.write(render_page())
