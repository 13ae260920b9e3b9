"""Warm-up requests, recorded or made up.

Records are the `PredictionLog` messages of TensorFlow Serving, read without its package.
Source: prediction_log.proto of TensorFlow Serving.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from serving.protocols.protos import load_message_class, serialize_input_examples

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
MAX_RECORDS = 1000
_PARSE_OPS = ("ParseExample", "ParseExampleV2")


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
        return ExamplesRecord((request.model_spec.signature_name,), serialize_input_examples(request.input))
    if kind == "multi_inference_log":
        request = log.multi_inference_log.request
        names = tuple(task.model_spec.signature_name for task in request.tasks)
        return ExamplesRecord(names, serialize_input_examples(request.input))
    return None


def make_serialized_examples(graph: Any) -> Iterator[bytes]:
    """One for each op of a GraphDef that parses them, in its functions too; all that it must have is zero."""
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        named = {node.name: node for node in nodes}
        for node in nodes:
            if node.op in _PARSE_OPS:
                keys = list(_read_dense_keys(node, named))
                kinds = [tf.dtypes.as_dtype(kind) for kind in node.attr["Tdense"].list.type]
                shapes = list(node.attr["dense_shapes"].list.shape)
                if len(keys) == len(kinds) == len(shapes):
                    yield _make_example(zip(keys, kinds, map(_count_values, shapes), strict=True))


def _read_dense_keys(node: Any, named: Mapping[str, Any]) -> Iterator[str]:
    """The names of the features that have a fixed number of values."""
    # serialized, names, then keys: as one tensor each of sparse and dense ones, or as a tensor for each key.
    if node.op == "ParseExampleV2":
        places: Iterable[int] = (3,)
    else:
        sparse, dense = node.attr["Nsparse"].i, node.attr["Ndense"].i
        places = range(2 + sparse, 2 + sparse + dense)
    for place in places:
        constant = named.get(node.input[place].partition(":")[0])
        if constant is not None and constant.op == "Const":
            keys = tf.make_ndarray(constant.attr["value"].tensor)
            yield from (key.decode() for key in np.ravel(keys).tolist())


def _count_values(shape: Any) -> int:
    return math.prod(max(dimension.size, 1) for dimension in shape.dim)


def _make_example(features: Iterable[tuple[str, Any, int]]) -> bytes:
    example = tf.train.Example()
    for key, kind, size in features:
        feature = example.features.feature[key]
        if kind == tf.string:
            feature.bytes_list.value.extend([b""] * size)
        elif kind == tf.int64:
            feature.int64_list.value.extend([0] * size)
        else:
            feature.float_list.value.extend([0.0] * size)
    written: bytes = example.SerializeToString(deterministic=True)
    return written
