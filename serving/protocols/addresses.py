"""Resolves model names, version numbers and labels of other protocols to ours.

The rule is in docs/protocols.md ("Names and versions").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from serving.errors import FailedPrecondition, InvalidArgument, NotFound
from serving.names import ModelName, VersionName, parse_model_or_version_name

# Numbers of versions are of 64 bits in these protocols, with a sign.
_MAX_VERSION_NUMBER = (1 << 63) - 1
# Ids are no longer than this; longer names must not fill caches.
_DIGITS = re.compile(r"[0-9]{1,128}")
_NUMBERED = re.compile(r"[A-Za-z]+[_-]?([0-9]+)")
_FALSE_LABELS = frozenset({"off", "false", "no"})
# Versions of a model that an error names.
_MAX_VERSIONS_NAMED = 5

# The versions of a model: their labels, by id.
LabelsByVersion = Mapping[str, Mapping[str, str]]


class ModelAddress(NamedTuple):
    """The target of a request: a version of `model` by its id or number, by a label, or its default one."""

    model: ModelName
    version: str = ""
    label: str = ""

    def __str__(self) -> str:
        """As TensorFlow Serving names what it has not found."""
        if self.label:
            return f"Label({self.model.model}, {self.label})"
        if self.version:
            return f"Specific({self.model.model}, {self.version})"
        return f"Latest({self.model.model})"


def parse_address(model: str, project: str, *, version: str = "", label: str = "") -> ModelAddress:
    """Parse the name of a model of `project`, or of one that is named in full, `projects/P/models/M`.

    Raises InvalidArgument.
    """
    if version and label:
        raise InvalidArgument(
            f"The request names both a version ({version}) and a label ({label}): name one."
        )
    if "/" not in model:
        return ModelAddress(ModelName(project, model), version, label)
    name = parse_model_or_version_name(model)
    if isinstance(name, VersionName):
        raise InvalidArgument(
            f"{model!r} names a version: name the model, {name.parent}, and its version apart."
        )
    return ModelAddress(name, version, label)


def find_version_number_error(version: str) -> InvalidArgument | None:
    """Return the error of a version that is a number too large for TensorFlow Serving, else None."""
    if _DIGITS.fullmatch(version) and int(version) > _MAX_VERSION_NUMBER:
        return InvalidArgument(
            f"Failed to convert version: {version} to numeric: it can be at most {_MAX_VERSION_NUMBER}."
        )
    return None


def extract_version_number(version: str) -> str:
    """Return the number in a version's id: letters, maybe `_` or `-`, then digits; "" for other ids."""
    match = _NUMBERED.fullmatch(version)
    return str(value) if match and (value := int(match[1])) <= _MAX_VERSION_NUMBER else ""


def to_protocol_version(version: str) -> str:
    """Return the name of a version in other protocols: its number, or else its id."""
    return extract_version_number(version) or version


def choose_version(asked: ModelAddress, versions: LabelsByVersion) -> str:
    """Return the id of the version that is addressed, "" for the default one.

    Raises NotFound, InvalidArgument for a label that no version has (as TensorFlow Serving does), or
    FailedPrecondition where it may be several.
    """
    if asked.label:
        labelled = [
            version
            for version, labels in versions.items()
            if labels.get(asked.label, "no").lower() not in _FALSE_LABELS
        ]
        meant = labelled or [version for version in (asked.label,) if version in versions]
    elif asked.version in versions or not asked.version:
        return asked.version
    else:
        wanted = asked.version.lstrip("0") or "0"
        is_number = _DIGITS.fullmatch(asked.version) is not None
        meant = [version for version in versions if is_number and extract_version_number(version) == wanted]
    if not meant and asked.label:
        raise InvalidArgument(
            f"Unrecognized servable version label: {asked.label}. {_describe_versions(asked.model, versions)}"
        )
    if not meant:
        raise NotFound(
            f"Servable not found for request: {asked}. {_describe_versions(asked.model, versions)}"
        )
    if len(meant) > 1:
        what = f"label {asked.label}" if asked.label else f"number {asked.version}"
        raise FailedPrecondition(
            f"Several versions of {asked.model} have the {what}: {_abbreviate_list(meant)}. "
            "Name one by its id."
        )
    return meant[0]


def unknown_model_error(asked: ModelAddress) -> NotFound:
    """The error for a missing model, in words that clients of both protocols look for."""
    unknown = f"Request for unknown model: there is no model {asked.model}."
    return NotFound(f"{unknown} Servable not found for request: {asked}.")


def _describe_versions(model: ModelName, versions: LabelsByVersion) -> str:
    if not versions:
        return f"The model {model} has no versions."
    return f"The versions of {model} are {_abbreviate_list(list(versions))}."


def _abbreviate_list(versions: list[str]) -> str:
    more = len(versions) - _MAX_VERSIONS_NAMED
    return ", ".join(versions[:_MAX_VERSIONS_NAMED]) + (f" and {more} more" if more > 0 else "")
