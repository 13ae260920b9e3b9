"""The readers of one model: made when a call is first seen, and kept for those that say the same."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from serving.errors import ServingError
from serving.node.dialects import Asked, Make, Model, Reader, Reply
from serving.protocols import Call, Dialect
from serving.protocols.errors import refusal
from serving.runtimes.instances import Batch

# Where each dialect is; what is not asked for is not imported.
DIALECTS: Mapping[Dialect, str] = {
    Dialect.AI_PLATFORM: "serving.node.dialects.ai_platform",
    Dialect.TENSORFLOW: "serving.node.dialects.tensorflow",
    Dialect.VERTEX: "serving.node.dialects.vertex",
    Dialect.INFERENCE: "serving.node.dialects.inference",
    Dialect.TENSORFLOW_GRPC: "serving.node.dialects.tensorflow_grpc",
    Dialect.INFERENCE_GRPC: "serving.node.dialects.inference_grpc",
}
# Readers that are kept: clients may say what they like of themselves.
_MANY = 256


class Readers:
    """The memory."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._known: dict[Call, Reader] = {}

    def of(self, call: Call) -> Reader:
        """The reader of a call."""
        reader = self._known.get(call)
        if reader is None:
            if len(self._known) >= _MANY:
                self._known.clear()
            reader = self._known[call] = self._make(call)
        return reader

    def _make(self, call: Call) -> Reader:
        make: Make = importlib.import_module(DIALECTS[call.dialect]).reader
        try:
            return make(call, self._model)
        except ServingError as error:
            return _Refusing(call, error)


class _Refusing:
    """The reader of a call that cannot be."""

    def __init__(self, call: Call, error: ServingError) -> None:
        self._call = call
        self._error = error

    def read(self, body: bytes | bytearray) -> Asked:
        raise self._error

    def write(self, asked: Asked, predictions: Batch) -> Reply:
        raise self._error

    def refuse(self, error: ServingError) -> Reply:
        return refusal(error, self._call.dialect)
