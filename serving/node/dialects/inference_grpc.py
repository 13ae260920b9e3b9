"""The Open Inference Protocol over gRPC: ModelInfer, with tensors as bytes or in lists of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidInputs, ServingError
from serving.media import PROTOBUF
from serving.node.dialects import Asked, Call, Model, Reply
from serving.node.dialects.infer import Wish, answered, asked, decoded, output_of, raw_size
from serving.node.dialects.raw import Buffer, from_raw, named, sized, to_raw
from serving.node.dialects.tensors import limit
from serving.protocols.errors import refusal
from serving.protocols.fields import prefix
from serving.protocols.protos import Malformed, message
from serving.runtimes.conversion import fits_dtype
from serving.runtimes.datatypes import BYTES, dtype_of
from serving.runtimes.instances import Batch

_REQUEST = message("inference.ModelInferRequest")
_ANSWER = message("inference.ModelInferResponse")
_RAW = _ANSWER.DESCRIPTOR.fields_by_name["raw_output_contents"].number
_PROTOBUF = ((b"content-type", PROTOBUF.encode()),)

# The list of a tensor's contents that has the numbers of a type; of FP16 and BF16 there are only bytes.
_LISTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


class Infer:
    """Reads requests and writes answers. Outputs are bytes; a client that sends lists is given lists."""

    def __init__(self, call: Call, model: Model) -> None:
        self._call = call
        self._model = model

    def read(self, body: bytes | bytearray) -> Asked:
        """The tensors and parameters. Raises InvalidInputs."""
        try:
            request = _REQUEST.FromString(body)
        except Malformed as error:
            raise InvalidInputs(f"The request is not an inference.ModelInferRequest: {error}.") from error
        parts = chain((request,), request.inputs, request.outputs)
        limit(request.inputs, request.outputs, (part.parameters for part in parts))
        raws = request.raw_input_contents
        tensors = _raw(request) if raws or not request.inputs else _listed(request)
        outputs = [output_of(output.name, _parameters(output.parameters)) for output in request.outputs]
        parameters = {**_parameters(request.parameters), "binary_data_output": bool(raws)}
        for one in request.inputs:
            if one.datatype == BYTES:
                own = _parameters(one.parameters)
                tensors[one.name] = decoded(self._model, one.name, tensors[one.name], own, parameters)
        return asked(self._model, tensors, parameters, outputs, request.id)

    def write(self, asked: Asked, predictions: Batch) -> Reply:
        """The outputs. Raises InvalidOutputs."""
        wish: Wish = asked.state
        answer = _ANSWER(model_name=self._call.model, model_version=self._call.version, id=wish.id or "")
        tensors = [(name, named(name, array), array) for name, array, _ in answered(wish, predictions)]
        listed = not wish.binary and all(datatype in _LISTS for _, datatype, _ in tensors)
        raws: list[Buffer] = []
        for name, datatype, array in tensors:
            output = answer.outputs.add(name=name, datatype=datatype, shape=array.shape)
            if listed:
                getattr(output.contents, _LISTS[datatype]).extend(array.reshape(-1).tolist())
            else:
                raw = to_raw(name, array)
                raws += prefix(_RAW, len(raw)), raw
        return Reply(200, b"".join([answer.SerializeToString(), *raws]), _PROTOBUF)

    def refuse(self, error: ServingError) -> Reply:
        """The error as a gRPC status."""
        return refusal(error, self._call.dialect)


reader = Infer


def _raw(request: Any) -> dict[str, NDArray[Any]]:
    """The inputs of a request with bytes for each of them."""
    raws = request.raw_input_contents
    if len(raws) != len(request.inputs):
        raise InvalidInputs(
            f"There are {len(request.inputs)} inputs, but {len(raws)} raw_input_contents: of each its own."
        )
    tensors: dict[str, NDArray[Any]] = {}
    for one, raw in zip(request.inputs, raws, strict=True):
        if one.HasField("contents") and one.contents.ListFields():
            raise InvalidInputs(f"Input {one.name} has both contents and raw_input_contents.")
        _note(tensors, one, from_raw(one.name, one.datatype, tuple(one.shape), raw))
    return tensors


def _listed(request: Any) -> dict[str, NDArray[Any]]:
    """The inputs of a request with the numbers of each in a list."""
    tensors: dict[str, NDArray[Any]] = {}
    for one in request.inputs:
        _note(tensors, one, _of_list(one, tuple(one.shape)))
    return tensors


def _note(tensors: dict[str, NDArray[Any]], one: Any, tensor: NDArray[Any]) -> None:
    if one.name in tensors:
        raise InvalidInputs(f"There are two inputs {one.name}.")
    raw_size(one.name, _parameters(one.parameters))  # says no to shared memory
    tensors[one.name] = tensor


def _of_list(one: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    count = sized(one.name, one.datatype, shape)
    wanted = _LISTS.get(one.datatype)
    if wanted is None:
        raise InvalidInputs(
            f"Input {one.name} is of type {one.datatype}, for which contents have no list: "
            "send it in raw_input_contents."
        )
    filled = [field.name for field, _ in one.contents.ListFields()]
    if filled not in ([wanted], []):
        raise InvalidInputs(
            f"Input {one.name} is of type {one.datatype} and has {', '.join(filled)}; expected {wanted}."
        )
    values = getattr(one.contents, wanted)
    if len(values) != count:
        raise InvalidInputs(
            f"Input {one.name} has the shape {list(shape)}, which takes {count} values; "
            f"its {wanted} has {len(values)}."
        )
    array = np.empty(count, dtype_of(one.datatype))
    if array.dtype.kind in "iu":
        wide = np.array(values, np.uint64 if one.datatype == "UINT64" else np.int64)
        if not fits_dtype(wide, array.dtype):
            raise InvalidInputs(f"Input {one.name} has a number that is out of the range of {one.datatype}.")
        array = wide.astype(array.dtype, copy=False)
    else:
        array[:] = list(values)
    return array.reshape(shape)


def _parameters(given: Any) -> dict[str, Any]:
    """Parameters by name; one without a value is left out."""
    chosen = {
        name: (parameter, parameter.WhichOneof("parameter_choice")) for name, parameter in given.items()
    }
    return {name: getattr(parameter, choice) for name, (parameter, choice) in chosen.items() if choice}
