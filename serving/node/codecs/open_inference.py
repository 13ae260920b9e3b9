"""What the Open Inference Protocol's REST and gRPC codecs share."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidInputs
from serving.node.codecs import DecodedRequest, ServedModel
from serving.node.codecs.tensor_mapping import batch_to_tensors, find_signature, tensors_to_batch
from serving.runtimes import Runtime
from serving.runtimes.instance_batch import Batch
from serving.runtimes.prediction_methods import METHOD_PARAMETER, SIGNATURE_NAME, MultiMethodRuntime
from serving.runtimes.schema_inference import PREDICTIONS

Parameters = Mapping[str, Any]

CONTENT_TYPE = "content_type"
STR, BASE64 = "str", "base64"
"""MLServer's types of texts and of bytes as texts."""

# What KServe and MLServer call the one output of models that have no names for it.
_ALIASES = frozenset({"output-0", "predict"})

BINARY = "binary_data"
_BINARY_SIZE = "binary_data_size"
_BINARY_OUTPUT = "binary_data_output"
# Other servers' extensions that would change the meaning of an answer.
_CLASSIFICATION, _SHARED_MEMORY = "classification", "shared_memory_region"


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """A requested output; `binary`: as bytes, None if unspecified; `base64`: its texts as base64."""

    name: str
    binary: bool | None = None
    base64: bool = False


@dataclass(frozen=True, slots=True)
class OutputSelection:
    """The id to repeat in the answer, and the requested outputs, () for all.

    `binary` is the default for outputs that leave it unspecified.
    """

    id: str | None
    outputs: tuple[RequestedOutput, ...]
    binary: bool


def build_decoded_request(
    model: ServedModel,
    tensors: Mapping[str, NDArray[Any]],
    parameters: Parameters,
    outputs: Sequence[RequestedOutput],
    id: str | None,  # noqa: A002  that is what the protocol calls it
) -> DecodedRequest:
    """The decoded request, with those parameters that the model knows. Raises InvalidInputs."""
    signature = parameters.get(SIGNATURE_NAME, "")
    if not isinstance(signature, str):
        raise InvalidInputs(f'The parameter "signature_name" must be a string; it is {signature!r}.')
    batch, chosen = tensors_to_batch(model, tensors, signature)
    _check_outputs(model, signature, outputs)
    if isinstance(model.runtime, MultiMethodRuntime):
        methods = _list_asked_methods(model.runtime, outputs)
        if any(name != PREDICTIONS for name in methods):
            chosen[METHOD_PARAMETER] = methods
    selection = OutputSelection(
        id, tuple(outputs), binary=parse_bool_parameter(parameters, _BINARY_OUTPUT) or False
    )
    return DecodedRequest(batch, {**_known_parameters(model.runtime, parameters), **chosen}, selection)


def select_outputs(
    selection: OutputSelection, predictions: Batch
) -> Iterator[tuple[str, NDArray[Any], bool]]:
    """The requested outputs in their order: name, tensor, and whether it is sent as bytes."""
    tensors = batch_to_tensors(predictions)
    for output in selection.outputs or tuple(RequestedOutput(name) for name in tensors):
        binary = selection.binary if output.binary is None else output.binary
        tensor = tensors[output.name if output.name in tensors else PREDICTIONS]
        yield output.name, _encode_base64(tensor) if output.base64 else tensor, binary


def _encode_base64(tensor: NDArray[Any]) -> NDArray[Any]:
    """A tensor whose texts are the base64 of its texts; one of numbers as it is."""
    if tensor.dtype.kind != "O":
        return tensor
    texts = np.empty(tensor.shape, object)
    texts.reshape(-1)[:] = [base64.b64encode(value) for value in tensor.reshape(-1).tolist()]
    return texts


def parse_bool_parameter(parameters: Parameters, name: str) -> bool | None:
    """A parameter that is true or false, None if it is not there. Raises InvalidInputs for other values."""
    value = parameters.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise InvalidInputs(f'The parameter "{name}" must be true or false; it is {value!r}.')


def parse_binary_size(name: str, parameters: Parameters) -> int | None:
    """How many bytes of an input follow the JSON, None if it is in the JSON. Raises InvalidInputs."""
    if _SHARED_MEMORY in parameters:
        raise InvalidInputs(
            f"Input {name} is in shared memory, which this server does not read: send its data."
        )
    size = parameters.get(_BINARY_SIZE)
    if size is None or (type(size) is int and size >= 0):
        return size
    raise InvalidInputs(f'Input {name}: "{_BINARY_SIZE}" must be a number of bytes; it is {size!r}.')


def parse_requested_output(name: str, parameters: Parameters) -> RequestedOutput:
    """Raises InvalidInputs."""
    if _SHARED_MEMORY in parameters:
        raise InvalidInputs(
            f"Output {name} is requested in shared memory, to which this server does not write."
        )
    if parameters.get(_CLASSIFICATION):
        raise InvalidInputs(
            f'Output {name}: "{_CLASSIFICATION}" is not offered; ask for the scores themselves.'
        )
    return RequestedOutput(
        name, parse_bool_parameter(parameters, BINARY), parameters.get(CONTENT_TYPE) == BASE64
    )


def decode_text_input(
    model: ServedModel, name: str, tensor: NDArray[Any], parameters: Parameters, of_request: Parameters
) -> NDArray[Any]:
    """Convert an input by its content type, or the request's.

    Base64 is decoded where it is valid. MLServer sends texts in shape [n, 1], whatever the model takes.
    """
    content_type = parameters.get(CONTENT_TYPE, of_request.get(CONTENT_TYPE))
    if tensor.dtype.kind != "O" or content_type not in (STR, BASE64):
        return tensor
    if content_type == BASE64:
        plain = np.empty(tensor.shape, object)
        plain.reshape(-1)[:] = [_decode_base64(value) for value in tensor.reshape(-1).tolist()]
        tensor = plain
    return tensor[:, 0] if tensor.shape[1:] == (1,) and _has_scalar_rows(model, name) else tensor


def _decode_base64(value: bytes) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        return value


def _has_scalar_rows(model: ServedModel, name: str) -> bool:
    """Whether the rows of an input are single values."""
    if model.runtime.framework.runs_user_code:
        return True
    default = model.schema.signatures.get(model.schema.default)
    shapes = [one.shape for one in default.inputs if one.name == name] if default is not None else []
    return any(shape is not None and len(shape) == 1 for shape in shapes)


def _check_outputs(model: ServedModel, signature: str, outputs: Sequence[RequestedOutput]) -> None:
    if not outputs:
        return
    has_names = model.runtime.framework.takes_named_tensors
    known = [out.name for out in find_signature(model, signature).outputs] if has_names else [PREDICTIONS]
    if isinstance(model.runtime, MultiMethodRuntime):
        known += model.runtime.methods
    for output in outputs:
        if output.name not in known and (has_names or output.name not in _ALIASES):
            raise InvalidInputs(f"There is no output {output.name}: the model has {', '.join(known)}.")
    if len({output.name for output in outputs}) < len(outputs):
        raise InvalidInputs("An output is asked for twice.")


def _list_asked_methods(runtime: MultiMethodRuntime, outputs: Sequence[RequestedOutput]) -> tuple[str, ...]:
    """The methods that outputs are named after; others are the usual one's, by whatever name."""
    asked = (output.name if output.name in runtime.methods else PREDICTIONS for output in outputs)
    return tuple(dict.fromkeys(asked))


def _known_parameters(runtime: Runtime, parameters: Parameters) -> dict[str, Any]:
    """Those of a request's parameters that the model's own predict takes: all else is to be ignored."""
    if runtime.framework.takes_named_tensors:  # which has none but the signature's name
        return {}
    own = {name: value for name, value in parameters.items() if name not in _PROTOCOL_PARAMETERS}
    return {name: value for name, value in own.items() if _accepts_parameter(runtime, name, value)}


_PROTOCOL_PARAMETERS = (_BINARY_OUTPUT, SIGNATURE_NAME)


def _accepts_parameter(runtime: Runtime, name: str, value: Any) -> bool:
    if name == METHOD_PARAMETER and isinstance(runtime, MultiMethodRuntime) and runtime.methods:
        return True  # an unknown method is an error, and not ignored
    try:
        runtime.input_format({name: value})
    except InvalidInputs:
        return False
    return True
