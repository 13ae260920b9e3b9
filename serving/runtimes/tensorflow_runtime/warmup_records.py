"""Recorded warm-up requests: the `PredictionLog` messages of TensorFlow Serving, read without its package.

Source: prediction_log.proto of TensorFlow Serving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.protocols.protos import load_message_class, serialize_examples

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
MAX_RECORDS = 1000


@dataclass(frozen=True, slots=True)
class PredictRecord:
    """Tensors for one signature, "" for the default one: `TensorProto` messages by alias."""

    signature: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ExamplesRecord:
    """Serialised tf.Example messages for the one input of each of these signatures."""

    signatures: tuple[str, ...]
    examples: Sequence[bytes]


WarmupRecord = PredictRecord | ExamplesRecord


def parse_record(record: bytes) -> WarmupRecord | None:
    """The request of a record; None for the run of a session or a stream, which nothing here can answer.

    Raises MessageDecodeError if the record is no `PredictionLog`.
    """
    log = load_message_class("tensorflow.serving.PredictionLog").FromString(record)
    kind = log.WhichOneof("log_type")
    if kind == "predict_log":
        request = log.predict_log.request
        return PredictRecord(request.model_spec.signature_name, request.inputs)
    if kind in ("classify_log", "regress_log"):
        request = getattr(log, kind).request
        return ExamplesRecord((request.model_spec.signature_name,), serialize_examples(request.input))
    if kind == "multi_inference_log":
        request = log.multi_inference_log.request
        names = tuple(task.model_spec.signature_name for task in request.tasks)
        return ExamplesRecord(names, serialize_examples(request.input))
    return None
