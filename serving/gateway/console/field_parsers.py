"""Values of the API as people write them into fields of forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serving.errors import InvalidArgument


def parse_labels(text: str) -> dict[str, str]:
    """Labels, one `key=value` a line. Raises InvalidArgument."""
    labels = {}
    for line in split_lines(text):
        key, mark, value = line.partition("=")
        if not mark:
            raise InvalidArgument(f"{line[:200]!r} is no label: write key=value, one a line.", field="labels")
        labels[key.strip()] = value.strip()
    return labels


def format_labels(labels: Mapping[str, str]) -> str:
    return "\n".join(f"{key}={value}" for key, value in sorted(labels.items()))


def split_lines(text: str) -> Sequence[str]:
    """The lines that have something in them, without white space around."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def drop_empty(**fields: object) -> dict[str, object]:
    """Those of the fields that have a value: the API takes its defaults for the others."""
    return {name: value for name, value in fields.items() if value not in ("", None, [], {})}
