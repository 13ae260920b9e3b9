"""Renders templates: always escaped, and undefined names are errors."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from serving.gateway.console.text import finalize_output
from serving.gateway.thread_pool import ThreadPool

ROOT = "/console"
_Item = TypeVar("_Item")
_FOLDER = Path(__file__).parent / "templates"
_QUEUE: Final = 63
# For how long what was rendered for one visitor is shown to others, and for how many kinds of them.
_SHARED_SECONDS: Final = 1.0
_MAX_SHARED: Final = 64
# After how many pieces of a text, a tenth of a millisecond, other threads get their turn, and for how long:
# with no pause at all the thread that renders takes the interpreter's lock again before they wake up.
_PIECES: Final = 100
_PAUSE_SECONDS: Final = 0.0001


@dataclass(frozen=True, slots=True)
class SharedPart:
    """A part of a page that looks the same to all visitors with the same `rights`.

    What was rendered is used for a second, while `basis` is the same object. `read_values` runs on the event
    loop and goes through long lists by `iterate_in_turns`. While it returns equal values nothing is rendered.
    """

    template: str
    rights: Hashable
    basis: object
    read_values: Callable[[], Awaitable[Mapping[str, Any]]]


class TemplateResponse(Response):
    """A page or part that is yet to be rendered; shared parts among its values are rendered before it."""

    def __init__(self, template: str, values: Mapping[str, Any], status: int) -> None:
        super().__init__(b"", status, media_type="text/html")
        self.template = template
        self.values = values


class SharedPartResponse(Response):
    """A shared part by itself that is yet to be rendered."""

    def __init__(self, part: SharedPart) -> None:
        super().__init__(b"", media_type="text/html")
        self.part = part


@dataclass(frozen=True, slots=True)
class RenderedText:
    """`etag` is the same for the same text only."""

    text: Markup
    body: bytes
    etag: str

    @classmethod
    def from_text(cls, text: str) -> RenderedText:
        body = text.encode(errors="replace")
        etag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
        return cls(Markup(text), body, etag)  # noqa: S704  a template has escaped what is in it


@dataclass(slots=True)
class _CachedPart:
    basis: object = None
    expires: float = 0.0
    values: Mapping[str, Any] | None = None
    rendered: RenderedText | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class PageRenderer:
    """Renders responses in a thread of its own, and shared parts once for all who wait for them.

    `static_prefix` is where static files lie, below the console.
    """

    def __init__(self, static_prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
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
        self._threads = ThreadPool("console", 1, queue=_QUEUE)
        self._clock = clock
        self._cached: OrderedDict[tuple[str, Hashable], _CachedPart] = OrderedDict()

    async def render_response(self, response: TemplateResponse | SharedPartResponse) -> None:
        """Give a response its body. Raises ResourceExhausted when too many wait."""
        if isinstance(response, SharedPartResponse):
            rendered = await self._render_shared(response.part)
        else:
            values = {
                name: (await self._render_shared(value)).text if isinstance(value, SharedPart) else value
                for name, value in response.values.items()
            }
            rendered = await self._threads.run(self.render, response.template, values)
        response.body = rendered.body
        response.headers["content-length"] = str(len(rendered.body))
        response.headers["etag"] = rendered.etag

    def render(self, template: str, values: Mapping[str, Any]) -> RenderedText:
        """Blocks for milliseconds, in which other threads run."""
        pieces = self._environment.get_template(template).generate(values)
        text: list[str] = []
        while batch := list(itertools.islice(pieces, _PIECES)):
            text += batch
            # Gives up the interpreter's lock: a prediction must not wait until the page is whole.
            time.sleep(_PAUSE_SECONDS)
        return RenderedText.from_text("".join(text))

    async def _render_shared(self, part: SharedPart) -> RenderedText:
        cached = self._get_or_create_cached(part)
        async with cached.lock:
            now = self._clock()
            if cached.rendered is None or cached.basis is not part.basis or now >= cached.expires:
                values = await part.read_values()
                if cached.rendered is None or values != cached.values:
                    cached.rendered = await self._threads.run(self.render, part.template, values)
                    cached.values = values
                cached.basis, cached.expires = part.basis, now + _SHARED_SECONDS
            return cached.rendered

    def _get_or_create_cached(self, part: SharedPart) -> _CachedPart:
        key = (part.template, part.rights)
        cached = self._cached.setdefault(key, _CachedPart())
        self._cached.move_to_end(key)
        while len(self._cached) > _MAX_SHARED:
            self._cached.popitem(last=False)
        return cached


async def iterate_in_turns(items: Iterable[_Item], count: int) -> AsyncIterator[_Item]:
    """After each `count` items whatever else waits for the event loop gets its turn."""
    for number, item in enumerate(items, 1):
        yield item
        if number % count == 0:
            await asyncio.sleep(0)


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


def escape_uncut(text: str) -> Markup:
    """A text that a script reads: escaped as any other, but not cut."""
    return Markup(escape(text))  # noqa: S704  it is escaped


FILTERS: Mapping[str, Callable[..., str]] = {
    "bytes": format_bytes,
    "seconds": format_seconds,
    "rate": format_rate,
    "last_part": last_part,
    "shorten": shorten,
    "uncut": escape_uncut,
    "pretty_json": format_json,
}
