"""Vertex AI's requests to containers: AI Platform's JSON, with further arguments in `parameters`.

    {"instances": [...], "parameters": {"output_margin": true}}

AI Platform has these arguments at the top level; both forms are accepted.
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
    """Decodes and encodes for one model."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def decode_request(self, body: bytes | bytearray) -> DecodedRequest:
        instances, fields = self._model.decoder.decode(body, self._input_format)
        return DecodedRequest(instances, merge_parameters(fields))

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        return Reply(200, encode_predictions(predictions, self._model.answer_style))

    def encode_error(self, error: ServingError) -> Reply:
        return render_error(error, Dialect.VERTEX)

    def _input_format(self, fields: Mapping[str, Any]) -> InputFormat:
        return self._model.runtime.input_format(merge_parameters(fields))


def merge_parameters(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merge the arguments in `parameters` with those at the top level of a body.

    Raises InvalidInputs for parameters that are no object, and for an argument in both places.
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
        raise InvalidInputs(
            f'{twice} are both in "parameters" and at the top level. Give each argument once.'
        )
    return {**outer, **inner}
