"""The warm-up requests of `serving.node.warmup.protocol_warmup` over gRPC.

Imported only where gRPC is switched on (setting `grpc_port`).
"""

from __future__ import annotations

from collections.abc import Iterator

from serving.model_schema import ModelSchema
from serving.node.codecs.raw_tensors import to_raw
from serving.node.codecs.tensorproto import encode_tensors
from serving.node.warmup.protocol_warmup import (
    EXAMPLE_MODEL,
    ExampleRequest,
    describe_tensors,
    make_example_tensors,
)
from serving.protocols import Dialect, RequestMetadata
from serving.protocols.protos import load_message_class

# The field of the tensors in a PredictRequest.
_INPUTS = 2


def make_grpc_examples(schema: ModelSchema) -> Iterator[ExampleRequest]:
    """The example of a schema in each protocol over gRPC; nothing if it has none."""
    tensors = {} if schema.example is None else make_example_tensors(schema)
    if not tensors:
        return
    predict = load_message_class("tensorflow.serving.PredictRequest")()
    predict.model_spec.name = EXAMPLE_MODEL
    body = predict.SerializeToString() + b"".join(encode_tensors(tensors, _INPUTS))
    yield ExampleRequest(RequestMetadata(Dialect.TENSORFLOW_GRPC, "predict", EXAMPLE_MODEL), body)
    raw = [bytes(to_raw(name, array)) for name, array in tensors.items()]
    infer = load_message_class("inference.ModelInferRequest")(
        model_name=EXAMPLE_MODEL, raw_input_contents=raw
    )
    for one in describe_tensors(tensors):
        infer.inputs.add(**one)
    yield ExampleRequest(
        RequestMetadata(Dialect.INFERENCE_GRPC, "infer", EXAMPLE_MODEL), infer.SerializeToString()
    )
