"""Flattens, sorts, filters and limits lists of records.

The flags take effect in this order, as in gcloud, whatever their order on the command line.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from serving.cli.formats.filters import RecordPredicate
from serving.cli.formats.keys import Key, get_value
from serving.cli.formats.projection import OutputColumn


def flatten_lists(records: Iterable[Any], keys: Sequence[Key]) -> Iterable[Any]:
    """A record for each element of the lists at these keys, with that element in place of the list."""
    for key in keys:
        for end in _find_lists(key):
            records = _flatten_list(records, end)
    return records


def sort_records(records: Iterable[Any], columns: Sequence[OutputColumn]) -> Iterable[Any]:
    """The records by the values of columns, the first one counting most; those without a value come first."""
    found = list(records)
    for column in reversed(columns):
        found.sort(key=functools.partial(_compute_sort_key, column), reverse=column.reverse)
    return found


def select_records(
    records: Iterable[Any], matches: RecordPredicate | None, limit: int | None
) -> Iterable[Any]:
    """The records that match, at most `limit`."""
    return itertools.islice(filter(matches, records) if matches is not None else records, limit)


def _compute_sort_key(column: OutputColumn, record: Any) -> tuple[int, float, str]:
    value = column.extract_value(record)
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, int | float):
        return (1, float(value), "")
    return (2, 0.0, str(value))


def _find_lists(key: Key) -> Iterator[Key]:
    """The key of each list that a key goes through: `a[].b[]` and `a[].b` alike end in a list."""
    names: list[str | int] = []
    for position, part in enumerate(key):
        if part is None:
            yield tuple(names)
        else:
            names.append(part)
            if position == len(key) - 1:
                yield tuple(names)


def _flatten_list(records: Iterable[Any], key: Key) -> Iterator[Any]:
    for record in records:
        value = get_value(record, key)
        if not isinstance(value, list):
            yield record
            continue
        for one in value:
            yield _replace_value(record, key, one)


def _replace_value(record: Any, key: Key, value: Any) -> Any:
    """A copy of a record with this value at a key."""
    if not key:
        return value
    if not isinstance(record, Mapping):
        return record
    name = str(key[0])
    return {**record, name: _replace_value(record.get(name), key[1:], value)}
