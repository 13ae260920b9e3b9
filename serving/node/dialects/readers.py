"""The readers of one model: made when a call is first seen, and kept for those that say the same."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from serving.errors import ServingError
from serving.node.codecs import Codec, CodecFactory, DecodedRequest, Reply, ServedModel
from serving.protocols import Dialect, RequestMetadata
from serving.protocols.errors import render_error
from serving.runtimes.instance_batch import Batch

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
        make: CodecFactory = importlib.import_module(CODEC_MODULES[call.dialect]).reader
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
