"""Reads YAML or JSON files of users: any, and that of a version."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from serving.errors import InvalidArgument

# Fields of a file that describes a version, or what to change of one: section 8 of the AI Platform contract.
CREATE_FIELDS = (
    "autoScaling", "container", "deploymentUri", "description", "framework", "labels", "machineType",
    "manualScaling", "packageUris", "predictionClass", "predictionMethod", "pythonVersion", "routes",
    "runtimeVersion", "serviceAccount",
)  # fmt: skip
UPDATE_FIELDS = ("autoScaling", "description", "manualScaling", "requestLoggingConfig")


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


def read_version_file(file: Path | None, allowed: Collection[str]) -> dict[str, Any]:
    """The fields of a version that the file gives; {} without a file.

    Raises InvalidArgument naming the file and the field at fault.
    """
    if file is None:
        return {}
    content = read_mapping(file, "fields, such as `deploymentUri: gs://...`")
    if unknown := sorted(map(str, content.keys() - set(allowed))):
        raise InvalidArgument(
            f"{file}: invalid fields {', '.join(unknown)}; allowed are {', '.join(sorted(allowed))}."
        )
    _check_fields(file, content)
    return {field: value for field, value in content.items() if value is not None}


def _check_fields(file: Path, content: dict[str, Any]) -> None:
    from serving.resources import Version, resource_from_json  # noqa: PLC0415  start-up time

    for field in ("runtimeVersion", "pythonVersion"):
        if isinstance(content.get(field), int | float):
            raise InvalidArgument(
                f"{file}: put {field} in quotes, like '{content[field]}'. Without them it is a number, "
                "and 2.10 is 2.1."
            )
    try:
        resource_from_json(Version, content)
    except InvalidArgument as error:
        raise InvalidArgument(f"{file}: {error.message}") from error
