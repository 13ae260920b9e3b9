"""Checks of new batch predictions that need no look at their files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from serving.errors import InvalidArgument, ServingError, field_error
from serving.gateway.catalog.checks import NUMERIC_VERSION
from serving.gateway.catalog.job_checks.file_paths import find_path_problem
from serving.gateway.catalog.lookup import resolve_version
from serving.gateway.state.catalog_state import StateDraft
from serving.gateway.state.records import (
    ChangeStamp,
    JobKindName,
    JobRecord,
    TuningRecord,
    VersionRecord,
)
from serving.names import ModelName, VersionName, check_location, parse_model_or_version_name
from serving.resources import BatchOptions, Job, PredictionInput, PredictionOutput

# The formats to read, and those to write, by their names on the wire.
INPUT_FORMATS = ("JSON", "TEXT", "TF_RECORD", "TF_RECORD_GZIP")
OUTPUT_FORMATS = ("JSON", "CSV")
UNSPECIFIED_FORMAT = "DATA_FORMAT_UNSPECIFIED"

_RUNNER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*Runner")
_FRACTION = re.compile(r"[0-9]+(\.[0-9]*)?%?|\.[0-9]+%?")
# An int64, in digits: Python reads no more than 4300 of them.
_WHOLE_NUMBER = re.compile(r"[0-9]{1,40}")
_MAX_INT64 = (1 << 63) - 1


class PredictionRules:
    """What a new job must be; see `serving.gateway.catalog.jobs.NewJobRules`."""

    name = JobKindName.PREDICTION

    def check_new_job(self, draft: StateDraft, job: Job) -> VersionRecord | None:
        given = job.prediction_input or PredictionInput()
        check_prediction_input(given)
        check_batch_options(job.batch_options or BatchOptions())
        return _resolve_version(draft, given)

    def create_study(self, draft: StateDraft, stamp: ChangeStamp, record: JobRecord) -> TuningRecord | None:
        return None

    def get_priority(self, job: Job) -> int:
        return 0

    def build_first_output(self, job: Job) -> PredictionOutput:
        given = job.prediction_input or PredictionInput()
        return PredictionOutput(output_path=given.output_path)


def check_prediction_input(given: PredictionInput) -> None:
    """Check what is read, with which model, and where results go. Raises InvalidArgument."""
    sources = [name for name in ("model_name", "version_name", "uri") if getattr(given, name)]
    if len(sources) != 1:
        raise _input_error(
            sources[-1] if sources else "model_name",
            f"Give exactly one of modelName, versionName and uri; {len(sources)} are given.",
        )
    if given.uri:
        _check_path("uri", given.uri)
    _check_formats(given)
    if not given.input_paths:
        raise _input_error(
            "input_paths", "Say what to read: a file, FOLDER/*, or PREFIX*; more than one may be."
        )
    for path in given.input_paths:
        _check_path("input_paths", path, wildcard=True)
    if not given.output_path:
        raise _input_error(
            "output_path", "Say where the results go: gs://BUCKET/FOLDER or the path of a folder."
        )
    _check_path("output_path", given.output_path)
    _check_numbers(given)


def check_batch_options(given: BatchOptions) -> None:
    """Check the options that are our own additions. Raises InvalidArgument."""
    if len(set(given.keys)) < len(given.keys) or not all(given.keys):
        raise _option_error("keys", "Name each field that passes the model by once.")
    if given.max_errors and not is_error_limit(given.max_errors):
        raise _option_error(
            "max_errors",
            f"{given.max_errors!r} is not an error limit: a number of records (100), or a share of them "
            "(10% or 0.1).",
        )
    if given.runner and not is_runner_name(given.runner):
        raise _option_error(
            "runner", f"{given.runner!r} is no Beam runner; name it like FlinkRunner or DataflowRunner."
        )


def is_runner_name(name: str) -> bool:
    """Whether this may be the name of a Beam runner."""
    return bool(_RUNNER.fullmatch(name))


def is_error_limit(text: str) -> bool:
    """Whether this is a number of records, or a fraction of them."""
    if _WHOLE_NUMBER.fullmatch(text):
        return True
    if not _FRACTION.fullmatch(text):
        return False
    return float(text.removesuffix("%")) <= (100 if text.endswith("%") else 1)


def _resolve_version(draft: StateDraft, given: PredictionInput) -> VersionRecord | None:
    """Return the version that a job predicts with, None if it brings a model of its own."""
    if given.uri:
        return None
    field = "model_name" if given.model_name else "version_name"
    kind, form = (
        (ModelName, "projects/PROJECT/models/MODEL")
        if given.model_name
        else (VersionName, "projects/PROJECT/models/MODEL/versions/VERSION")
    )
    text = given.model_name or given.version_name
    field = f"prediction_input.{field}"
    try:
        target = parse_model_or_version_name(text)
    except InvalidArgument:
        target = None
    if not isinstance(target, kind):
        raise field_error(InvalidArgument, field, f"Invalid name {text!r}: expected {form}.")
    try:
        version = resolve_version(draft, target)
    except ServingError as error:
        raise field_error(type(error), field, error.message.removeprefix("Field: name Error: ")) from error
    if version.version.container is not None:
        raise field_error(
            InvalidArgument, field, f"{text} has a container: containers predict online, not in batch."
        )
    return version


def _check_formats(given: PredictionInput) -> None:
    if given.data_format in ("", UNSPECIFIED_FORMAT):
        raise _input_error("data_format", f"Say what is in the files: {_join_names(INPUT_FORMATS)}.")
    if given.data_format not in INPUT_FORMATS:
        only = " is for results only" if given.data_format in OUTPUT_FORMATS else " is unknown"
        raise _input_error(
            "data_format", f"{given.data_format!r}{only}; what can be read: {_join_names(INPUT_FORMATS)}."
        )
    # TEXT is another name of JSON.
    if given.output_data_format not in ("", UNSPECIFIED_FORMAT, "TEXT", *OUTPUT_FORMATS):
        raise _input_error(
            "output_data_format",
            f"Results cannot be written as {given.output_data_format!r}, but as "
            f"{_join_names(OUTPUT_FORMATS)}.",
        )


def _check_numbers(given: PredictionInput) -> None:
    if not given.region:
        raise _input_error("region", "Give a region, e.g. us-central1; they are all this one server.")
    try:
        check_location(given.region)
    except InvalidArgument as error:
        raise _input_error("region", error.message) from error
    for name in ("batch_size", "max_worker_count"):
        text = getattr(given, name)
        if text and not (_WHOLE_NUMBER.fullmatch(text) and 1 <= int(text) <= _MAX_INT64):
            raise _input_error(name, f"It must be a whole number of at least 1; {text!r} is not.")
    if given.runtime_version and not NUMERIC_VERSION.fullmatch(given.runtime_version):
        raise _input_error("runtime_version", f"{given.runtime_version!r} is not a version like 2.11.")


def _check_path(field: str, path: str, *, wildcard: bool = False) -> None:
    if problem := find_path_problem(path):
        raise _input_error(field, problem)
    if "*" in (path[:-1] if wildcard else path):
        place = "only be the last character" if wildcard else "not be in it"
        raise _input_error(field, f"'*' can {place}: {path!r}.")


def _join_names(formats: Iterable[str]) -> str:
    return ", ".join(formats)


def _input_error(field: str, description: str) -> ServingError:
    return field_error(InvalidArgument, f"prediction_input.{field}", description)


def _option_error(field: str, description: str) -> ServingError:
    return field_error(InvalidArgument, f"batch_options.{field}", description)
