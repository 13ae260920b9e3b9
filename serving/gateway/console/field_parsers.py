"""Values of the API as people write them into fields of forms."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from serving.errors import InvalidArgument, ServingError
from serving.gateway.console.forms import Form

_BEFORE_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def parse_labels(text: str) -> dict[str, str]:
    """Labels, one `key=value` a line. Raises InvalidArgument."""
    labels = {}
    for line in split_lines(text):
        key, mark, value = line.partition("=")
        if not mark:
            raise InvalidArgument(f"{line[:200]!r} is no label: write key=value, one a line.", field="labels")
        labels[key.strip()] = value.strip()
    return labels


def parse_description_and_labels(form: Form) -> dict[str, object]:
    """Description and labels, with the etag of what the form was filled with. Raises InvalidArgument."""
    return {
        "description": form["description"],
        "labels": parse_labels(form["labels"]),
        "etag": form["etag"],
    }


def fill_description_and_labels(details: Mapping[str, Any], form: Form | None) -> dict[str, str]:
    """What the fields of description and labels show: what was typed, else what is in force.

    The etag is always that of what is in force, which the page shows.
    """
    labels = format_labels(details.get("labels", {}))
    return {
        "description": details.get("description", "") if form is None else form["description"],
        "labels": labels if form is None else form["labels"],
        "etag": details.get("etag", ""),
    }


def format_labels(labels: Mapping[str, str]) -> str:
    return "\n".join(f"{key}={value}" for key, value in sorted(labels.items()))


def split_lines(text: str) -> Sequence[str]:
    """The lines that have something in them, without white space around."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def replace_line(text: str, line: str, replacement: str) -> str:
    """The lines of a field with another in place of one of them; "" without a replacement."""
    return "\n".join(replacement if one == line else one for one in split_lines(text)) if replacement else ""


def drop_empty(**fields: object) -> dict[str, object]:
    """Those of the fields that have a value: the API takes its defaults for the others."""
    return {name: value for name, value in fields.items() if value not in ("", None, [], {})}


def parse_json_object(text: str, field: str) -> dict[str, object]:
    """{} for an empty text. Raises InvalidArgument."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise InvalidArgument(f"That is no JSON: {error}.", field=field) from error
    if not isinstance(found, dict):
        raise InvalidArgument("That must be an object: {...}.", field=field)
    return found


def locate_error(
    error: ServingError | None, fields: Collection[str], renamed: Mapping[str, str], *, prefix: str = ""
) -> dict[str, str]:
    """What an error says about a field of a form, by the field's name; {} where it is about none of them.

    Errors of the API name fields as `training_input.job_dir`; `renamed` are those that forms call otherwise.
    `prefix` is the name of the whole in such names, where a field of the form has it too.
    """
    if error is None or not error.field:
        return {}
    _, _, description = error.message.partition(" Error: ")
    path = error.field.removeprefix(f"{prefix}.") if prefix else error.field
    for part in re.split(r"[.\[]", _BEFORE_CAPITAL.sub("_", path).lower()):
        name = renamed.get(part, part)
        if name in fields:
            return {name: description or error.message}
    return {}
