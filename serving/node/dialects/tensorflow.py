"""TensorFlow Serving's REST API: the row form of predictions."""

from __future__ import annotations

from serving.errors import ServingError
from serving.node.dialects import Asked, Call, Model, Reply
from serving.protocols.errors import refusal
from serving.runtimes.codec import encode
from serving.runtimes.instances import Batch


class Rows:
    """Reads as AI Platform does; a single output loses its name."""

    def __init__(self, call: Call, model: Model) -> None:
        self._call = call
        self._model = model

    def read(self, body: bytes | bytearray) -> Asked:
        """The instances and parameters."""
        return Asked(*self._model.decoder.decode(body, self._model.runtime.form))

    def write(self, asked: Asked, predictions: Batch) -> Reply:
        """The predictions as JSON."""
        return Reply(200, encode(_bare(predictions)))

    def refuse(self, error: ServingError) -> Reply:
        """The error as TensorFlow Serving tells it."""
        return refusal(error, self._call.dialect)


reader = Rows


def _bare(predictions: Batch) -> Batch:
    if isinstance(predictions, dict) and len(predictions) == 1:
        name, column = next(iter(predictions.items()))
        return predictions if column.dtype.kind in "OS" and name.endswith("_bytes") else column
    return predictions
