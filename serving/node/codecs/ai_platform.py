"""Binary bodies on AI Platform's own route: arrays of numpy, and the Open Inference Protocol's tensors.

The formats of request and answer are chosen independently, by `Content-Type` and by `Accept`, and either may
be JSON. Requests with JSON for both do not use this codec.
"""

from __future__ import annotations

from dataclasses import replace

from serving import http_headers
from serving.errors import ServingError
from serving.node.codecs import DecodedRequest, Reply, RequestMetadata, ServedModel
from serving.node.codecs.npy import from_npy, to_npy
from serving.node.codecs.open_inference import OutputSelection
from serving.node.codecs.open_inference_rest import OpenInferenceRestCodec
from serving.node.codecs.tensor_mapping import batch_to_tensors, find_signature, tensors_to_batch
from serving.protocols.errors import render_error
from serving.runtimes.instance_batch import Batch, WholeTensors
from serving.runtimes.json_codec import encode_predictions
from serving.runtimes.schema_inference import INSTANCES

_NPY = (b"content-type", http_headers.NPY.encode())
_ALL_OUTPUTS = OutputSelection(None, (), binary=True)


class AiPlatformCodec:
    """Decodes one content type and encodes one."""

    def __init__(self, call: RequestMetadata, model: ServedModel) -> None:
        self._content_type, self._accept = call.content_type, call.accept
        self._model = model
        self._inference = OpenInferenceRestCodec(call, model)

    def decode_request(self, body: bytes | bytearray) -> DecodedRequest:
        model = self._model
        match self._content_type:
            case "":
                return DecodedRequest(*model.decoder.decode(body, model.runtime.input_format))
            case http_headers.NPY:
                array = from_npy(body)
                return DecodedRequest(*tensors_to_batch(model, {self._input_name(): array}))
            case _:
                return self._inference.decode_request(body)

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        selection: OutputSelection = decoded.state or _ALL_OUTPUTS
        match self._accept:
            case "":
                return Reply(
                    200, encode_predictions(_select_outputs(selection, predictions), self._model.answer_style)
                )
            case http_headers.NPY:
                return Reply(
                    200, b"".join(to_npy(batch_to_tensors(_select_outputs(selection, predictions)))), (_NPY,)
                )
            case _:
                return self._inference.encode_response(
                    replace(decoded, state=replace(selection, binary=True)), predictions
                )

    def encode_error(self, error: ServingError) -> Reply:
        return render_error(error)

    def _input_name(self) -> str:
        """The name of the model's only input."""
        inputs = find_signature(self._model).inputs
        return inputs[0].name if len(inputs) == 1 else INSTANCES


create_codec = AiPlatformCodec


def _select_outputs(selection: OutputSelection, predictions: Batch) -> Batch:
    names = [output.name for output in selection.outputs]
    match predictions:
        case dict() if names:
            return {name: predictions[name] for name in names}
        case WholeTensors(values) if names:
            return WholeTensors({name: values[name] for name in names})
        case _:
            return predictions
