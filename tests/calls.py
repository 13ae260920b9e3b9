"""Calls over gRPC, with our own messages, as tests make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from serving.protocols.protos import load_message_class
from tests.bounds import HANG_SECONDS

__all__ = ["Reply", "call", "grpc", "infer_request", "load_message_class", "predict_request"]

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Reply:
    """What a call was answered: a message, or a code and its text; and what followed."""

    message: Any
    code: str = "OK"
    text: str = ""
    trailing: Mapping[str, str] = field(default_factory=dict)


def call(
    channel: grpc.Channel,
    method: str,
    response: str,
    request: Any,
    *,
    seconds: float = HANG_SECONDS,
    metadata: Metadata = (),
) -> Reply:
    """One call of a method, `package.Service/Method`; `response` is the full name of its answer."""
    serialised = request if isinstance(request, bytes) else request.SerializeToString()
    stub = channel.unary_unary(f"/{method}", response_deserializer=load_message_class(response).FromString)
    try:
        answer, made = stub.with_call(serialised, timeout=seconds, metadata=metadata)
    except grpc.RpcError as error:
        return Reply(None, error.code().name, error.details(), dict(error.trailing_metadata() or ()))
    return Reply(answer, trailing=dict(made.trailing_metadata()))


def predict_request(model: str, values: Sequence[float], *, version: str = "", label: str = "") -> Any:
    """A PredictRequest with an input x of numbers; a version is a number."""
    request = load_message_class("tensorflow.serving.PredictRequest")()
    request.model_spec.name = model
    if version:
        request.model_spec.version.value = int(version)
    if label:
        request.model_spec.version_label = label
    tensor = request.inputs["x"]
    tensor.dtype = 2  # DT_DOUBLE
    tensor.tensor_shape.dim.add(size=len(values))
    tensor.double_val.extend(values)
    return request


def infer_request(model: str, values: Sequence[float], *, version: str = "") -> Any:
    """A ModelInferRequest with an input x of numbers."""
    request = load_message_class("inference.ModelInferRequest")(model_name=model, model_version=version)
    tensor = request.inputs.add(name="x", datatype="FP64", shape=[len(values)])
    tensor.contents.fp64_contents.extend(values)
    return request
