"""Reads YAML or JSON files of users."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from serving.errors import InvalidArgument


def read_yaml(file: Path) -> Any:
    """The content of a file, or of standard input. Raises InvalidArgument."""
    import yaml  # noqa: PLC0415  start-up time

    try:
        return yaml.safe_load(sys.stdin if str(file) == "-" else file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidArgument(f"Cannot read {file}: {error}") from error


def read_mapping(file: Path, what: str) -> dict[str, Any]:
    """The mapping that a file holds; an empty file holds an empty one. Raises InvalidArgument."""
    content = read_yaml(file) or {}
    if not isinstance(content, dict):
        raise InvalidArgument(f"{file} must hold a mapping: {what}.")
    return content
