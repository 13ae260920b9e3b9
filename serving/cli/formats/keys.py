"""Keys: paths to values in a record. None in a key stands for all elements of a list."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Key = tuple[str | int | None, ...]

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SNAKE = re.compile(r"_([a-z0-9])")


def get_value(record: Any, key: Key) -> Any:
    """The value of a record at a key, or None; names may be in camelCase or snake_case."""
    for position, part in enumerate(key):
        rest = key[position + 1 :]
        if isinstance(record, Mapping):
            if part is None:
                return [get_value(value, rest) for value in record.values()] if rest else record
            record = _get_member(record, str(part))
        elif isinstance(record, list):
            if part is None:
                return [get_value(value, rest) for value in record] if rest else record
            if not isinstance(part, int):
                return [get_value(value, key[position:]) for value in record]
            record = record[part] if -len(record) <= part < len(record) else None
        else:
            return None
    return record


def set_value(record: dict[str, Any], key: Key, value: Any) -> None:
    """Set the value of a record at a key; indices of lists are left out of the path."""
    names = [str(part) for part in key if isinstance(part, str)]
    for name in names[:-1]:
        record = record.setdefault(name, {})
    record[names[-1]] = value


def format_heading(key: Key) -> str:
    """The heading of a key's column: DEFAULT_VERSION_NAME."""
    names = (part for part in key if isinstance(part, str))
    return "_".join(_CAPITAL.sub("_", name) for name in names).replace("-", "_").upper()


def last_name(key: Key) -> str:
    return next((part for part in reversed(key) if isinstance(part, str)), "")


def _get_member(record: Mapping[str, Any], name: str) -> Any:
    if name in record:
        return record[name]
    return record.get(_SNAKE.sub(lambda match: match[1].upper(), name))
