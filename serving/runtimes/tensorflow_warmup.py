"""Recorded warm-up requests: the `PredictionLog` messages of TensorFlow Serving, read without its package.

Only the fields that are used are declared, in a descriptor pool of our own, so that nothing collides with
`tensorflow_serving.apis` where a user has it. A tensor is declared as bytes, which is the same on the wire;
whoever has TensorFlow parses it as `TensorProto`.
Source: prediction_log.proto, predict.proto and model.proto of TensorFlow Serving.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

FILE = "assets.extra/tf_serving_warmup_requests"
LIMIT = 1000

Malformed: type[Exception] = message.DecodeError

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = ".tensorflow.serving"


@dataclass(frozen=True, slots=True)
class Request:
    """One recorded predict request: `inputs` are serialised `TensorProto` messages by alias."""

    signature_name: str
    inputs: Mapping[str, bytes]


def parse(record: bytes) -> Request | None:
    """The predict request of a record; None if it logs another kind of call.

    Raises Malformed if the record is no `PredictionLog`.
    """
    log = _PredictionLog.FromString(record)
    if not log.HasField("predict_log"):
        return None
    request = log.predict_log.request
    return Request(request.model_spec.signature_name, dict(request.inputs))


def serialise(request: Request) -> bytes:
    """The record that `parse` reads: for writing warm-up files."""
    log = _PredictionLog()
    log.predict_log.request.model_spec.signature_name = request.signature_name
    log.predict_log.request.inputs.update(request.inputs)
    record: bytes = log.SerializeToString()
    return record


def _message(file: Any, name: str, *fields: tuple[str, int, str]) -> Any:
    """Declare a message of singular fields; a field's type is `string`, `bytes` or a message's name."""
    declared = file.message_type.add(name=name)
    for field, number, kind in fields:
        _field(declared, field, number, kind)
    return declared


def _field(declared: Any, name: str, number: int, kind: str) -> Any:
    scalar = {"string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES}.get(kind)
    field = declared.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    field.type = scalar or _Field.TYPE_MESSAGE
    if scalar is None:
        field.type_name = f"{_PACKAGE}.{kind}"
    return field


def _prediction_log() -> Any:
    """The class of `PredictionLog` messages."""
    file = descriptor_pb2.FileDescriptorProto(
        name="pilotlight/warmup.proto", package="tensorflow.serving", syntax="proto3"
    )
    _message(file, "ModelSpec", ("signature_name", 3, "string"))
    request = _message(file, "PredictRequest", ("model_spec", 1, "ModelSpec"))
    entry = request.nested_type.add(name="InputsEntry")
    entry.options.map_entry = True
    _field(entry, "key", 1, "string")
    _field(entry, "value", 2, "bytes")
    _field(request, "inputs", 2, "PredictRequest.InputsEntry").label = _Field.LABEL_REPEATED
    _message(file, "PredictLog", ("request", 1, "PredictRequest"))
    _message(file, "PredictionLog", ("predict_log", 6, "PredictLog"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.serving.PredictionLog"))


_PredictionLog = _prediction_log()
