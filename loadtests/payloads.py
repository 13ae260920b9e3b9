"""Request bodies, no two alike, and the check of their answers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Relative, per pass through the file: enough to differ in 32 bits, too little to matter to a model.
_VARIATION = 1e-6
_PLACEHOLDER = "\0the first float"


@dataclass(frozen=True)
class InstanceTemplate:
    """An instance as JSON text, cut around its first float, which varies."""

    before: str
    value: float | None
    after: str

    def render(self, passes: int) -> str:
        """The instance as JSON, its float changed in proportion to the passes through the file before."""
        if self.value is None:
            return self.before
        return f"{self.before}{self.value + (abs(self.value) or 1) * _VARIATION * passes!r}{self.after}"


def read_rows(file: Path) -> list[InstanceTemplate]:
    """The instances of a file, one JSON value a line; raises ValueError for invalid ones or none."""
    rows = [_parse_template(json.loads(line)) for line in file.read_text().splitlines() if line.strip()]
    if not rows:
        raise ValueError(f"{file} holds no instances")
    return rows


def iter_bodies(rows: list[InstanceTemplate], size: int) -> Iterator[str]:
    """Request bodies of `size` instances each, endlessly. Only instances without a float repeat."""
    for start in itertools.count(0, size):
        texts = (rows[at % len(rows)].render(at // len(rows)) for at in range(start, start + size))
        yield f'{{"instances": [{", ".join(texts)}]}}'


def find_fault(status: int, content: bytes, size: int) -> str:
    """What is wrong with an answer to `size` instances, in one line; "" when it is right."""
    if status != 200:
        return f"status {status}: {_format_snippet(content)}"
    try:
        answer = json.loads(content)
    except ValueError:
        return f"no JSON: {_format_snippet(content)}"
    predictions = answer.get("predictions") if isinstance(answer, dict) else None
    if not isinstance(predictions, list) or len(predictions) != size:
        return f"not {size} predictions: {_format_snippet(content)}"
    return ""


def _format_snippet(content: bytes) -> str:
    return " ".join(content[:200].decode(errors="replace").split())


def _parse_template(instance: Any) -> InstanceTemplate:
    marked, value = _replace_first_float(instance)
    text = json.dumps(marked)
    if value is None:
        return InstanceTemplate(text, None, "")
    before, _, after = text.partition(json.dumps(_PLACEHOLDER))
    return InstanceTemplate(before, value, after)


def _replace_first_float(instance: Any) -> tuple[Any, float | None]:
    """The instance with its first float replaced by the placeholder, and the float."""
    if isinstance(instance, float):
        return _PLACEHOLDER, instance
    if isinstance(instance, list | dict):
        items = instance.items() if isinstance(instance, dict) else enumerate(instance)
        for key, item in items:
            marked, value = _replace_first_float(item)
            if value is not None:
                copy = instance.copy()
                copy[key] = marked
                return copy, value
    return instance, None
