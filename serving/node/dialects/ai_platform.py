"""Binary bodies on AI Platform's own route: arrays of numpy, and the Open Inference Protocol's tensors.

What is sent and what is answered are chosen apart, by `Content-Type` and by `Accept`; JSON is either's other
form. Requests that have it both ways come nowhere near here.
"""

from __future__ import annotations

from dataclasses import replace

from serving import media
from serving.errors import ServingError
from serving.node.dialects import Asked, Call, Model, Reply
from serving.node.dialects.infer import Wish
from serving.node.dialects.inference import Infer
from serving.node.dialects.npy import from_npy, to_npy
from serving.node.dialects.tensors import batch_of, signature_of, tensors_of
from serving.protocols.errors import refusal
from serving.runtimes.codec import encode_predictions
from serving.runtimes.describing import INSTANCES
from serving.runtimes.instances import Batch, WholeTensors

_NPY = (b"content-type", media.NPY.encode())
_ALL = Wish(None, (), binary=True)


class Bodies:
    """Reads one type of bodies and writes one."""

    def __init__(self, call: Call, model: Model) -> None:
        self._reads, self._writes = call.content_type, call.accept
        self._model = model
        self._inference = Infer(call, model)

    def read(self, body: bytes | bytearray) -> Asked:
        """What is to be computed. Raises InvalidInputs."""
        model = self._model
        match self._reads:
            case "":
                return Asked(*model.decoder.decode(body, model.runtime.input_format))
            case media.NPY:
                array = from_npy(body)
                return Asked(*batch_of(model, {self._name(): array}))
            case _:
                return self._inference.read(body)

    def write(self, asked: Asked, predictions: Batch) -> Reply:
        """The predictions, or those outputs that were asked for. Raises InvalidOutputs."""
        wish: Wish = asked.state or _ALL
        match self._writes:
            case "":
                return Reply(200, encode_predictions(_chosen(wish, predictions), self._model.style))
            case media.NPY:
                return Reply(200, b"".join(to_npy(tensors_of(_chosen(wish, predictions)))), (_NPY,))
            case _:
                return self._inference.write(replace(asked, state=replace(wish, binary=True)), predictions)

    def refuse(self, error: ServingError) -> Reply:
        """The error as AI Platform tells it."""
        return refusal(error)

    def _name(self) -> str:
        """What the one input of the model is called."""
        inputs = signature_of(self._model).inputs
        return inputs[0].name if len(inputs) == 1 else INSTANCES


reader = Bodies


def _chosen(wish: Wish, predictions: Batch) -> Batch:
    names = [output.name for output in wish.outputs]
    match predictions:
        case dict() if names:
            return {name: predictions[name] for name in names}
        case WholeTensors(values) if names:
            return WholeTensors({name: values[name] for name in names})
        case _:
            return predictions
