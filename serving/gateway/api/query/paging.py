"""Lists in pages: pageSize, pageToken and filter."""

from __future__ import annotations

import base64
import binascii
import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from serving.errors import InvalidArgument
from serving.gateway.api.query.filters import compile_filter

T = TypeVar("T")

_DEFAULT_SIZE = 20
_MAX_SIZE = 100


@dataclass(frozen=True, slots=True)
class PagedList(Generic[T]):
    """The items of a list, in order: `name_of` returns the full name of one, `render` its form in responses.

    The order is that of the names, unless the items have an order of their own: then `key_of` computes it
    from the name. Only items that are looked at are rendered: with a filter those before the end of the page,
    without one the page.
    """

    items: Sequence[T]
    render: Callable[[T], dict[str, Any]]
    name_of: Callable[[T], str] = str
    key_of: Callable[[str], T] | None = None

    def page(self, query: Mapping[str, str]) -> tuple[list[dict[str, Any]], str]:
        """Return the items of a page that match the filter, and the next page's token ("" on the last).

        A token names the last resource shown, so that a list that changes meanwhile neither repeats nor
        skips.
        """
        matches, size = compile_filter(query.get("filter", "")), parse_page_size(query.get("pageSize", ""))
        # The token's resource is searched in all items: meanwhile it may no longer match.
        begin = self._start_index(query.get("pageToken", ""))
        rest = (self.items[place] for place in range(begin, len(self.items)))
        shown = ((one, self.render(one)) for one in rest)
        rows = list(itertools.islice((row for row in shown if matches(row[1])), size + 1))
        more = len(rows) > size
        return [row for _, row in rows[:size]], encode_page_token(
            self.name_of(rows[size - 1][0])
        ) if more else ""

    def page_whole(self, query: Mapping[str, str], most_bytes: int) -> tuple[list[dict[str, Any]], str]:
        """The same without a filter, for lists of which clients expect all where they do not ask for a size.

        A page ends before it takes `most_bytes` as JSON, if it has one item at least.
        """
        size = parse_page_size(query["pageSize"]) if query.get("pageSize") else len(self.items)
        rows: list[dict[str, Any]] = []
        taken = 0
        for place in range(self._start_index(query.get("pageToken", "")), len(self.items)):
            row = self.render(self.items[place])
            taken += len(orjson.dumps(row))
            if rows and (len(rows) == size or taken > most_bytes):
                return rows, encode_page_token(self.name_of(self.items[place - 1]))
            rows.append(row)
        return rows, ""

    def _start_index(self, token: str) -> int:
        """The number of items up to and including the one that the token names."""
        if not token:
            return 0
        last = decode_page_token(token)
        if self.key_of is None:
            return bisect.bisect_right(self.items, last, key=self.name_of)
        try:
            key: Any = self.key_of(last)
        except ValueError:
            raise _page_token_error() from None
        return bisect.bisect_right(self.items, key)


def parse_page_size(text: str) -> int:
    """Raises InvalidArgument."""
    try:
        size = int(text or 0)
    except ValueError:
        size = -1
    if size < 0:
        raise InvalidArgument(f"Field: page_size Error: {text!r} is not a number of rows.", field="page_size")
    return min(size, _MAX_SIZE) or _DEFAULT_SIZE


def encode_page_token(name: str) -> str:
    """Encode the token of the page after the resource with this full name."""
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def decode_page_token(token: str) -> str:
    """Return the full name in a token. Raises InvalidArgument."""
    try:
        last = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        last = ""
    if not last.startswith("projects/"):
        raise _page_token_error()
    return last


def _page_token_error() -> InvalidArgument:
    return InvalidArgument(
        "Field: page_token Error: This is not a token that a list gave out.", field="page_token"
    )
