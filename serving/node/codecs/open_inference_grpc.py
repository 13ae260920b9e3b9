"""The Open Inference Protocol over gRPC: ModelInfer, with tensors as bytes or in lists of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidInputs, ServingError
from serving.http_headers import PROTOBUF
from serving.node.codecs import DecodedRequest, Reply, RequestMetadata, ServedModel
from serving.node.codecs.open_inference import (
    OutputSelection,
    build_decoded_request,
    decode_text_input,
    parse_binary_size,
    parse_requested_output,
    select_outputs,
)
from serving.node.codecs.raw_tensors import Buffer, count_elements, from_raw, output_datatype, to_raw
from serving.node.codecs.tensor_mapping import check_request_counts
from serving.protocols.errors import render_error
from serving.protocols.protobuf_fields import encode_field_prefix
from serving.protocols.protos import MessageDecodeError, load_message_class
from serving.runtimes.datatypes import BYTES, dtype_of
from serving.runtimes.input_conversion import fits_integer_range
from serving.runtimes.instance_batch import Batch

_REQUEST = load_message_class("inference.ModelInferRequest")
_ANSWER = load_message_class("inference.ModelInferResponse")
_RAW = _ANSWER.DESCRIPTOR.fields_by_name["raw_output_contents"].number
_PROTOBUF = ((b"content-type", PROTOBUF.encode()),)

# The field of a tensor's contents for each type; FP16 and BF16 have none, and are sent as bytes.
_CONTENT_FIELDS: Mapping[str, str] = {
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


class OpenInferenceGrpcCodec:
    """Outputs are bytes, or lists for requests with lists."""

    def __init__(self, call: RequestMetadata, model: ServedModel) -> None:
        self._call = call
        self._model = model

    def decode_request(self, body: bytes | bytearray) -> DecodedRequest:
        try:
            request = _REQUEST.FromString(body)
        except MessageDecodeError as error:
            raise InvalidInputs(f"The request is not an inference.ModelInferRequest: {error}.") from error
        parts = chain((request,), request.inputs, request.outputs)
        check_request_counts(request.inputs, request.outputs, (part.parameters for part in parts))
        raws = request.raw_input_contents
        tensors = _read_raw_inputs(request) if raws or not request.inputs else _read_listed_inputs(request)
        outputs = [
            parse_requested_output(output.name, _read_parameters(output.parameters))
            for output in request.outputs
        ]
        parameters = {**_read_parameters(request.parameters), "binary_data_output": bool(raws)}
        for one in request.inputs:
            if one.datatype == BYTES:
                own = _read_parameters(one.parameters)
                tensors[one.name] = decode_text_input(
                    self._model, one.name, tensors[one.name], own, parameters
                )
        return build_decoded_request(self._model, tensors, parameters, outputs, request.id)

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        selection: OutputSelection = decoded.state
        answer = _ANSWER(model_name=self._call.model, model_version=self._call.version, id=selection.id or "")
        tensors = [
            (name, output_datatype(name, array), array)
            for name, array, _ in select_outputs(selection, predictions)
        ]
        listed = not selection.binary and all(datatype in _CONTENT_FIELDS for _, datatype, _ in tensors)
        raws: list[Buffer] = []
        for name, datatype, array in tensors:
            output = answer.outputs.add(name=name, datatype=datatype, shape=array.shape)
            if listed:
                getattr(output.contents, _CONTENT_FIELDS[datatype]).extend(array.reshape(-1).tolist())
            else:
                raw = to_raw(name, array)
                raws += encode_field_prefix(_RAW, len(raw)), raw
        return Reply(200, b"".join([answer.SerializeToString(), *raws]), _PROTOBUF)

    def encode_error(self, error: ServingError) -> Reply:
        return render_error(error, self._call.dialect)


create_codec = OpenInferenceGrpcCodec


def _read_raw_inputs(request: Any) -> dict[str, NDArray[Any]]:
    """The inputs of a request with bytes for each of them."""
    raws = request.raw_input_contents
    if len(raws) != len(request.inputs):
        raise InvalidInputs(
            f"There are {len(request.inputs)} inputs, but {len(raws)} raw_input_contents: send one per input."
        )
    tensors: dict[str, NDArray[Any]] = {}
    for one, raw in zip(request.inputs, raws, strict=True):
        if one.HasField("contents") and one.contents.ListFields():
            raise InvalidInputs(f"Input {one.name} has both contents and raw_input_contents.")
        _add_input(tensors, one, from_raw(one.name, one.datatype, tuple(one.shape), raw))
    return tensors


def _read_listed_inputs(request: Any) -> dict[str, NDArray[Any]]:
    """The inputs of a request with the numbers of each in a list."""
    tensors: dict[str, NDArray[Any]] = {}
    for one in request.inputs:
        _add_input(tensors, one, _array_from_list(one, tuple(one.shape)))
    return tensors


def _add_input(tensors: dict[str, NDArray[Any]], one: Any, tensor: NDArray[Any]) -> None:
    if one.name in tensors:
        raise InvalidInputs(f"There are two inputs {one.name}.")
    parse_binary_size(one.name, _read_parameters(one.parameters))  # raises for shared memory
    tensors[one.name] = tensor


def _array_from_list(one: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    count = count_elements(one.name, one.datatype, shape)
    wanted = _CONTENT_FIELDS.get(one.datatype)
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
        if not fits_integer_range(wide, array.dtype):
            raise InvalidInputs(f"Input {one.name} has a number that is out of the range of {one.datatype}.")
        array = wide.astype(array.dtype, copy=False)
    else:
        array[:] = list(values)
    return array.reshape(shape)


def _read_parameters(given: Any) -> dict[str, Any]:
    """Parameters by name; one without a value is left out."""
    chosen = {
        name: (parameter, parameter.WhichOneof("parameter_choice")) for name, parameter in given.items()
    }
    return {name: getattr(parameter, choice) for name, (parameter, choice) in chosen.items() if choice}
