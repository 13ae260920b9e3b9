"""The YAML file that describes a version, or what to change of one."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from serving.errors import InvalidArgument

# Source: section 8 of the AI Platform contract.
FOR_CREATE = (
    "autoScaling", "deploymentUri", "description", "framework", "labels", "machineType", "manualScaling",
    "packageUris", "predictionClass", "pythonVersion", "runtimeVersion", "serviceAccount",
)  # fmt: skip
FOR_UPDATE = ("autoScaling", "description", "manualScaling", "requestLoggingConfig")


def read(file: Path | None, allowed: Collection[str]) -> dict[str, Any]:
    """The fields of a version that the file gives; {} without a file.

    Raises InvalidArgument naming the file and the field at fault.
    """
    if file is None:
        return {}
    import yaml  # noqa: PLC0415  start-up time

    try:
        content = yaml.safe_load(sys.stdin if str(file) == "-" else file.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidArgument(f"Cannot read {file}: {error}") from error
    if not isinstance(content, dict):
        raise InvalidArgument(f"{file} must hold a mapping of fields, such as `deploymentUri: gs://...`.")
    if unknown := sorted(map(str, content.keys() - set(allowed))):
        raise InvalidArgument(
            f"{file}: invalid fields {', '.join(unknown)}; allowed are {', '.join(sorted(allowed))}."
        )
    _check(file, content)
    return {field: value for field, value in content.items() if value is not None}


def _check(file: Path, content: dict[str, Any]) -> None:
    from serving.resources import Version, from_wire  # noqa: PLC0415  start-up time

    for field in ("runtimeVersion", "pythonVersion"):
        if isinstance(content.get(field), int | float):
            raise InvalidArgument(
                f"{file}: put {field} in quotes, like '{content[field]}'. Without them it is a number, "
                "and 2.10 is 2.1."
            )
    try:
        from_wire(Version, content)
    except InvalidArgument as error:
        raise InvalidArgument(f"{file}: {error.message}") from error
