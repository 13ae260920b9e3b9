"""Lists in pages: pageSize, pageToken and filter."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from serving.errors import InvalidArgument
from serving.gateway.api.filters import parse_filter

_DEFAULT_SIZE = 20
_MAX_SIZE = 100


def page(
    resources: Sequence[dict[str, Any]],
    query: Mapping[str, str],
    name_of: Callable[[dict[str, Any]], str] = itemgetter("name"),
) -> tuple[list[dict[str, Any]], str]:
    """One page of the resources that match the filter, and the token of the next page ("" on the last).

    `name_of` tells the full name of one. A token names the last resource shown, so that a list that changes
    meanwhile neither repeats nor skips.
    """
    matches = parse_filter(query.get("filter", ""))
    # The token's resource is looked for among all: meanwhile it may no longer match.
    rest = resources[_after([name_of(resource) for resource in resources], query.get("pageToken", "")) :]
    found = [resource for resource in rest if matches(resource)]
    size = _size(query.get("pageSize", ""))
    rows = found[:size]
    return rows, _token(name_of(rows[-1])) if len(found) > size else ""


def _size(text: str) -> int:
    try:
        size = int(text or 0)
    except ValueError:
        size = -1
    if size < 0:
        raise InvalidArgument(f"Field: page_size Error: {text!r} is not a number of rows.", field="page_size")
    return min(size, _MAX_SIZE) or _DEFAULT_SIZE


def _token(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _after(names: Sequence[str], token: str) -> int:
    if not token:
        return 0
    try:
        last = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        last = ""
    if not last.startswith("projects/"):
        raise InvalidArgument(
            "Field: page_token Error: This is not a token that a list gave out.", field="page_token"
        )
    if last in names:
        return names.index(last) + 1
    # It is gone meanwhile: go on where it would be. Of the lists that are not sorted by name, jobs never go,
    # and operations go when they are old: everything after one that is gone is gone too.
    return sum(name < last for name in names) if list(names) == sorted(names) else len(names)
