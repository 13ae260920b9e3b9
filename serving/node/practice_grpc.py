"""What a node asks itself as its clients over gRPC do; see `serving.node.practice`.

Imported only where gRPC is switched on (setting `grpc_port`).
"""

from __future__ import annotations

from collections.abc import Iterator

from serving.node.dialects.raw import to_raw
from serving.node.dialects.tensorproto import message_of
from serving.node.practice import MODEL, Question, described, tensors_of
from serving.protocols import Call, Dialect
from serving.protocols.protos import message
from serving.schema import ModelSchema

# The field of the tensors in a PredictRequest.
_INPUTS = 2


def questions(schema: ModelSchema) -> Iterator[Question]:
    """The example of a schema in each protocol over gRPC; none where there is none."""
    tensors = {} if schema.example is None else tensors_of(schema)
    if not tensors:
        return
    predict = message("tensorflow.serving.PredictRequest")()
    predict.model_spec.name = MODEL
    body = predict.SerializeToString() + b"".join(message_of(tensors, _INPUTS))
    yield Question(Call(Dialect.TENSORFLOW_GRPC, "predict", MODEL), body)
    raw = [bytes(to_raw(name, array)) for name, array in tensors.items()]
    infer = message("inference.ModelInferRequest")(model_name=MODEL, raw_input_contents=raw)
    for one in described(tensors):
        infer.inputs.add(**one)
    yield Question(Call(Dialect.INFERENCE_GRPC, "infer", MODEL), infer.SerializeToString())
