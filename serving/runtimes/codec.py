"""Between JSON bytes and batches: the only place where bodies are parsed and answers are written.

A body takes one of two ways. The dense way hands numeric JSON straight to a C buffer, with no Python
object per number, and accepts only what it can prove regular. Whatever it declines takes the plain way
through Python values, which also words the errors. Both give the same arrays.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import simdjson
from numpy.typing import NDArray

from serving.depth import LEVELS, TooDeepError, loads
from serving.errors import InvalidInputs, InvalidOutputs
from serving.runtimes import Array, Columns, Form, Rows
from serving.runtimes.conversion import MOST_DIMENSIONS, from_rows, in_range, kind, shape_fits
from serving.runtimes.instances import Batch, split

Parameters = dict[str, Any]
Body = bytes | bytearray
FormOf = Callable[[Mapping[str, Any]], Form]

_NUMBER = b"0123456789.-+eE \t\r\n"
# Below this many bytes the shape check costs more than the Python floats it saves (measured).
_DENSE_FROM = 512
_ENCODE = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_ENCODE_LINE = _ENCODE | orjson.OPT_APPEND_NEWLINE


class Decoder:
    """Parses bodies nested at most `levels` deep. One per thread: the parser's buffers are reused."""

    def __init__(self, levels: int = LEVELS) -> None:
        self._parser = simdjson.Parser()
        self._levels = levels

    def decode(self, body: Body, form_of: FormOf) -> tuple[Batch, Parameters]:
        """The instances in the form that `form_of(parameters)` asks for, and the other fields of the body.

        Raises InvalidInputs for everything a client can get wrong.
        """
        if len(body) >= _DENSE_FROM:
            dense = self._dense(body, form_of)
            if dense is not None:
                return dense
        return _plain(body, form_of, self._levels)

    def dense_lines(self, lines: bytes, form: Form) -> Batch | None:
        """JSON values, one per line, in the form of `form`, if each line is a regular list of numbers.

        None where lines must be looked at one by one.
        """
        if isinstance(form, Rows) or b"\r" in lines:
            return None
        body = b"[" + lines.replace(b"\n", b",") + b"]"
        try:
            instances = self._parser.parse(body)
        except (ValueError, RuntimeError):
            return None
        try:
            shape = _first_shape(instances)
            if shape is None or len(shape) < 2 or not _one_per_line(lines, shape):
                return None
            array = _dense_array(body, instances, integers=_wants_integers(form, body))
        finally:
            del instances
        return None if array is None else _fit_dense(array, form)

    def _dense(self, body: Body, form_of: FormOf) -> tuple[Batch, Parameters] | None:
        try:
            document = self._parser.parse(body)
        except (ValueError, RuntimeError):  # not JSON, too deep, not UTF-8: the plain way says which
            return None
        # Every proxy must be gone before the parser is used again.
        try:
            if not isinstance(document, simdjson.Object) or "instances" not in document:
                return None
            keys = list(document)
            # Of two with the same name the plain way takes the last one, this the first; and it takes a name
            # with a NUL in it for its beginning.
            if len(set(keys)) < len(keys) or "\0" in "".join(keys):
                return None
            parameters = {key: _materialise(document[key]) for key in keys if key != "instances"}
            form = form_of(parameters)
            instances = document["instances"]
            nested = any(isinstance(value, list | dict) for value in parameters.values())  # and how deep?
            if isinstance(form, Rows) or nested or not isinstance(instances, simdjson.Array):
                return None
            array = _dense_array(body, instances, integers=_wants_integers(form, body))
            del instances
        finally:
            del document
        if array is None or array.ndim >= self._levels:
            return None
        batch = _fit_dense(array, form)
        return None if batch is None else (batch, parameters)


def encode(predictions: Batch) -> bytes:
    """The body of a successful answer. NaN and infinities become null: JSON has no word for them.

    Raises InvalidOutputs for values that JSON cannot carry.
    """
    try:
        return b'{"predictions":' + orjson.dumps(_encodable(predictions), option=_ENCODE) + b"}"
    except (TypeError, orjson.JSONEncodeError) as error:
        raise InvalidOutputs(f"The predictions cannot be written as JSON: {error}") from error


def encode_each(predictions: Batch, counts: Sequence[int]) -> list[bytes]:
    """The bodies of several successful answers: the first has so many of the predictions, and so on.

    The same bytes as `encode` of each part. Raises InvalidOutputs for values that JSON cannot carry.
    """
    rows = _rows(predictions) if isinstance(predictions, np.ndarray) else None
    if rows is None:
        return [encode(part) for part in split(predictions, counts)]
    if len(rows) == len(counts):
        return [b'{"predictions":[%b]}' % row for row in rows]
    ends = itertools.accumulate(counts)
    return [
        b'{"predictions":[%b]}' % b",".join(rows[end - size : end])
        for size, end in zip(counts, ends, strict=True)
    ]


def _rows(array: NDArray[Any]) -> list[bytes] | None:
    """The JSON of each row of numbers, cut out of that of the whole; None where it cannot be cut."""
    depth = array.ndim - 1
    if array.dtype.kind not in "fiub" or not array.size:
        return None
    text = orjson.dumps(_numbers(array), option=_ENCODE)
    if not depth:
        return text[1:-1].split(b",")
    # Between two rows, and nowhere else, all brackets close and open again.
    opening, closing = b"[" * depth, b"]" * depth
    rows = text[1 + depth : -1 - depth].split(closing + b"," + opening)
    return [opening + row + closing for row in rows]


def encode_lines(predictions: Batch) -> bytes:
    """One line of JSON per prediction, each as `encode` has it.

    Raises InvalidOutputs for values that JSON cannot carry.
    """
    try:
        values = _encodable(predictions)
        if isinstance(values, np.ndarray):
            if values.ndim == 1 and values.size:
                return orjson.dumps(values, option=_ENCODE)[1:-1].replace(b",", b"\n") + b"\n"
            values = list(values)
        return b"".join([orjson.dumps(value, option=_ENCODE_LINE) for value in values])
    except (TypeError, orjson.JSONEncodeError) as error:
        raise InvalidOutputs(f"The predictions cannot be written as JSON: {error}") from error


# ---- the dense way


def _one_per_line(lines: bytes, shape: tuple[int, ...]) -> bool:
    """Whether the rows of a regular array of this shape stand one in each line, all brackets in theirs."""
    depth = len(shape) - 1
    ends = lines.count(b"\n")
    return shape[0] == ends + 1 and lines.count(b"]" * depth + b"\n" + b"[" * depth) == ends


def _materialise(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


def _dense_array(body: Body, instances: Any, *, integers: bool) -> NDArray[Any] | None:
    """The array, if the body holds exactly one list and it is regular and numeric all through."""
    shape = _first_shape(instances)
    if shape is None:
        return None
    span = body[body.index(b"[") : body.rindex(b"]") + 1]
    if span.translate(None, _NUMBER) != _skeleton(shape):
        return None
    try:
        buffer = instances.as_buffer(of_type="i" if integers else "d")
    except (TypeError, ValueError):
        return None
    array = np.frombuffer(buffer, np.int64 if integers else np.float64)
    # In rows of one, [] leaves the same skeleton as a number does; the count tells.
    return array.reshape(shape) if array.size == math.prod(shape) else None


def _first_shape(instances: Any) -> tuple[int, ...] | None:
    """The shape along the first elements; None when something in it is empty or not a number, or too deep."""
    shape: list[int] = []
    while isinstance(instances, simdjson.Array):
        if not len(instances) or len(shape) == MOST_DIMENSIONS:
            return None
        shape.append(len(instances))
        instances = instances[0]
    return tuple(shape)


@lru_cache(maxsize=16)
def _skeleton(shape: tuple[int, ...]) -> bytes:
    """What is left of a regular array of this shape when its numbers are taken out: `[[,,],[,,]]`."""
    text = b"," * (shape[-1] - 1)
    for size in reversed(shape[:-1]):
        text = b",".join([b"[" + text + b"]"] * size)
    return b"[" + text + b"]"


def _wants_integers(form: Form, body: Body) -> bool:
    """Whether every number is to be read as an integer: np.array(list) would make int64 of them."""
    match form:
        case Columns(inputs=(column,)):
            return column.dtype.kind in "iu"
        case _:
            span = body[body.index(b"[") : body.rindex(b"]")]
            return not (b"." in span or b"e" in span or b"E" in span)


def _fit_dense(array: NDArray[Any], form: Form) -> Batch | None:
    """The array as the form wants it, or None when it does not fit and the plain way shall say why."""
    match form:
        case Array(width=width):
            return array if array.ndim == 2 and width in (None, array.shape[1]) else None
        case Columns(inputs=(column,)) if column.dtype.kind in "fiu" and shape_fits(array, column):
            if column.dtype.kind in "iu" and not in_range(array, column.dtype):
                return None
            return {column.name: array.astype(column.dtype, copy=False)}
        case _:
            return None


# ---- the plain way


def _plain(body: Body, form_of: FormOf, levels: int) -> tuple[Batch, Parameters]:
    parameters = _parse_object(body, levels)
    if "instances" not in parameters:
        raise InvalidInputs(
            'The request has no "instances". Send {"instances": [...]}, one element per prediction.'
        )
    instances = parameters.pop("instances")
    if not isinstance(instances, list):
        raise InvalidInputs(
            f'"instances" must be a list, one element per prediction; it is {kind(instances)}.'
        )
    form = form_of(parameters)
    if not instances:
        raise InvalidInputs('"instances" is an empty list: there is nothing to predict.')
    return from_rows(instances, form), parameters


def _parse_object(body: Body, levels: int) -> Parameters:
    try:
        value = loads(body, levels)
    except TooDeepError as error:
        raise InvalidInputs(str(error)) from error
    except orjson.JSONDecodeError as error:
        raise InvalidInputs(_json_problem(body, error)) from error
    if not isinstance(value, dict):
        raise InvalidInputs(f'The request body must be a JSON object with "instances"; it is {kind(value)}.')
    return value


def _json_problem(body: Body, error: orjson.JSONDecodeError) -> str:
    if not body.strip():
        return 'The request body is empty. Send {"instances": [...]}.'
    problem = f"The request body is not valid JSON: {error.msg} at line {error.lineno} column {error.colno}."
    near = body[max(error.pos - 2, 0) : error.pos + 9]
    if b"NaN" in near or b"Infinity" in near:
        problem += " JSON has no NaN or Infinity; send null for a missing value."
    return problem


# ---- answers


def _encodable(predictions: Batch) -> Any:
    if isinstance(predictions, dict):
        columns = [_column_values(name, column) for name, column in predictions.items()]
        return [dict(zip(predictions, row, strict=True)) for row in zip(*columns, strict=True)]
    return _numbers(predictions) if isinstance(predictions, np.ndarray) else predictions


def _numbers(array: NDArray[Any]) -> Any:
    """The array as orjson takes it. float32 is widened, so that its exact value is what is read back."""
    match array.dtype.kind:
        case "f" if array.dtype.itemsize < 8:
            return np.ascontiguousarray(array, np.float64)
        case "f" | "i" | "u" | "b":
            return np.ascontiguousarray(array)
        case "V":  # bfloat16 and its relatives, which only their own package knows
            return np.ascontiguousarray(array, np.float64)
        case _:
            return array.tolist()


def _column_values(name: str, column: NDArray[Any]) -> Sequence[Any]:
    """One value per row of a named output."""
    if column.dtype.kind in "OS":
        return [_text(name, value) for value in column.tolist()]
    values = _numbers(column)
    return values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else list(values)


def _text(name: str, value: Any) -> Any:
    """Bytes as text, or as `{"b64": ...}` where the output's alias ends in `_bytes`."""
    if isinstance(value, list):
        return [_text(name, element) for element in value]
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
