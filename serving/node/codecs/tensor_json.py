"""Tensors as TensorFlow Serving has them in JSON, with words that JSON lacks: NaN, Infinity and -Infinity."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from serving import json_depth
from serving.errors import InvalidInputs, InvalidOutputs
from serving.json_depth import TooDeepError
from serving.runtimes.json_codec import bytes_to_json, split_array_text, to_orjson_array

# Also matches texts, to skip them; an unterminated one too, so that it is scanned once, not from each quote.
_WORD = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|-?Infinity|NaN', re.DOTALL)
_ENCODE = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_UNWRITABLE = (TypeError, ValueError, orjson.JSONEncodeError)


# ---- reading


def parse_extended_json(body: bytes | bytearray, levels: int) -> Any:
    """The value of a text nested at most `levels` deep. Raises InvalidInputs as TensorFlow Serving does."""
    try:
        return _parse_with_words(body, levels)
    except TooDeepError as error:
        raise InvalidInputs(str(error)) from error
    except json.JSONDecodeError as error:  # that of orjson too
        problem = "The document is empty" if not body.strip() else error.msg
        raise InvalidInputs(f"JSON Parse error: {problem} at offset: {error.pos}") from error


def _parse_with_words(body: bytes | bytearray, levels: int) -> Any:
    try:
        return json_depth.parse_json(body, levels)
    except orjson.JSONDecodeError:
        if b"NaN" not in body and b"Infinity" not in body:
            raise
    # With zeros in place of the words it must be valid JSON; otherwise the error has the right position.
    json_depth.parse_json(_WORD.sub(_blank_word, body), levels)
    return json.loads(body, parse_int=orjson.loads)


def _blank_word(found: re.Match[bytes]) -> bytes:
    """As many bytes as the word has; texts stay."""
    word = found[0]
    return word if word.startswith(b'"') else b"0".ljust(len(word))


# ---- writing


def tensor_to_json(name: str, array: NDArray[Any]) -> bytes:
    """The JSON of an output. Raises InvalidOutputs for values that JSON cannot carry."""
    try:
        if array.dtype.kind in "OS":
            return orjson.dumps(bytes_to_json(name, array.tolist()), option=_ENCODE)
        return _numbers_to_json(array)
    except _UNWRITABLE as error:
        raise InvalidOutputs(f"Output {name} cannot be written as JSON: {error}") from error


def rows_to_json(name: str, array: NDArray[Any]) -> list[bytes]:
    """The JSON of each row of an output. Raises as `tensor_to_json` does."""
    if array.dtype.kind in "OS":
        return [tensor_to_json(name, row) for row in array] if array.ndim > 1 else _texts_to_json(name, array)
    if not array.size:
        return [tensor_to_json(name, row) for row in array]
    return split_array_text(tensor_to_json(name, array), array.ndim - 1)


def values_to_json(values: Any) -> bytes:
    """The JSON of predictions that are plain values. Raises InvalidOutputs."""
    try:
        text = orjson.dumps(values, option=_ENCODE)
    except _UNWRITABLE as error:
        raise InvalidOutputs(f"The predictions cannot be written as JSON: {error}") from error
    if b"null" not in text:
        return text
    try:  # once more, by json, which writes NaN and infinities
        return json.dumps(values, default=_json_default, ensure_ascii=False, separators=(",", ":")).encode()
    except _UNWRITABLE:  # keys of types that only orjson writes
        return text


def _texts_to_json(name: str, column: NDArray[Any]) -> list[bytes]:
    return [orjson.dumps(bytes_to_json(name, value), option=_ENCODE) for value in column.tolist()]


def _numbers_to_json(array: NDArray[Any]) -> bytes:
    values = to_orjson_array(array.reshape(1) if array.ndim == 0 else array)
    text = orjson.dumps(values, option=_ENCODE)
    if isinstance(values, np.ndarray) and b"null" in text:
        text = _replace_nulls(text, values)
    return text[1:-1] if array.ndim == 0 else text


def _replace_nulls(text: bytes, values: NDArray[Any]) -> bytes:
    """The text of numbers with a word for each that became null."""
    words = [_non_finite_word(value) for value in values[~np.isfinite(values)].tolist()]
    pieces = text.split(b"null")
    return b"".join(piece + word for piece, word in zip(pieces, [*words, b""], strict=True))


def _non_finite_word(value: float) -> bytes:
    if value != value:  # noqa: PLR0124  which only NaN is
        return b"NaN"
    return b"Infinity" if value > 0 else b"-Infinity"


def _json_default(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")
