"""Vertex AI's requests to containers: AI Platform's JSON, with further arguments in `parameters`.

    {"instances": [...], "parameters": {"output_margin": true}}

What AI Platform's clients would have put beside the instances stands in an object there; both are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.errors import InvalidInputs, ServingError
from serving.node.codecs import DecodedRequest, Reply, RequestMetadata, ServedModel
from serving.protocols import Dialect
from serving.protocols.errors import render_error
from serving.runtimes import InputFormat
from serving.runtimes.input_conversion import describe_json_type
from serving.runtimes.instance_batch import Batch
from serving.runtimes.json_codec import encode_predictions

_PARAMETERS = "parameters"


def create_codec(_: RequestMetadata, model: ServedModel) -> VertexCodec:
    return VertexCodec(model)


class VertexCodec:
    """Reads and writes for one model."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def decode_request(self, body: bytes | bytearray) -> DecodedRequest:
        """What is to be computed. Raises InvalidInputs."""
        instances, fields = self._model.decoder.decode(body, self._form)
        return DecodedRequest(instances, merge_parameters(fields))

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        """AI Platform's answer. Raises InvalidOutputs for what JSON cannot carry."""
        return Reply(200, encode_predictions(predictions, self._model.answer_style))

    def encode_error(self, error: ServingError) -> Reply:
        """AI Platform's answer with an error."""
        return render_error(error, Dialect.VERTEX)

    def _form(self, fields: Mapping[str, Any]) -> InputFormat:
        return self._model.runtime.input_format(merge_parameters(fields))


def merge_parameters(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments in the fields of a body, its instances left out: those in `parameters`, and all others.

    Raises InvalidInputs for parameters that are no object, and for an argument that is there twice.
    """
    if _PARAMETERS not in fields:
        return fields
    inner = fields[_PARAMETERS]
    outer = {name: value for name, value in fields.items() if name != _PARAMETERS}
    if inner is None:
        return outer
    if not isinstance(inner, dict):
        raise InvalidInputs(
            f'"parameters" must be an object of arguments by name; it is {describe_json_type(inner)}.'
        )
    if twice := sorted(inner.keys() & outer):
        raise InvalidInputs(f'{twice} are in "parameters" and beside it. Give each argument once.')
    return {**outer, **inner}
