"""Settings: what is in force, and where it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.responses import Response

from serving.config import (
    PREFIX,
    SETTING_SECTIONS,
    ServeConfig,
    flag_of_setting,
    list_section_fields,
)
from serving.gateway.console.rendering import format_bytes
from serving.gateway.console.text import hide_credentials
from serving.gateway.console.visit import Visit, page

_PERMISSION = "pilotlight.server.getIamPolicy"


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting; `source` is a flag, a variable, a line of a file, or "" for the default."""

    name: str
    value: str
    default: str
    source: str
    help_text: str
    is_changed: bool


@dataclass(frozen=True, slots=True)
class SettingGroup:
    """Settings that belong together; those that differ from their default are the first."""

    title: str
    rows: Sequence[SettingRow]

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(",", "").replace(" ", "-")


async def show_settings(visit: Visit) -> Response:
    """`filter` is looked for in all that is shown of a setting; `changed`: only those that differ."""
    visit.require(_PERMISSION)
    wanted, only_changed = visit.query.get("filter", "").strip(), bool(visit.query.get("changed"))
    groups = [
        SettingGroup(section.title, sorted(rows, key=lambda row: not row.is_changed))
        for section in SETTING_SECTIONS
        if issubclass(ServeConfig, section.kind)
        and (
            rows := [
                row
                for row in map(partial(_build_row, visit), list_section_fields(section))
                if _matches(row, wanted) and (row.is_changed or not only_changed)
            ]
        )
    ]
    return visit.render(
        "settings.html", groups=groups, prefix=PREFIX, filter=wanted, only_changed=only_changed
    )


def _build_row(visit: Visit, field: dataclasses.Field[Any]) -> SettingRow:
    value = getattr(visit.console.config, field.name)
    return SettingRow(
        name=field.name,
        value=_format_value(field, value),
        default=_format_value(field, field.default),
        source=_describe_source(field.name, visit.console.setting_sources.get(field.name, "")),
        help_text=field.metadata["help"],
        is_changed=value != field.default,
    )


def _matches(row: SettingRow, wanted: str) -> bool:
    """Whether each word is in it, in either way to write a name."""
    shown = f"{row.name} {flag_of_setting(row.name)} {row.value} {row.source} {row.help_text}".lower()
    return all(word in shown for word in wanted.lower().split())


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
    return hide_credentials(text)


ROUTES = (page("/settings", show_settings),)
