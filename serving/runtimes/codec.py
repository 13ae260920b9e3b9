"""Between JSON bytes and batches: the only place where bodies are parsed and answers are written.

A body takes one of two ways. The dense way hands numeric JSON straight to a C buffer, with no Python
object per number, and accepts only what it can prove regular: what is left of a text without its numbers says
so. Whatever it declines takes the plain way through Python values, which also words the errors. Both give the
same arrays.
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

from serving.depth import DEFAULT_MAX_DEPTH, TooDeepError, parse_json
from serving.errors import InvalidInputs, InvalidOutputs
from serving.runtimes import Array, Columns, Form, Rows
from serving.runtimes.conversion import MOST_DIMENSIONS, from_rows, in_range, kind, shape_fits
from serving.runtimes.instances import Batch, Tensors

Parameters = dict[str, Any]
Body = bytes | bytearray
FormOf = Callable[[Mapping[str, Any]], Form]

_NUMBER = b"0123456789.-+eE \t\r\n"
_SPACE = b" \t\r\n"
_INTEGER, _FLOAT = np.dtype(np.int64), np.dtype(np.float64)
_BUFFERS = {_FLOAT: "d", _INTEGER: "i", np.dtype(np.uint64): "u"}  # what simdjson calls them
# Below this many bytes, other fields beside the instances cost more than the Python floats saved (measured).
_DENSE_FROM = 512
_UNWRITABLE = (TypeError, orjson.JSONEncodeError)
_ROWLESS = "The answer is of whole tensors, of which there is not one for each instance."
_ENCODE = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a body its numbers are: at a key, or at a key of an object there.

    `before` and `after` are what is around them if the body has nothing else.
    """

    key: str
    inner: str
    before: bytes
    after: bytes


@lru_cache(maxsize=64)
def place(key: str, inner: str = "") -> Place:
    """The place of these keys; without `inner` the numbers are at the first one."""
    before = b"{%b:" % orjson.dumps(key)
    return Place(
        key, inner, before + b"{%b:" % orjson.dumps(inner) if inner else before, b"}}" if inner else b"}"
    )


_INSTANCES = place("instances")


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """How predictions are written where AI Platform's service had more than one way.

    `bare`: an output that is the only one without its name. `long_decimals`: float32 numbers with the digits
    of the float64 of the same value.
    """

    bare: bool = False
    long_decimals: bool = False


_PLAIN_STYLE = AnswerStyle()


class Decoder:
    """Parses bodies nested at most `levels` deep. One per thread: the parser's buffers are reused."""

    def __init__(self, levels: int = DEFAULT_MAX_DEPTH) -> None:
        self._parser = simdjson.Parser()
        self._levels = levels
        self._skeleton = b""
        self._shape: tuple[int, ...] | None = None

    def decode(self, body: Body, form_of: FormOf) -> tuple[Batch, Parameters]:
        """The instances in the form that `form_of(parameters)` asks for, and the other fields of the body.

        Raises InvalidInputs for everything a client can get wrong.
        """
        alone = self._alone(body, form_of)
        if alone is not None:
            return alone, {}
        if len(body) >= _DENSE_FROM:
            dense = self._dense(body, form_of)
            if dense is not None:
                return dense
        return _plain(body, form_of, self._levels)

    def regular(self, body: Body, form_of: FormOf, at: Place = _INSTANCES) -> tuple[Batch, Parameters] | None:
        """What is at a place and the other fields of the body, if it is a regular list of numbers.

        None where the body must be looked at value by value. Raises what `form_of` raises.
        """
        alone = self._alone(body, form_of, at)
        if alone is not None:
            return alone, {}
        return self._dense(body, form_of, at) if len(body) >= _DENSE_FROM else None

    def dense_lines(self, lines: bytes, form: Form) -> Batch | None:
        """JSON values, one per line, in the form of `form`, if each line is a regular list of numbers.

        None where lines must be looked at one by one.
        """
        if isinstance(form, Rows) or b"\r" in lines:
            return None
        body = b"[" + lines.replace(b"\n", b",") + b"]"
        shape = self._shape_of(body)
        if shape is None or len(shape) < 2 or not _one_per_line(lines, shape):
            return None
        try:
            return _numbers_of(self._parser.parse(body), body, shape, form)
        except (ValueError, RuntimeError):
            return None

    def numbers(self, values: Body, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """The numbers of a JSON list, in its shape, if this is the text of one that is regular and numeric.

        `dtype` is float64, int64 or uint64. None for a list that is neither, and for numbers of another type.
        """
        flat = values.count(b"[") == 1
        shape = None if flat else self._shape_of(values)
        if shape is None and not flat:
            return None
        try:
            document: Any = self._parser.parse(values)
            buffer = document.as_buffer(of_type=_BUFFERS[dtype])
        except (TypeError, ValueError, RuntimeError):  # a value that is no such number; not JSON; an object
            return None
        finally:
            document = None  # the parser is used again when this is gone
        array = np.frombuffer(buffer, dtype)
        if shape is None:
            return array
        return array.reshape(shape) if array.size == math.prod(shape) else None

    def _alone(self, body: Body, form_of: FormOf, at: Place = _INSTANCES) -> Batch | None:
        """The instances of a body that has nothing else, if they are a regular list of numbers."""
        begin, end = body.find(b"["), body.rfind(b"]") + 1
        if not _are_alone(body, begin, end, at):
            return None
        try:
            form = form_of({})
        except InvalidInputs:  # but first the plain way says what is wrong with the body
            return None
        values = body[begin:end]
        shape = None if isinstance(form, Rows) else self._shape_of(values)
        if shape is None:
            return None
        try:
            document: Any = self._parser.parse(body)
            found = document[at.key]
            return _numbers_of(found[at.inner] if at.inner else found, values, shape, form)
        except (ValueError, RuntimeError, KeyError):  # not JSON, not UTF-8; white space within the name
            return None
        finally:
            document = found = None  # the parser is used again when these are gone

    def _dense(self, body: Body, form_of: FormOf, at: Place = _INSTANCES) -> tuple[Batch, Parameters] | None:
        try:
            document = self._parser.parse(body)
        except (ValueError, RuntimeError):  # not JSON, too deep, not UTF-8: the plain way says which
            return None
        # Every proxy must be gone before the parser is used again.
        try:
            if not isinstance(document, simdjson.Object) or at.key not in document:
                return None
            keys = list(document)
            # Of two with the same name the plain way takes the last one, this the first; and it takes a name
            # with a NUL in it for its beginning.
            if len(set(keys)) < len(keys) or "\0" in "".join(keys):
                return None
            parameters = {key: _materialise(document[key]) for key in keys if key != at.key}
            form = form_of(parameters)
            instances = document[at.key]
            if at.inner:
                if not isinstance(instances, simdjson.Object) or list(instances) != [at.inner]:
                    return None
                instances = instances[at.inner]
            nested = any(isinstance(value, list | dict) for value in parameters.values())  # and how deep?
            if isinstance(form, Rows) or nested or not isinstance(instances, simdjson.Array):
                return None
            # There are no further lists: the first bracket and the last one are theirs.
            values = body[body.index(b"[") : body.rindex(b"]") + 1]
            shape = self._shape_of(values)
            batch = None if shape is None else _numbers_of(instances, values, shape, form)
            del instances
        finally:
            del document
        return None if batch is None else (batch, parameters)

    def _shape_of(self, values: Body) -> tuple[int, ...] | None:
        """The shape of a list, if this is the text of one that is regular and numeric all through."""
        skeleton = values.translate(None, _NUMBER)
        if skeleton != self._skeleton:  # most bodies are like the one before
            self._shape = _shape_of(skeleton)
            self._skeleton = bytes(skeleton)
        return None if self._shape is None or len(self._shape) >= self._levels else self._shape


def encode(predictions: Batch, style: AnswerStyle = _PLAIN_STYLE) -> bytes:
    """The body of a successful answer. NaN and infinities become null: JSON has no word for them.

    float32 numbers have the fewest digits that are read back as the same float32, unless the style says
    otherwise. Raises InvalidOutputs for values that JSON cannot carry.
    """
    try:
        if isinstance(predictions, np.ndarray):
            values = numbers(predictions, long=style.long_decimals)
        elif isinstance(predictions, list):
            values = predictions
        else:
            return _body(_texts(predictions, style))
        return b'{"predictions":%b}' % orjson.dumps(values, option=_ENCODE)
    except _UNWRITABLE as error:
        raise _unwritable(error) from error


def encode_each(predictions: Batch, counts: Sequence[int], style: AnswerStyle = _PLAIN_STYLE) -> list[bytes]:
    """The bodies of several successful answers: the first has so many of the predictions, and so on.

    The same bytes as `encode` of each part. Raises InvalidOutputs for values that JSON cannot carry.
    """
    try:
        texts = _texts(predictions, style)
    except _UNWRITABLE as error:
        raise _unwritable(error) from error
    if len(texts) == len(counts):
        return [b'{"predictions":[%b]}' % text for text in texts]
    ends = itertools.accumulate(counts)
    return [_body(texts[end - size : end]) for size, end in zip(counts, ends, strict=True)]


def encode_lines(predictions: Batch, style: AnswerStyle = _PLAIN_STYLE) -> bytes:
    """One line of JSON per prediction, each as `encode` has it.

    Raises InvalidOutputs for values that JSON cannot carry.
    """
    try:
        return b"".join([text + b"\n" for text in _texts(predictions, style)])
    except _UNWRITABLE as error:
        raise _unwritable(error) from error


# ---- the dense way


def _are_alone(body: Body, begin: int, end: int, at: Place) -> bool:
    """Whether the body has nothing but what is at a place, a list without text between these indices.

    White space within the names is still to be found out.
    """
    return (
        0 < begin < end
        and body.find(b'"', begin) < 0
        and body[:begin].translate(None, _SPACE) == at.before
        and body[end:].translate(None, _SPACE) == at.after
    )


def _one_per_line(lines: bytes, shape: tuple[int, ...]) -> bool:
    """Whether the rows of a regular array of this shape stand one in each line, all brackets in theirs."""
    depth = len(shape) - 1
    ends = lines.count(b"\n")
    return shape[0] == ends + 1 and lines.count(b"]" * depth + b"\n" + b"[" * depth) == ends


def _materialise(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


def _numbers_of(instances: Any, values: Body, shape: tuple[int, ...], form: Form) -> Batch | None:
    """The numbers of a parsed list as the form wants them; None if they do not fit: the plain way says why.

    `values` is the text of the list. It is regular, of this shape.
    """
    integers = _wants_integers(form, values)
    try:
        buffer = instances.as_buffer(of_type="i" if integers else "d")
    except (TypeError, ValueError):
        return None
    array = np.frombuffer(buffer, _INTEGER if integers else _FLOAT)
    # In rows of one, [] leaves the same skeleton as a number does; the count tells.
    return _fitted(array.reshape(shape), form) if array.size == math.prod(shape) else None


def _shape_of(skeleton: Body) -> tuple[int, ...] | None:
    """The shape of a regular list of numbers of which this is left; None if it is another one."""
    depth = len(skeleton) - len(skeleton.lstrip(b"["))
    if not 0 < depth <= MOST_DIMENSIONS:
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
    return shape if skeleton == _skeleton(shape) else None


@lru_cache(maxsize=16)
def _skeleton(shape: tuple[int, ...]) -> bytes:
    """What is left of a regular array of this shape when its numbers are taken out: `[[,,],[,,]]`."""
    text = b"," * (shape[-1] - 1)
    for size in reversed(shape[:-1]):
        text = b",".join([b"[" + text + b"]"] * size)
    return b"[" + text + b"]"


def _wants_integers(form: Form, values: Body) -> bool:
    """Whether every number is to be read as an integer: np.array(list) would make int64 of them."""
    if isinstance(form, Columns) and len(form.inputs) == 1:
        return form.inputs[0].dtype.kind in "iu"
    return not (b"." in values or b"e" in values or b"E" in values)


def _fitted(array: NDArray[Any], form: Form) -> Batch | None:
    if isinstance(form, Array):
        return array if array.ndim == 2 and form.width in (None, array.shape[1]) else None
    if not isinstance(form, Columns) or len(form.inputs) != 1:
        return None
    (column,) = form.inputs
    if column.dtype.kind not in "fiu" or not shape_fits(array, column):
        return None
    if column.dtype.kind != "f" and not in_range(array, column.dtype):
        return None
    return {column.name: array.astype(column.dtype, copy=False)}


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
    return from_rows(instances, form, lenient=True), parameters


def _parse_object(body: Body, levels: int) -> Parameters:
    try:
        value = parse_json(body, levels)
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


def _unwritable(error: Exception) -> InvalidOutputs:
    return InvalidOutputs(f"The predictions cannot be written as JSON: {error}")


def _body(texts: Iterable[bytes]) -> bytes:
    return b'{"predictions":[%b]}' % b",".join(texts)


def _texts(predictions: Batch, style: AnswerStyle) -> list[bytes]:
    """The JSON of each prediction."""
    long = style.long_decimals
    if isinstance(predictions, np.ndarray):
        return _rows(predictions, long=long)
    if isinstance(predictions, list):
        return [orjson.dumps(value, option=_ENCODE) for value in predictions]
    if isinstance(predictions, Tensors):
        raise InvalidOutputs(_ROWLESS)
    if style.bare and len(predictions) == 1:
        ((name, column),) = predictions.items()
        return _column_texts(name, column, long=long)
    columns = [
        [b"%b:%b" % (key, text) for text in _column_texts(name, column, long=long)]
        for name, column in predictions.items()
        for key in (orjson.dumps(name),)
    ]
    if len(columns) == 1:
        return [b"{%b}" % text for text in columns[0]]
    return [b"{%b}" % b",".join(row) for row in zip(*columns, strict=True)]


def _column_texts(name: str, column: NDArray[Any], *, long: bool) -> list[bytes]:
    """The JSON of each row of a named output."""
    if column.dtype.kind in "OS":
        return [orjson.dumps(as_text(name, value), option=_ENCODE) for value in column.tolist()]
    return _rows(column, long=long)


def _rows(array: NDArray[Any], *, long: bool) -> list[bytes]:
    """The JSON of each row of an array; of numbers, cut out of that of the whole."""
    values = numbers(array, long=long)
    depth = array.ndim - 1
    if isinstance(values, list) or not values.size:
        return [orjson.dumps(value, option=_ENCODE) for value in values]
    text = orjson.dumps(values, option=_ENCODE)
    return cut(text, depth)


def cut(text: bytes, depth: int) -> list[bytes]:
    """The texts of the elements of a list, of the text of all; these are regular, `depth` lists deep."""
    if not depth:
        return text[1:-1].split(b",")
    # Between two elements, and nowhere else, all brackets close and open again.
    opening, closing = b"[" * depth, b"]" * depth
    elements = text[1 + depth : -1 - depth].split(closing + b"," + opening)
    return [b"%b%b%b" % (opening, element, closing) for element in elements]


def numbers(array: NDArray[Any], *, long: bool = False) -> NDArray[Any] | list[Any]:
    """The array as orjson takes it, without copying what it takes as it is.

    `long`: floats of all sizes as float64.
    """
    match array.dtype.kind:
        case "f" if long:
            return np.ascontiguousarray(array, np.float64)
        case "f" if array.dtype.itemsize == 2:
            return np.ascontiguousarray(array, np.float32)
        case "f" | "i" | "u" | "b":
            return np.ascontiguousarray(array)
        case "V":  # bfloat16 and its relatives, which only their own package knows
            return np.ascontiguousarray(array, np.float64 if long else np.float32)
        case _:
            values: list[Any] = array.tolist()
            return values


def as_text(name: str, value: Any) -> Any:
    """Bytes as text, or as `{"b64": ...}` where the output's alias ends in `_bytes`."""
    if isinstance(value, list):
        return [as_text(name, element) for element in value]
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
