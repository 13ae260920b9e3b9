"""Reads the model that a gRPC message is for from its bytes; the rest of the message is not parsed.

The gateway needs no other field of it, and no protobuf for these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from serving.errors import InvalidArgument
from serving.protocols.protobuf_fields import (
    BYTES,
    VARINT,
    ByteBuffer,
    MalformedProtobuf,
    ProtobufField,
    iter_fields,
    read_varint,
    to_signed_int64,
)

# Messages have a field for each input, and their model's usually comes first. It is not searched behind so
# many fields, nor in more tasks, of which each has two: parsing must not keep the gateway busy for long.
_MAX_FIELDS, _MAX_TASK_FIELDS = 1024, 16
_MAX_TASKS = 64
# Long specs are wrong ones.
_MAX_SPEC_BYTES = 1024
_CACHE_SIZE = 1024


class ModelSpec(NamedTuple):
    """The model that a message names; `version` and `label` are "" where it names none."""

    model: str
    version: str = ""
    label: str = ""


def extract_model_spec(message: str, body: ByteBuffer) -> ModelSpec:
    """Return the model of a message by its full name, one of `tensorflow.serving` or `inference`; "" if it
    has none.

    Raises InvalidArgument for bytes that are no such message, and for tasks of several models.
    """
    try:
        return _PARSERS[message](body)
    except (MalformedProtobuf, UnicodeDecodeError) as error:
        raise InvalidArgument(f"The message cannot be read as {message}: {error}.") from error


def _parse_spec_field(body: ByteBuffer) -> ModelSpec:
    """The spec is in field 1."""
    return _merge_spec_parts(body, islice(iter_fields(body), _MAX_FIELDS))


def _parse_task_specs(body: ByteBuffer) -> ModelSpec:
    """The spec is shared by the tasks of a MultiInferenceRequest, each of which has it in its field 1."""
    tasks = [field for field in islice(iter_fields(body), _MAX_FIELDS) if _is_delimited_field(field, 1)]
    if len(tasks) > _MAX_TASKS:
        raise InvalidArgument(f"The request has {len(tasks)} tasks or more; it can have {_MAX_TASKS}.")
    specs = [
        _merge_spec_parts(body, islice(iter_fields(body, task.start, task.end), _MAX_TASK_FIELDS))
        for task in tasks
    ]
    if len(set(specs)) > 1:
        named = ", ".join(dict.fromkeys(map(_format_spec, specs)))
        raise InvalidArgument(
            f"The tasks of one request must name one version of one model alike; they name {named}. "
            "Send one request for each."
        )
    return specs[0] if specs else ModelSpec("")


def _format_spec(spec: ModelSpec) -> str:
    if spec.label:
        return f"{spec.model} (label {spec.label})"
    return f"{spec.model} (version {spec.version})" if spec.version else spec.model


def _parse_name_and_version(body: ByteBuffer) -> ModelSpec:
    """The name is in field 1, the version in field 2."""
    name = version = b""
    for field in islice(iter_fields(body), _MAX_FIELDS):
        if _is_delimited_field(field, 1):
            name = bytes(body[field.start : field.end])
        elif _is_delimited_field(field, 2):
            version = bytes(body[field.start : field.end])
    _check_length(len(name) + len(version))
    return ModelSpec(name.decode(), version.decode())


def _parse_name_after_repository(body: ByteBuffer) -> ModelSpec:
    """The name is in field 2, behind that of a repository."""
    name = b""
    for field in islice(iter_fields(body), _MAX_FIELDS):
        if _is_delimited_field(field, 2):
            name = bytes(body[field.start : field.end])
    _check_length(len(name))
    return ModelSpec(name.decode())


_PARSERS: Mapping[str, Callable[[ByteBuffer], ModelSpec]] = {
    "tensorflow.serving.PredictRequest": _parse_spec_field,
    "tensorflow.serving.ClassificationRequest": _parse_spec_field,
    "tensorflow.serving.RegressionRequest": _parse_spec_field,
    "tensorflow.serving.MultiInferenceRequest": _parse_task_specs,
    "tensorflow.serving.GetModelMetadataRequest": _parse_spec_field,
    "tensorflow.serving.GetModelStatusRequest": _parse_spec_field,
    "inference.ModelInferRequest": _parse_name_and_version,
    "inference.ModelReadyRequest": _parse_name_and_version,
    "inference.ModelMetadataRequest": _parse_name_and_version,
    "inference.ModelConfigRequest": _parse_name_and_version,
    "inference.ModelStatisticsRequest": _parse_name_and_version,
    "inference.RepositoryModelLoadRequest": _parse_name_after_repository,
    "inference.RepositoryModelUnloadRequest": _parse_name_after_repository,
}


def _merge_spec_parts(body: ByteBuffer, among: Iterable[ProtobufField]) -> ModelSpec:
    """Join the parts of the spec in field 1, as if they stood behind each other."""
    parts = [body[field.start : field.end] for field in among if _is_delimited_field(field, 1)]
    _check_length(sum(map(len, parts)))
    return _parse_tensorflow_spec(b"".join(parts))


def _is_delimited_field(field: ProtobufField, number: int) -> bool:
    return field.number == number and field.wire_type == BYTES


def _check_length(size: int) -> None:
    if size > _MAX_SPEC_BYTES:
        raise InvalidArgument(f"The model's name and version have {size} bytes: no model is called that.")


@lru_cache(_CACHE_SIZE)
def _parse_tensorflow_spec(spec: bytes) -> ModelSpec:
    """Parse a tensorflow.serving.ModelSpec."""
    name = version = label = ""
    for field in iter_fields(spec):
        if _is_delimited_field(field, 1):
            name = spec[field.start : field.end].decode()
        elif _is_delimited_field(field, 2):  # an Int64Value; of a version and a label, the last counts
            version, label = str(_parse_int64_value(spec, field)), ""
        elif _is_delimited_field(field, 4):
            version, label = "", spec[field.start : field.end].decode()
    return ModelSpec(name, version, label)


def _parse_int64_value(spec: bytes, field: ProtobufField) -> int:
    value = 0
    for inner in iter_fields(spec, field.start, field.end):
        if inner.number == 1 and inner.wire_type == VARINT:
            value = to_signed_int64(read_varint(spec, inner.start, inner.end)[0])
    return value
