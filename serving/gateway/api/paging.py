"""Lists in pages: pageSize, pageToken and filter."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from serving.errors import InvalidArgument
from serving.gateway.api.filters import parse_filter

_DEFAULT_SIZE = 20
_MAX_SIZE = 100


def page(resources: Sequence[dict[str, Any]], query: Mapping[str, str]) -> tuple[list[dict[str, Any]], str]:
    """One page of the resources that match the filter, and the token of the next page ("" on the last).

    A token names the last resource shown, so that a list that changes meanwhile neither repeats nor skips.
    """
    matches = parse_filter(query.get("filter", ""))
    found = [resource for resource in resources if matches(resource)]
    start = _after(found, query.get("pageToken", ""))
    size = _size(query.get("pageSize", ""))
    rows = found[start : start + size]
    more = start + size < len(found)
    return rows, _token(rows[-1]["name"]) if more else ""


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


def _after(rows: Sequence[dict[str, Any]], token: str) -> int:
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
    names = [row["name"] for row in rows]
    if last in names:
        return names.index(last) + 1
    # It is gone meanwhile: go on where it would be. Lists are sorted by name, operations newest first.
    ascending = names == sorted(names)
    return sum(1 for name in names if (name < last) == ascending)
