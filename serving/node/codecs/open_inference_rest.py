"""The Open Inference Protocol over REST: JSON, optionally followed by tensors as bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs, ServingError
from serving.http_headers import BINARY, JSON_BYTES
from serving.json_depth import TooDeepError, parse_json
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
from serving.node.codecs.tensor_mapping import MAX_INPUTS, check_request_counts
from serving.protocols.errors import render_error
from serving.runtimes.datatypes import BYTES, dtype_of
from serving.runtimes.input_conversion import describe_json_type, fits_integer_range, to_regular_array
from serving.runtimes.instance_batch import Batch
from serving.runtimes.json_codec import InstancesDecoder

Body = bytes | bytearray

_BINARY = (b"content-type", BINARY.encode())
_GZIP = b"\x1f\x8b"
# Below this size, extracting lists of numbers gains nothing (measured).
_MIN_EXTRACTED_BYTES = 512
_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\[')
_INT64, _UINT64 = np.dtype(np.int64), np.dtype(np.uint64)
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class _Input(msgspec.Struct):
    name: str
    shape: tuple[int, ...]
    datatype: str
    data: Any = None
    parameters: dict[str, Any] | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[_Output] | None = None


class OpenInferenceRestCodec:
    """Decodes and encodes JSON, with or without bytes behind it."""

    def __init__(self, call: RequestMetadata, model: ServedModel) -> None:
        self._call = call
        self._model = model
        version = b',"model_version":%b' % orjson.dumps(call.version) if call.version else b""
        self._response_start = b'{"model_name":%b%b' % (orjson.dumps(call.model), version)

    def decode_request(self, body: Body) -> DecodedRequest:
        if body.startswith(_GZIP):
            raise InvalidInputs(
                "The request is compressed with gzip, which is not read here: send it as it is."
            )
        json_length = self._call.json_bytes
        if json_length is not None and json_length > len(body):
            raise InvalidInputs(
                f"Inference-Header-Content-Length is {json_length}, but the whole body has {len(body)} bytes."
            )
        if json_length is None or json_length == len(body):
            text, binary_data = body, memoryview(b"")
        else:
            text, binary_data = body[:json_length], memoryview(body)[json_length:]
        request, tensors = self._parse_body(text, binary_data)
        outputs = [parse_requested_output(one.name, one.parameters or {}) for one in request.outputs or ()]
        return build_decoded_request(self._model, tensors, request.parameters or {}, outputs, request.id)

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        selection: OutputSelection = decoded.state
        heads: list[bytes] = []
        raws: list[Buffer] = []
        for name, array, binary in select_outputs(selection, predictions):
            head = _output_header(name, output_datatype(name, array), array.shape)
            if binary:
                raw = to_raw(name, array)
                raws.append(raw)
                heads.append(b'%b"parameters":{"binary_data_size":%d}}' % (head, len(raw)))
            else:
                heads.append(b'%b"data":%b}' % (head, _encode_data(name, array)))
        id_ = b"" if selection.id is None else b',"id":%b' % orjson.dumps(selection.id)
        text = b'%b%b,"outputs":[%b]}' % (self._response_start, id_, b",".join(heads))
        if not raws:
            return Reply(200, text)
        return Reply(200, b"".join([text, *raws]), (_BINARY, (JSON_BYTES, b"%d" % len(text))))

    def encode_error(self, error: ServingError) -> Reply:
        return render_error(error, self._call.dialect)

    def _parse_body(self, text: Body, binary_data: memoryview) -> tuple[_Request, dict[str, NDArray[Any]]]:
        """The parsed JSON and its tensors; `binary_data` are the bytes that follow the JSON."""
        model = self._model
        if len(text) >= _MIN_EXTRACTED_BYTES:
            rest, lists = _extract_number_lists(text)
            if lists:
                try:
                    request = _parse_request(rest, model.max_json_depth)
                    return request, self._decode_tensors(
                        request, binary_data, _ExtractedLists(lists, model.decoder)
                    )
                except InvalidInputs:  # parsed again as a whole, for the error messages
                    pass
        request = _parse_request(text, model.max_json_depth)
        return request, self._decode_tensors(request, binary_data, _ExtractedLists({}, model.decoder))

    def _decode_tensors(
        self, request: _Request, binary_data: memoryview, lists: _ExtractedLists
    ) -> dict[str, NDArray[Any]]:
        tensors, of_request = _read_tensors(request, binary_data, lists), request.parameters or {}
        for one in request.inputs:
            if one.datatype == BYTES:
                own = one.parameters or {}
                tensors[one.name] = decode_text_input(
                    self._model, one.name, tensors[one.name], own, of_request
                )
        return tensors


create_codec = OpenInferenceRestCodec


def _parse_request(text: Body, levels: int) -> _Request:
    try:
        value = parse_json(text, levels)
    except TooDeepError as error:
        raise InvalidInputs(str(error)) from error
    except orjson.JSONDecodeError as error:
        raise InvalidInputs(_json_problem(text, error)) from error
    try:
        request = msgspec.convert(value, _Request)
    except msgspec.ValidationError as error:
        raise InvalidInputs(f"The request is not as the Open Inference Protocol has it: {error}.") from error
    outputs = request.outputs or ()
    of_inputs = (one.parameters for one in request.inputs)
    of_outputs = (one.parameters for one in outputs)
    check_request_counts(request.inputs, outputs, chain((request.parameters,), of_inputs, of_outputs))
    return request


def _json_problem(text: Body, error: orjson.JSONDecodeError) -> str:
    if not text.strip():
        return 'The request has no JSON. Send {"inputs": [{"name", "shape", "datatype", "data"}]}.'
    problem = f"The request is not valid JSON: {error.msg} at line {error.lineno} column {error.colno}."
    if b"\0" in text:
        problem += (
            " If tensors follow as bytes, Inference-Header-Content-Length must say where the JSON ends."
        )
    return problem


def _read_tensors(
    request: _Request, binary_data: memoryview, lists: _ExtractedLists
) -> dict[str, NDArray[Any]]:
    """The inputs by name. Raises InvalidInputs."""
    tensors: dict[str, NDArray[Any]] = {}
    begin = 0
    for one in request.inputs:
        if one.name in tensors:
            raise InvalidInputs(f"There are two inputs {one.name}.")
        size = parse_binary_size(one.name, one.parameters or {})
        if size is None:
            tensors[one.name] = _array_from_json(one, lists)
            continue
        if one.data is not None:
            raise InvalidInputs(f'Input {one.name} has both "data" and "binary_data_size".')
        end = begin + size
        if end > len(binary_data):
            raise InvalidInputs(
                f"Input {one.name} has {size} bytes, but only {len(binary_data) - begin} are left behind the "
                "JSON, where Inference-Header-Content-Length says that it ends."
            )
        tensors[one.name] = from_raw(one.name, one.datatype, one.shape, binary_data[begin:end])
        begin = end
    if begin != len(binary_data):
        raise InvalidInputs(f"Behind the JSON are {len(binary_data) - begin} bytes more than its inputs say.")
    return tensors


# ---- data in JSON


def _array_from_json(one: _Input, lists: _ExtractedLists) -> NDArray[Any]:
    if one.datatype == BYTES and isinstance(one.data, str) and not lists.has_list(one.data):
        return _read_single_text(one)
    count = count_elements(one.name, one.datatype, one.shape)
    apart = lists.parse_numbers(one.data, one.datatype) if isinstance(one.data, str) else None
    array = _array_from_values(one) if apart is None else apart
    if array.shape == one.shape:
        return _cast_to_datatype(one, array)
    if array.ndim != 1 or array.size != count:
        raise InvalidInputs(
            f"Input {one.name} has the shape {list(one.shape)}, which takes {count} values in a flat list or "
            f"nested like it; its data has the shape {list(array.shape)}."
        )
    return _cast_to_datatype(one, array.reshape(one.shape))


def _array_from_values(one: _Input) -> NDArray[Any]:
    """The values of data that came as Python values, in a type of their kind."""
    if not isinstance(one.data, list):
        raise InvalidInputs(
            f'The "data" of input {one.name} must be a list; it is {describe_json_type(one.data)}.'
        )
    array = to_regular_array(one.data)
    if array is None:
        raise InvalidInputs(f'The "data" of input {one.name} is ragged: its lists differ in length.')
    if one.datatype == BYTES:
        return _texts_to_bytes(one, array)
    wanted, words = _accepted_kinds(one.datatype)
    if array.dtype.kind in wanted or not array.size:
        return array
    values = np.array(one.data, object).reshape(-1).tolist()
    unfit = [value for value in values if _KINDS.get(type(value), "O") not in wanted]
    if not unfit:
        raise _out_of_range(one)
    if "f" in wanted and all(value is None for value in unfit):
        return np.array(one.data, _FLOAT64)  # null is NaN, as in answers
    found = repr(unfit[0]) if type(unfit[0]) is float else describe_json_type(unfit[0])
    raise InvalidInputs(
        f"Input {one.name} is of type {one.datatype} and takes {words}; among its data is {found}."
    )


def _read_single_text(one: _Input) -> NDArray[Any]:
    """A single text that is in no list, which MLServer accepts with any shape."""
    tensor = np.empty(1, object)
    tensor[0] = one.data.encode()
    return tensor.reshape(one.shape if count_elements(one.name, one.datatype, one.shape) == 1 else (1,))


def _texts_to_bytes(one: _Input, array: NDArray[Any]) -> NDArray[Any]:
    values = array.reshape(-1).tolist()
    unfit = next((value for value in values if not isinstance(value, str)), None)
    if unfit is not None or None in values:
        raise InvalidInputs(
            f"Input {one.name} is of type BYTES and takes strings; among its data is "
            f"{describe_json_type(unfit)}."
        )
    texts = np.empty(array.shape, object)
    texts.reshape(-1)[:] = [value.encode() for value in values]
    return texts


_KINDS = {bool: "b", int: "i", float: "f"}


def _accepted_kinds(datatype: str) -> tuple[str, str]:
    """The kinds of numpy's types whose values a type takes, and what they are in words."""
    if datatype == "BOOL":
        return "b", "true or false"
    return ("iu", "integers") if "INT" in datatype else ("iuf", "numbers")


def _cast_to_datatype(one: _Input, array: NDArray[Any]) -> NDArray[Any]:
    """Values of the right kind in the type that is declared. Raises InvalidInputs if it has no room."""
    dtype = dtype_of(one.datatype) or _FLOAT32
    if array.dtype == dtype:
        return array
    if dtype.kind in "iu" and array.dtype.kind in "iu" and not fits_integer_range(array, dtype):
        raise _out_of_range(one)
    if dtype.kind not in "fV":
        return array.astype(dtype)
    with np.errstate(over="ignore"):
        cast: NDArray[Any] = array.astype(dtype)
    if np.isinf(cast).any():
        raise _out_of_range(one)
    return cast


def _out_of_range(one: _Input) -> InvalidInputs:
    return InvalidInputs(f"Input {one.name} has a number that is out of the range of {one.datatype}.")


@lru_cache(maxsize=256)
def _output_header(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """The JSON in front of an output's values."""
    return b'{"name":%b,"datatype":"%b","shape":%b,' % (
        orjson.dumps(name),
        datatype.encode(),
        orjson.dumps(shape),
    )


def _encode_data(name: str, array: NDArray[Any]) -> bytes:
    """The values of an output as a flat list. NaN and infinities become null."""
    if array.dtype.kind == "O":
        try:
            return orjson.dumps([text.decode() for text in array.reshape(-1).tolist()])
        except UnicodeDecodeError as error:
            raise InvalidOutputs(
                f"Output {name} is not UTF-8 text: ask for it as bytes, with the parameter binary_data."
            ) from error
    small = array.dtype.kind == "V" or array.dtype == np.float16
    values = np.ascontiguousarray(array, _FLOAT32 if small else None).reshape(-1)
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)


# ---- lists of numbers that are parsed without a Python object per number


class _ExtractedLists:
    """Lists that were extracted from JSON, by the placeholders in their positions."""

    def __init__(self, texts: Mapping[str, bytes], decoder: InstancesDecoder) -> None:
        self._texts = texts
        self._decoder = decoder

    def has_list(self, placeholder: str) -> bool:
        return placeholder in self._texts

    def parse_numbers(self, placeholder: str, datatype: str) -> NDArray[Any] | None:
        """The numbers of a list; None for an unknown placeholder, or other values than such numbers."""
        text = self._texts.get(placeholder)
        if text is None or datatype in ("BOOL", BYTES):
            return None
        if "INT" in datatype:
            return self._decoder.decode_numbers(text, _UINT64 if datatype == "UINT64" else _INT64)
        return self._decoder.decode_numbers(text, _FLOAT64)


def _extract_number_lists(text: Body) -> tuple[bytes, dict[str, bytes]]:
    """The JSON with placeholders for the lists under "data" that hold no strings, and these lists.

    The lists may be invalid JSON. Nothing is extracted from a text with more of them than `MAX_INPUTS`.
    """
    rest: list[Body] = []
    lists: dict[str, bytes] = {}
    copied = at = 0
    while found := _DATA.search(text, at):
        begin = at = found.end() - 1
        # A list of numbers ends before the next name begins, or the object that it is in ends.
        quote = text.find(b'"', begin)
        limit = quote if quote >= 0 else len(text)
        brace = text.find(b"}", begin, limit)
        end = text.rfind(b"]", begin, brace if brace >= 0 else limit) + 1
        if end:
            if len(lists) == MAX_INPUTS:
                return bytes(text), {}
            placeholder = f"\0{len(lists)}"  # valid data is never a string
            lists[placeholder] = bytes(text[begin:end])
            rest += text[copied:begin], orjson.dumps(placeholder)
            copied = at = end
    rest.append(text[copied:])
    return b"".join(rest), lists
