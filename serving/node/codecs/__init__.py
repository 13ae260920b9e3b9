"""Codecs: request bytes to model inputs, predictions to response bytes; one module per protocol.

A codec knows no server, no queue and no gateway. One batch may have requests of several codecs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from serving.errors import ServingError
from serving.json_depth import DEFAULT_MAX_DEPTH
from serving.model_schema import ModelSchema
from serving.protocols import Dialect, Reply, RequestMetadata
from serving.protocols.errors import render_error
from serving.runtimes import Runtime
from serving.runtimes.instance_batch import Batch
from serving.runtimes.json_codec import AnswerStyle, InstancesDecoder

__all__ = ["Codec", "CodecFactory", "DecodedRequest", "Reply", "RequestMetadata", "ServedModel"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a codec knows of the model; `answer_style` is for AI Platform's answers."""

    runtime: Runtime
    schema: ModelSchema
    decoder: InstancesDecoder
    max_json_depth: int = DEFAULT_MAX_DEPTH  # how deep JSON may be nested
    answer_style: AnswerStyle = AnswerStyle()


@dataclass(frozen=True, slots=True)
class DecodedRequest:
    """A decoded body: instances and parameters as `Runtime.predict` takes them.

    `state` is whatever the codec needs to encode the answer.
    """

    instances: Batch
    parameters: Mapping[str, Any] = field(default_factory=dict)
    state: Any = None


class Codec(Protocol):
    """Decodes and encodes for one call: all requests with equal `RequestMetadata` share one."""

    def decode_request(self, body: bytes | bytearray) -> DecodedRequest:
        """Decode a body. Raises InvalidInputs or another ServingError."""

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        """Encode an answer. Raises InvalidOutputs for what the protocol cannot express."""

    def encode_error(self, error: ServingError) -> Reply:
        """Encode an error."""


class CodecFactory(Protocol):
    """What each module of a protocol has under the name `create_codec`."""

    def __call__(self, call: RequestMetadata, model: ServedModel) -> Codec:
        """Raises a ServingError for a call that the protocol does not have."""


# Imported at the first request of the protocol.
CODEC_MODULES: Mapping[Dialect, str] = {
    Dialect.AI_PLATFORM: "serving.node.codecs.ai_platform",
    Dialect.TENSORFLOW: "serving.node.codecs.tensorflow_rest",
    Dialect.VERTEX: "serving.node.codecs.vertex",
    Dialect.INFERENCE: "serving.node.codecs.open_inference_rest",
    Dialect.TENSORFLOW_GRPC: "serving.node.codecs.tensorflow_grpc",
    Dialect.INFERENCE_GRPC: "serving.node.codecs.open_inference_grpc",
}
# Bounded, since clients choose most fields of the metadata.
_MAX_CODECS = 256


class CodecCache:
    """Codecs by call, at most _MAX_CODECS."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._codecs: dict[RequestMetadata, Codec] = {}

    def get_or_create(self, call: RequestMetadata) -> Codec:
        codec = self._codecs.get(call)
        if codec is None:
            if len(self._codecs) >= _MAX_CODECS:
                self._codecs.clear()
            codec = self._codecs[call] = self._create_codec(call)
        return codec

    def _create_codec(self, call: RequestMetadata) -> Codec:
        make: CodecFactory = importlib.import_module(CODEC_MODULES[call.dialect]).create_codec
        try:
            return make(call, self._model)
        except ServingError as error:
            return _RejectingCodec(call, error)


class _RejectingCodec:
    """Answers every request of an impossible call with its error."""

    def __init__(self, call: RequestMetadata, error: ServingError) -> None:
        self._call = call
        self._error = error

    def decode_request(self, body: bytes | bytearray) -> DecodedRequest:
        raise self._error

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        raise self._error

    def encode_error(self, error: ServingError) -> Reply:
        return render_error(error, self._call.dialect)
