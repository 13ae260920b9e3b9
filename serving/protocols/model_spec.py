"""Which model a gRPC message is for, read from its bytes; all else of the message stays unread.

The gateway knows no other field of it, and needs no protobuf for these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from serving.errors import InvalidArgument
from serving.protocols.fields import BYTES, VARINT, Broken, Data, Field, fields, signed, varint

# Messages have a field for each input, and their model's comes first as a rule. Behind so many it is not
# looked for, nor in more tasks, of which each has two: what a client sends must not take the gateway long.
_MAX_FIELDS, _MOST_OF_TASK = 1024, 16
_TASKS = 64
# Long specs are wrong ones.
_LONGEST = 1024
_REMEMBERED = 1024


class ModelSpec(NamedTuple):
    """What a message says of its model; `version` and `label` are "" where it leaves them open."""

    model: str
    version: str = ""
    label: str = ""


def model_spec(message: str, body: Data) -> ModelSpec:
    """The model of a message by its full name, one of `tensorflow.serving` or `inference`; "" if it has none.

    Raises InvalidArgument for bytes that are no such message, and for tasks that are for several models.
    """
    try:
        return _READ[message](body)
    except (Broken, UnicodeDecodeError) as error:
        raise InvalidArgument(f"The message cannot be read as {message}: {error}.") from error


def _first(body: Data) -> ModelSpec:
    """The spec in field 1."""
    return _spec(body, islice(fields(body), _MAX_FIELDS))


def _tasks(body: Data) -> ModelSpec:
    """The spec that the tasks of a MultiInferenceRequest share, each of which has it in its field 1."""
    tasks = [field for field in islice(fields(body), _MAX_FIELDS) if _is(field, 1)]
    if len(tasks) > _TASKS:
        raise InvalidArgument(f"The request has {len(tasks)} tasks or more; it can have {_TASKS}.")
    specs = [_spec(body, islice(fields(body, task.start, task.end), _MOST_OF_TASK)) for task in tasks]
    if len(set(specs)) > 1:
        named = ", ".join(dict.fromkeys(map(_shown, specs)))
        raise InvalidArgument(
            f"The tasks of one request must name one version of one model alike; they name {named}. "
            "Send one request for each."
        )
    return specs[0] if specs else ModelSpec("")


def _shown(spec: ModelSpec) -> str:
    if spec.label:
        return f"{spec.model} (label {spec.label})"
    return f"{spec.model} (version {spec.version})" if spec.version else spec.model


def _named(body: Data) -> ModelSpec:
    """A name in field 1 and a version in field 2."""
    name = version = b""
    for field in islice(fields(body), _MAX_FIELDS):
        if _is(field, 1):
            name = bytes(body[field.start : field.end])
        elif _is(field, 2):
            version = bytes(body[field.start : field.end])
    _check(len(name) + len(version))
    return ModelSpec(name.decode(), version.decode())


def _named_second(body: Data) -> ModelSpec:
    """A name in field 2, behind that of a repository."""
    name = b""
    for field in islice(fields(body), _MAX_FIELDS):
        if _is(field, 2):
            name = bytes(body[field.start : field.end])
    _check(len(name))
    return ModelSpec(name.decode())


_READ: Mapping[str, Callable[[Data], ModelSpec]] = {
    "tensorflow.serving.PredictRequest": _first,
    "tensorflow.serving.ClassificationRequest": _first,
    "tensorflow.serving.RegressionRequest": _first,
    "tensorflow.serving.MultiInferenceRequest": _tasks,
    "tensorflow.serving.GetModelMetadataRequest": _first,
    "tensorflow.serving.GetModelStatusRequest": _first,
    "inference.ModelInferRequest": _named,
    "inference.ModelReadyRequest": _named,
    "inference.ModelMetadataRequest": _named,
    "inference.ModelConfigRequest": _named,
    "inference.ModelStatisticsRequest": _named,
    "inference.RepositoryModelLoadRequest": _named_second,
    "inference.RepositoryModelUnloadRequest": _named_second,
}


def _spec(body: Data, among: Iterable[Field]) -> ModelSpec:
    """The spec in field 1, which may come in parts: it is as if they stood behind each other."""
    parts = [body[field.start : field.end] for field in among if _is(field, 1)]
    _check(sum(map(len, parts)))
    return _parse(b"".join(parts))


def _is(field: Field, number: int) -> bool:
    return field.number == number and field.kind == BYTES


def _check(size: int) -> None:
    if size > _LONGEST:
        raise InvalidArgument(f"The model's name and version have {size} bytes: no model is called that.")


@lru_cache(_REMEMBERED)
def _parse(spec: bytes) -> ModelSpec:
    """A tensorflow.serving.ModelSpec."""
    name = version = label = ""
    for field in fields(spec):
        if _is(field, 1):
            name = spec[field.start : field.end].decode()
        elif _is(field, 2):  # an Int64Value; of a version and a label, the last counts
            version, label = str(_wrapped(spec, field)), ""
        elif _is(field, 4):
            version, label = "", spec[field.start : field.end].decode()
    return ModelSpec(name, version, label)


def _wrapped(spec: bytes, field: Field) -> int:
    value = 0
    for inner in fields(spec, field.start, field.end):
        if inner.number == 1 and inner.kind == VARINT:
            value = signed(varint(spec, inner.start, inner.end)[0])
    return value
