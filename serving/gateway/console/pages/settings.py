"""Settings: what is in force, and where it came from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from serving.config import PREFIX, ServeConfig, flag_of_setting
from serving.gateway.console.rendering import format_bytes
from serving.gateway.console.visit import Visit, page

_PERMISSION = "pilotlight.server.getIamPolicy"
# A name and a password in an address.
_CREDENTIALS = re.compile(r"//[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting; `source` is a flag, a variable, a line of a file, or "" for the default."""

    name: str
    value: str
    default: str
    source: str
    help_text: str


async def show_settings(visit: Visit) -> Response:
    visit.require(_PERMISSION)
    rows = list(_iter_rows(visit))
    return visit.render(
        "settings.html",
        given=[row for row in rows if row.source],
        defaults=[row for row in rows if not row.source],
        prefix=PREFIX,
    )


def _iter_rows(visit: Visit) -> Iterator[SettingRow]:
    config, sources = visit.console.config, visit.console.setting_sources
    for field in dataclasses.fields(ServeConfig):
        value = getattr(config, field.name)
        yield SettingRow(
            name=field.name,
            value=_format_value(field, value),
            default=_format_value(field, field.default),
            source=_describe_source(field.name, sources.get(field.name, "")),
            help_text=field.metadata["help"],
        )


def _describe_source(name: str, source: str) -> str:
    if not source:
        return ""
    kinds = {flag_of_setting(name): "flag", PREFIX + name.upper(): "environment"}
    return f"{kinds.get(source, 'file')} {source}"


def _format_value(field: dataclasses.Field[Any], value: Any) -> str:
    if field.metadata["is_secret"] and value:
        return "not shown"
    if field.metadata["unit"] == "bytes" and value >= 1024:
        return f"{format_bytes(value)} ({value})"
    if isinstance(value, bool):
        return "on" if value else "off"
    text = (
        ", ".join(value)
        if isinstance(value, tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
    return _CREDENTIALS.sub("//…@", text)


ROUTES = (page("/settings", show_settings),)
