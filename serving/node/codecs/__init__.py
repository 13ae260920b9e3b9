"""How requests are read and answers are written, one file for each protocol: bytes in, bytes out.

A dialect knows no server, no queue and no gateway. What is computed together may have come in several.
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
    """What a dialect knows of the model: the form it takes, its schema, and a decoder of JSON instances.

    `style` is how AI Platform's answers are written.
    """

    runtime: Runtime
    schema: ModelSchema
    decoder: InstancesDecoder
    max_json_depth: int = DEFAULT_MAX_DEPTH  # how deep JSON may be nested
    answer_style: AnswerStyle = AnswerStyle()


@dataclass(frozen=True, slots=True)
class DecodedRequest:
    """What a body says: instances and parameters as `Runtime.predict` takes them.

    `state` is whatever the dialect needs to write the answer.
    """

    instances: Batch
    parameters: Mapping[str, Any] = field(default_factory=dict)
    state: Any = None


class Codec(Protocol):
    """One dialect, for one call: made once for all requests that say the same of themselves."""

    def decode_request(self, body: bytes | bytearray) -> DecodedRequest:
        """What is to be computed. Raises InvalidInputs, or another ServingError, if it is wrong."""

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        """The answer with these predictions. Raises InvalidOutputs for what the protocol cannot carry."""

    def encode_error(self, error: ServingError) -> Reply:
        """The answer with an error."""


class CodecFactory(Protocol):
    """What each module of a protocol has under the name `create_codec`."""

    def __call__(self, call: RequestMetadata, model: ServedModel) -> Codec:
        """Raises a ServingError for a call that the protocol does not have."""


# Where each dialect is; what is not asked for is not imported.
CODEC_MODULES: Mapping[Dialect, str] = {
    Dialect.AI_PLATFORM: "serving.node.codecs.ai_platform",
    Dialect.TENSORFLOW: "serving.node.codecs.tensorflow_rest",
    Dialect.VERTEX: "serving.node.codecs.vertex",
    Dialect.INFERENCE: "serving.node.codecs.open_inference_rest",
    Dialect.TENSORFLOW_GRPC: "serving.node.codecs.tensorflow_grpc",
    Dialect.INFERENCE_GRPC: "serving.node.codecs.open_inference_grpc",
}
# Readers that are kept: clients may say what they like of themselves.
_MAX_CODECS = 256


class CodecCache:
    """The memory."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._codecs: dict[RequestMetadata, Codec] = {}

    def get_or_create(self, call: RequestMetadata) -> Codec:
        """The reader of a call."""
        reader = self._codecs.get(call)
        if reader is None:
            if len(self._codecs) >= _MAX_CODECS:
                self._codecs.clear()
            reader = self._codecs[call] = self._create_codec(call)
        return reader

    def _create_codec(self, call: RequestMetadata) -> Codec:
        make: CodecFactory = importlib.import_module(CODEC_MODULES[call.dialect]).create_codec
        try:
            return make(call, self._model)
        except ServingError as error:
            return _RejectingCodec(call, error)


class _RejectingCodec:
    """The reader of a call that cannot be."""

    def __init__(self, call: RequestMetadata, error: ServingError) -> None:
        self._call = call
        self._error = error

    def decode_request(self, body: bytes | bytearray) -> DecodedRequest:
        raise self._error

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        raise self._error

    def encode_error(self, error: ServingError) -> Reply:
        return render_error(error, self._call.dialect)
