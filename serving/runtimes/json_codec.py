"""Decodes JSON bodies into batches, and encodes predictions as JSON.

There are two decoders: a dense one, which reads numeric JSON straight into a C buffer, with no Python object
per number, and a generic one through Python values. The dense one accepts only regular arrays, which it
recognises by the text that is left when the numbers are taken out. The generic one reads all other bodies and
raises the errors. Both return the same arrays.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import simdjson
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs
from serving.json_depth import DEFAULT_MAX_DEPTH, TooDeepError, parse_json
from serving.runtimes import ArrayFormat, ColumnsFormat, InputFormat, RowsFormat
from serving.runtimes.input_conversion import (
    MAX_DIMENSIONS,
    convert_instances,
    describe_json_type,
    fits_integer_range,
    shape_fits,
)
from serving.runtimes.instance_batch import Batch, WholeTensors

RequestParameters = dict[str, Any]
Body = bytes | bytearray
ChooseFormat = Callable[[Mapping[str, Any]], InputFormat]

_NUMBER_CHARACTERS = b"0123456789.-+eE \t\r\n"
_WHITESPACE = b" \t\r\n"
_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)
_SIMDJSON_TYPES = {_FLOAT64: "d", _INT64: "i", np.dtype(np.uint64): "u"}  # what simdjson calls them
# Below this many bytes, other fields beside the instances cost more than the Python floats saved (measured).
_MIN_DENSE_BYTES = 512
_ENCODE_ERRORS = (TypeError, orjson.JSONEncodeError)
_NO_ROWS_MESSAGE = "The answer is of whole tensors, of which there is not one for each instance."
_ORJSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True, slots=True)
class ArrayLocation:
    """Where in a body its numbers are: at a key, or at a key of an object there.

    `prefix` and `suffix` are the text around them if the body has nothing else.
    """

    key: str
    inner_key: str
    prefix: bytes
    suffix: bytes


@lru_cache(maxsize=64)
def make_array_location(key: str, inner_key: str = "") -> ArrayLocation:
    """The location of these keys; without `inner_key` the numbers are at the first one."""
    prefix = b"{%b:" % orjson.dumps(key)
    return ArrayLocation(
        key,
        inner_key,
        prefix + b"{%b:" % orjson.dumps(inner_key) if inner_key else prefix,
        b"}}" if inner_key else b"}",
    )


_INSTANCES_LOCATION = make_array_location("instances")


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """How predictions are written where AI Platform's service had more than one way.

    `bare`: an output that is the only one without its name. `long_decimals`: float32 numbers with the digits
    of the float64 of the same value.
    """

    bare: bool = False
    long_decimals: bool = False


_DEFAULT_STYLE = AnswerStyle()


class InstancesDecoder:
    """Parses bodies nested at most `levels` deep. One per thread: the parser's buffers are reused."""

    def __init__(self, levels: int = DEFAULT_MAX_DEPTH) -> None:
        self._parser = simdjson.Parser()
        self._levels = levels
        self._last_skeleton = b""
        self._last_shape: tuple[int, ...] | None = None

    def decode(self, body: Body, choose_format: ChooseFormat) -> tuple[Batch, RequestParameters]:
        """The instances in the format that `choose_format(parameters)` returns, and the body's other fields.

        Raises InvalidInputs for everything a client can get wrong.
        """
        array = self._decode_lone_array(body, choose_format)
        if array is not None:
            return array, {}
        if len(body) >= _MIN_DENSE_BYTES:
            dense = self._decode_dense(body, choose_format)
            if dense is not None:
                return dense
        return _decode_generic(body, choose_format, self._levels)

    def decode_regular(
        self, body: Body, choose_format: ChooseFormat, location: ArrayLocation = _INSTANCES_LOCATION
    ) -> tuple[Batch, RequestParameters] | None:
        """What is at a place and the other fields of the body, if it is a regular list of numbers.

        None where the body must be looked at value by value. Raises what `choose_format` raises.
        """
        array = self._decode_lone_array(body, choose_format, location)
        if array is not None:
            return array, {}
        return self._decode_dense(body, choose_format, location) if len(body) >= _MIN_DENSE_BYTES else None

    def decode_dense_lines(self, lines: bytes, form: InputFormat) -> Batch | None:
        """JSON values, one per line, in the form of `form`, if each line is a regular list of numbers.

        None where lines must be looked at one by one.
        """
        if isinstance(form, RowsFormat) or b"\r" in lines:
            return None
        body = b"[" + lines.replace(b"\n", b",") + b"]"
        shape = self._find_shape(body)
        if shape is None or len(shape) < 2 or not _has_one_row_per_line(lines, shape):
            return None
        try:
            return _read_numbers(self._parser.parse(body), body, shape, form)
        except (ValueError, RuntimeError):
            return None

    def decode_numbers(self, values: Body, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """The numbers of a JSON list, in its shape, if this is the text of one that is regular and numeric.

        `dtype` is float64, int64 or uint64. None for a list that is neither, and for numbers of another type.
        """
        flat = values.count(b"[") == 1
        shape = None if flat else self._find_shape(values)
        if shape is None and not flat:
            return None
        try:
            document: Any = self._parser.parse(values)
            buffer = document.as_buffer(of_type=_SIMDJSON_TYPES[dtype])
        except (TypeError, ValueError, RuntimeError):  # a value that is no such number; not JSON; an object
            return None
        finally:
            document = None  # the parser is used again when this is gone
        array = np.frombuffer(buffer, dtype)
        if shape is None:
            return array
        return array.reshape(shape) if array.size == math.prod(shape) else None

    def _decode_lone_array(
        self, body: Body, choose_format: ChooseFormat, location: ArrayLocation = _INSTANCES_LOCATION
    ) -> Batch | None:
        """The instances of a body that has nothing else, if they are a regular list of numbers."""
        begin, end = body.find(b"["), body.rfind(b"]") + 1
        if not _is_lone_array(body, begin, end, location):
            return None
        try:
            form = choose_format({})
        except InvalidInputs:  # the generic decoder first raises what is wrong with the body
            return None
        values = body[begin:end]
        shape = None if isinstance(form, RowsFormat) else self._find_shape(values)
        if shape is None:
            return None
        try:
            document: Any = self._parser.parse(body)
            found = document[location.key]
            return _read_numbers(
                found[location.inner_key] if location.inner_key else found, values, shape, form
            )
        except (ValueError, RuntimeError, KeyError):  # not JSON, not UTF-8; white space within the name
            return None
        finally:
            document = found = None  # the parser is used again when these are gone

    def _decode_dense(
        self, body: Body, choose_format: ChooseFormat, location: ArrayLocation = _INSTANCES_LOCATION
    ) -> tuple[Batch, RequestParameters] | None:
        try:
            document = self._parser.parse(body)
        except (ValueError, RuntimeError):  # not JSON, too deep, not UTF-8: the generic decoder says
            return None
        # Every proxy must be gone before the parser is used again.
        try:
            if not isinstance(document, simdjson.Object) or location.key not in document:
                return None
            keys = list(document)
            # Of two keys with the same name the generic decoder takes the last, simdjson the first; and
            # simdjson cuts a name off at a NUL.
            if len(set(keys)) < len(keys) or "\0" in "".join(keys):
                return None
            parameters = {key: _unwrap_proxy(document[key]) for key in keys if key != location.key}
            form = choose_format(parameters)
            instances = document[location.key]
            if location.inner_key:
                if not isinstance(instances, simdjson.Object) or list(instances) != [location.inner_key]:
                    return None
                instances = instances[location.inner_key]
            nested = any(isinstance(value, list | dict) for value in parameters.values())  # and how deep?
            if isinstance(form, RowsFormat) or nested or not isinstance(instances, simdjson.Array):
                return None
            # There are no further lists: the first bracket and the last one are theirs.
            values = body[body.index(b"[") : body.rindex(b"]") + 1]
            shape = self._find_shape(values)
            batch = None if shape is None else _read_numbers(instances, values, shape, form)
            del instances
        finally:
            del document
        return None if batch is None else (batch, parameters)

    def _find_shape(self, values: Body) -> tuple[int, ...] | None:
        """The shape of a list, if this is the text of one that is regular and numeric all through."""
        skeleton = values.translate(None, _NUMBER_CHARACTERS)
        if skeleton != self._last_skeleton:  # most bodies are like the one before
            self._last_shape = _shape_of_skeleton(skeleton)
            self._last_skeleton = bytes(skeleton)
        return None if self._last_shape is None or len(self._last_shape) >= self._levels else self._last_shape


def encode_predictions(predictions: Batch, style: AnswerStyle = _DEFAULT_STYLE) -> bytes:
    """The body of a successful answer. NaN and infinities become null: JSON has no word for them.

    float32 numbers have the fewest digits that are read back as the same float32, unless the style says
    otherwise. Raises InvalidOutputs for values that JSON cannot carry.
    """
    try:
        if isinstance(predictions, np.ndarray):
            values = to_orjson_array(predictions, long_decimals=style.long_decimals)
        elif isinstance(predictions, list):
            values = predictions
        else:
            return _join_body(_encode_each(predictions, style))
        return b'{"predictions":%b}' % orjson.dumps(values, option=_ORJSON_OPTIONS)
    except _ENCODE_ERRORS as error:
        raise _encoding_error(error) from error


def encode_bodies(
    predictions: Batch, counts: Sequence[int], style: AnswerStyle = _DEFAULT_STYLE
) -> list[bytes]:
    """The bodies of several successful answers: the first has so many of the predictions, and so on.

    The same bytes as `encode_predictions` of each part. Raises InvalidOutputs for values that JSON cannot
    carry.
    """
    try:
        texts = _encode_each(predictions, style)
    except _ENCODE_ERRORS as error:
        raise _encoding_error(error) from error
    if len(texts) == len(counts):
        return [b'{"predictions":[%b]}' % text for text in texts]
    ends = itertools.accumulate(counts)
    return [_join_body(texts[end - size : end]) for size, end in zip(counts, ends, strict=True)]


def encode_lines(predictions: Batch, style: AnswerStyle = _DEFAULT_STYLE) -> bytes:
    """One line of JSON per prediction, each as `encode_predictions` has it.

    Raises InvalidOutputs for values that JSON cannot carry.
    """
    try:
        return b"".join([text + b"\n" for text in _encode_each(predictions, style)])
    except _ENCODE_ERRORS as error:
        raise _encoding_error(error) from error


# ---- the dense decoder


def _is_lone_array(body: Body, begin: int, end: int, location: ArrayLocation) -> bool:
    """Whether the body has nothing but what is at a place, a list without text between these indices.

    White space within the names is still to be found out.
    """
    return (
        0 < begin < end
        and body.find(b'"', begin) < 0
        and body[:begin].translate(None, _WHITESPACE) == location.prefix
        and body[end:].translate(None, _WHITESPACE) == location.suffix
    )


def _has_one_row_per_line(lines: bytes, shape: tuple[int, ...]) -> bool:
    """Whether the rows of a regular array of this shape stand one in each line, all brackets in theirs."""
    depth = len(shape) - 1
    ends = lines.count(b"\n")
    return shape[0] == ends + 1 and lines.count(b"]" * depth + b"\n" + b"[" * depth) == ends


def _unwrap_proxy(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


def _read_numbers(instances: Any, values: Body, shape: tuple[int, ...], form: InputFormat) -> Batch | None:
    """The numbers of a parsed list in the input format; None if they do not fit.

    `values` is the text of the list. It is regular, of this shape.
    """
    integers = _wants_integers(form, values)
    try:
        buffer = instances.as_buffer(of_type="i" if integers else "d")
    except (TypeError, ValueError):
        return None
    array = np.frombuffer(buffer, _INT64 if integers else _FLOAT64)
    # In rows of one, [] leaves the same skeleton as a number does; the count tells.
    return _fit_to_format(array.reshape(shape), form) if array.size == math.prod(shape) else None


def _shape_of_skeleton(skeleton: Body) -> tuple[int, ...] | None:
    """The shape of a regular list of numbers of which this is left; None if it is another one."""
    depth = len(skeleton) - len(skeleton.lstrip(b"["))
    if not 0 < depth <= MAX_DIMENSIONS:
        return None
    sizes: list[int] = []
    part = 0  # the length of an element
    for level in range(1, depth + 1):
        # The first list of this level ends where so many close at once.
        end = skeleton.find(b"]" * level)
        if end < 0:
            return None
        length = end + level - (depth - level)
        sizes.append((length - 1) // (part + 1))
        part = length
    shape = tuple(reversed(sizes))
    return shape if skeleton == _make_skeleton(shape) else None


@lru_cache(maxsize=16)
def _make_skeleton(shape: tuple[int, ...]) -> bytes:
    """What is left of a regular array of this shape when its numbers are taken out: `[[,,],[,,]]`."""
    text = b"," * (shape[-1] - 1)
    for size in reversed(shape[:-1]):
        text = b",".join([b"[" + text + b"]"] * size)
    return b"[" + text + b"]"


def _wants_integers(form: InputFormat, values: Body) -> bool:
    """Whether every number is to be read as an integer: np.array(list) would make int64 of them."""
    if isinstance(form, ColumnsFormat) and len(form.inputs) == 1:
        return form.inputs[0].dtype.kind in "iu"
    return not (b"." in values or b"e" in values or b"E" in values)


def _fit_to_format(array: NDArray[Any], form: InputFormat) -> Batch | None:
    if isinstance(form, ArrayFormat):
        return array if array.ndim == 2 and form.width in (None, array.shape[1]) else None
    if not isinstance(form, ColumnsFormat) or len(form.inputs) != 1:
        return None
    (column,) = form.inputs
    if column.dtype.kind not in "fiu" or not shape_fits(array, column):
        return None
    if column.dtype.kind != "f" and not fits_integer_range(array, column.dtype):
        return None
    return {column.name: array.astype(column.dtype, copy=False)}


# ---- the generic decoder


def _decode_generic(body: Body, choose_format: ChooseFormat, levels: int) -> tuple[Batch, RequestParameters]:
    parameters = _parse_object(body, levels)
    if "instances" not in parameters:
        raise InvalidInputs(
            'The request has no "instances". Send {"instances": [...]}, one element per prediction.'
        )
    instances = parameters.pop("instances")
    if not isinstance(instances, list):
        raise InvalidInputs(
            f'"instances" must be a list, one element per prediction; it is {describe_json_type(instances)}.'
        )
    form = choose_format(parameters)
    if not instances:
        raise InvalidInputs('"instances" is an empty list: there is nothing to predict.')
    return convert_instances(instances, form, lenient=True), parameters


def _parse_object(body: Body, levels: int) -> RequestParameters:
    try:
        value = parse_json(body, levels)
    except TooDeepError as error:
        raise InvalidInputs(str(error)) from error
    except orjson.JSONDecodeError as error:
        raise InvalidInputs(_json_error_message(body, error)) from error
    if not isinstance(value, dict):
        raise InvalidInputs(
            f'The request body must be a JSON object with "instances"; it is {describe_json_type(value)}.'
        )
    return value


def _json_error_message(body: Body, error: orjson.JSONDecodeError) -> str:
    if not body.strip():
        return 'The request body is empty. Send {"instances": [...]}.'
    problem = f"The request body is not valid JSON: {error.msg} at line {error.lineno} column {error.colno}."
    near = body[max(error.pos - 2, 0) : error.pos + 9]
    if b"NaN" in near or b"Infinity" in near:
        problem += " JSON has no NaN or Infinity; send null for a missing value."
    return problem


# ---- answers


def _encoding_error(error: Exception) -> InvalidOutputs:
    return InvalidOutputs(f"The predictions cannot be written as JSON: {error}")


def _join_body(texts: Iterable[bytes]) -> bytes:
    return b'{"predictions":[%b]}' % b",".join(texts)


def _encode_each(predictions: Batch, style: AnswerStyle) -> list[bytes]:
    """The JSON of each prediction."""
    long_decimals = style.long_decimals
    if isinstance(predictions, np.ndarray):
        return _encode_array_rows(predictions, long_decimals=long_decimals)
    if isinstance(predictions, list):
        return [orjson.dumps(value, option=_ORJSON_OPTIONS) for value in predictions]
    if isinstance(predictions, WholeTensors):
        raise InvalidOutputs(_NO_ROWS_MESSAGE)
    if style.bare and len(predictions) == 1:
        ((name, column),) = predictions.items()
        return _encode_column(name, column, long_decimals=long_decimals)
    columns = [
        [b"%b:%b" % (key, text) for text in _encode_column(name, column, long_decimals=long_decimals)]
        for name, column in predictions.items()
        for key in (orjson.dumps(name),)
    ]
    if len(columns) == 1:
        return [b"{%b}" % text for text in columns[0]]
    return [b"{%b}" % b",".join(row) for row in zip(*columns, strict=True)]


def _encode_column(name: str, column: NDArray[Any], *, long_decimals: bool) -> list[bytes]:
    """The JSON of each row of a named output."""
    if column.dtype.kind in "OS":
        return [orjson.dumps(bytes_to_json(name, value), option=_ORJSON_OPTIONS) for value in column.tolist()]
    return _encode_array_rows(column, long_decimals=long_decimals)


def _encode_array_rows(array: NDArray[Any], *, long_decimals: bool) -> list[bytes]:
    """The JSON of each row of an array; of numbers, cut out of that of the whole."""
    values = to_orjson_array(array, long_decimals=long_decimals)
    depth = array.ndim - 1
    if isinstance(values, list) or not values.size:
        return [orjson.dumps(value, option=_ORJSON_OPTIONS) for value in values]
    text = orjson.dumps(values, option=_ORJSON_OPTIONS)
    return split_array_text(text, depth)


def split_array_text(text: bytes, depth: int) -> list[bytes]:
    """The texts of the elements of a list, of the text of all; these are regular, `depth` lists deep."""
    if not depth:
        return text[1:-1].split(b",")
    # Between two elements, and nowhere else, all brackets close and open again.
    opening, closing = b"[" * depth, b"]" * depth
    elements = text[1 + depth : -1 - depth].split(closing + b"," + opening)
    return [b"%b%b%b" % (opening, element, closing) for element in elements]


def to_orjson_array(array: NDArray[Any], *, long_decimals: bool = False) -> NDArray[Any] | list[Any]:
    """The array as orjson takes it, without copying what it takes as it is.

    `long_decimals`: floats of all sizes as float64.
    """
    match array.dtype.kind:
        case "f" if long_decimals:
            return np.ascontiguousarray(array, np.float64)
        case "f" if array.dtype.itemsize == 2:
            return np.ascontiguousarray(array, np.float32)
        case "f" | "i" | "u" | "b":
            return np.ascontiguousarray(array)
        case "V":  # bfloat16 and its relatives, which only their own package knows
            return np.ascontiguousarray(array, np.float64 if long_decimals else np.float32)
        case _:
            values: list[Any] = array.tolist()
            return values


def bytes_to_json(name: str, value: Any) -> Any:
    """Bytes as text, or as `{"b64": ...}` where the output's alias ends in `_bytes`."""
    if isinstance(value, list):
        return [bytes_to_json(name, element) for element in value]
    if not isinstance(value, bytes):
        return value
    if name.endswith("_bytes"):
        return {"b64": base64.b64encode(value).decode()}
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidOutputs(
            f"Output {name} is not UTF-8 text. Name the output with the suffix _bytes to get base64."
        ) from error
