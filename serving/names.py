"""Resource names, as `projects/P/models/M/versions/V`, and the rules for each part.

Source: section 2.2 of the AI Platform contract. Models and versions may have `-` and `.` too, as those of
other servers do (`sklearn-iris`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from serving.errors import InvalidArgument, field_error

# No ":" in any id: it separates the verb of a path.
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# A "." at the end would be taken for that of a sentence, and some programs cut it off addresses.
_ID = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]{0,126}[A-Za-z0-9_-])?")
_JOB_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_LOCATION = re.compile(r"[a-z][a-z0-9-]{0,62}")
# Clients make ids of the user's name and the time: they may begin with a digit.
_STUDY_ID = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,126}[A-Za-z0-9_-])?")
_MODEL_OR_VERSION = re.compile(r"projects/([^/]+)/models/([^/]+)(?:/versions/([^/]+))?")


@dataclass(frozen=True, slots=True, order=True)
class ModelName:
    project: str
    model: str

    def __str__(self) -> str:
        return f"projects/{self.project}/models/{self.model}"


@dataclass(frozen=True, slots=True, order=True)
class VersionName:
    project: str
    model: str
    version: str

    @property
    def parent(self) -> ModelName:
        return ModelName(self.project, self.model)

    def __str__(self) -> str:
        return f"projects/{self.project}/models/{self.model}/versions/{self.version}"


@dataclass(frozen=True, slots=True, order=True)
class StudyName:
    project: str
    location: str
    study: str

    def __str__(self) -> str:
        return f"projects/{self.project}/locations/{self.location}/studies/{self.study}"

    def format_trial_name(self, number: int) -> str:
        return f"{self}/trials/{number}"


def check_project(project: str) -> str:
    """Returns the project id, if it is well-formed: any such project exists."""
    if not _PROJECT.fullmatch(project):
        raise InvalidArgument(
            f"Invalid project id {project!r}: letters, digits, '.', '_' and '-', at most 63 characters."
        )
    return project


def check_id(value: str, field: str) -> str:
    """Returns the id of a new model or version, if it is valid. Raises InvalidArgument."""
    if not _ID.fullmatch(value):
        raise field_error(
            InvalidArgument,
            field,
            f"Invalid id {value!r}: it must start with a letter and contain only letters, numbers, '_', '-' "
            "and '.', the last not at its end, at most 128 characters.",
        )
    return value


def check_job_id(value: str, field: str) -> str:
    """Returns the id of a new job, if it is valid. Raises InvalidArgument."""
    if not _JOB_ID.fullmatch(value):
        raise field_error(
            InvalidArgument,
            field,
            f"Invalid id {value!r}: it must start with a letter and contain only letters, numbers and "
            "underscores, at most 128 characters.",
        )
    return value


def check_study_id(value: str, field: str) -> str:
    """Returns the id of a new study, if it is valid. Raises InvalidArgument."""
    if not _STUDY_ID.fullmatch(value):
        raise field_error(
            InvalidArgument,
            field,
            f"Invalid id {value!r}: it must start with a letter, number or '_' and contain only these, '-' "
            "and '.', the last not at its end, at most 128 characters.",
        )
    return value


def check_location(location: str) -> str:
    """Returns the location id, if it is well-formed: any such location exists."""
    if not _LOCATION.fullmatch(location):
        raise InvalidArgument(f"Invalid location {location!r}: lower-case letters, digits and '-'.")
    return location


def parse_model_or_version_name(name: str) -> ModelName | VersionName:
    """The target of a prediction: a model (its default version) or a version."""
    match = _MODEL_OR_VERSION.fullmatch(name)
    if match is None:
        raise InvalidArgument(
            f"Invalid resource name {name!r}: expected projects/PROJECT/models/MODEL or "
            "projects/PROJECT/models/MODEL/versions/VERSION."
        )
    project, model, version = match.groups()
    return VersionName(project, model, version) if version else ModelName(project, model)
