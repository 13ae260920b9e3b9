"""Renders templates: always escaped, and undefined names are errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from serving.gateway.console.text import finalize_output

ROOT = "/console"
_FOLDER = Path(__file__).parent / "templates"


class TemplateResponse(Response):
    """A page or part that is yet to be rendered, which `TemplateRenderer.render` does in a thread."""

    def __init__(self, template: str, values: Mapping[str, Any], status: int) -> None:
        super().__init__(b"", status, media_type="text/html")
        self.template = template
        self.values = values


class TemplateRenderer:
    """`static_prefix` is where static files lie, below the console."""

    def __init__(self, static_prefix: str) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=finalize_output,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals.update(url=build_url, static=_build_static_url(static_prefix))
        self._environment.filters.update(FILTERS)

    def render(self, response: TemplateResponse) -> None:
        """Blocks for milliseconds."""
        text = self._environment.get_template(response.template).render(response.values)
        response.body = text.encode(errors="replace")
        response.headers["content-length"] = str(len(response.body))


def build_url(path: str) -> str:
    """The address of a page whose path is given below the console, names in it as they are."""
    target, mark, query = path.partition("?")
    return ROOT + quote(target, safe="/:@") + mark + query


def _build_static_url(prefix: str) -> Callable[[str], str]:
    return lambda name: f"{ROOT}/{prefix}/{name}"


# ---- filters


def format_bytes(size: float | None) -> str:
    """A size in the unit of its magnitude: 3.2 MiB."""
    if size is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_seconds(seconds: float | None) -> str:
    """A duration in the unit of its magnitude: 240 µs, 3.1 ms, 2.5 s, 4 min 5 s."""
    if seconds is None:
        return "-"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count)[:24] or "0 s"


def format_rate(rate: float | None) -> str:
    """Requests per second with three digits."""
    return "-" if rate is None else "0" if rate == 0 else f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}"


def last_part(name: str) -> str:
    """`v1` of `projects/p/models/m/versions/v1`."""
    return name.rpartition("/")[2]


def shorten(text: str, longest: int = 200) -> str:
    """The beginning of a text, for a cell of a table."""
    return text if len(text) <= longest else text[:longest] + " …"


def format_json(value: Any) -> str:
    """JSON to be read, in lines."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def keep_whole(text: str) -> Markup:
    """A text that a script reads: escaped as any other, but not cut."""
    return Markup(escape(text))  # noqa: S704  it is escaped


FILTERS: Mapping[str, Callable[..., str]] = {
    "bytes": format_bytes,
    "seconds": format_seconds,
    "rate": format_rate,
    "last_part": last_part,
    "shorten": shorten,
    "uncut": keep_whole,
    "pretty_json": format_json,
}
