"""Arrays in NumPy's file format (`np.save`), of numbers and texts only: pickles are never read.

Source: the format's description in `numpy.lib.format`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs
from serving.runtimes.input_conversion import MAX_DIMENSIONS

Body = bytes | bytearray
Array = NDArray[Any]

_MAGIC = b"\x93NUMPY"
# By the major version of the format: the bytes that say how long the header is, and its encoding.
_VERSIONS: Mapping[int, tuple[int, str]] = {1: (2, "latin-1"), 2: (4, "latin-1"), 3: (4, "utf-8")}
# numpy's own limit for untrusted files.
_MAX_HEADER_BYTES = 10_000
# Most requests repeat an earlier header.
_CACHED_HEADERS = 64
# Digits of a size; no array has one with more.
_MAX_DIGITS = 19
# Limits of an array of texts, in bytes and as a multiple of the texts themselves: each is padded to the
# longest.
_MAX_PADDED_BYTES, _MAX_PADDING_FACTOR = 64 << 20, 16
# Arrays begin at multiples of this many bytes.
_ALIGNMENT = 64

_ENTRY = re.compile(
    r"\s*(?P<quote>['\"])(?P<name>descr|fortran_order|shape)(?P=quote)\s*:\s*"
    r"(?P<value>'[^']*'|\"[^\"]*\"|True|False|\([\d,\s]*\))\s*(?:,|(?=\}))"
)
_RECORDS = re.compile(r"['\"]descr['\"]\s*:\s*\[")
# Texts of ASCII or bytes, texts, truth values, and numbers.
_DTYPE = re.compile(r"[<>|=]?([biufcSU]\d{1,9})")


def from_npy(body: Body) -> Array:
    """The array of a file: a view of its bytes in native byte order, else a copy; texts as bytes objects.

    Raises InvalidInputs.
    """
    header, encoding, begin = _split_header(body)
    dtype, in_columns, shape = _parse_header(header, encoding)
    size = math.prod(shape) * dtype.itemsize
    if len(body) - begin != size:
        raise InvalidInputs(
            f"The array in the request body has {len(body) - begin} bytes; {dtype.name} of shape "
            f"{list(shape)} takes {size}."
        )
    values = np.frombuffer(body, dtype, offset=begin) if size else np.empty(0, dtype)
    try:
        array: Array = values.reshape(shape[::-1]).T if in_columns else values.reshape(shape)
    except ValueError as error:  # one without elements, but with sizes that numpy cannot have
        raise InvalidInputs(f"The array in the request body has the shape {list(shape)}: {error}") from error
    match dtype.kind:
        case "U":
            return _texts_to_bytes(array)
        case "S":
            return array.astype(object)
        case _:
            return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def to_npy(tensors: Mapping[str, Array]) -> list[bytes | memoryview]:
    """The parts of a file with one array; several tensors become one record array with a field for each.

    Raises InvalidOutputs for what a file cannot hold.
    """
    arrays = {name: _to_storable(name, array) for name, array in tensors.items()}
    if len(arrays) == 1:
        (array,) = arrays.values()
    else:
        array = _to_records(arrays)
    described = repr(array.dtype.descr if array.dtype.names else array.dtype.str)
    text = f"{{'descr': {described}, 'fortran_order': False, 'shape': {array.shape!r}, }}"
    header = text.encode()
    version = 1 if text.isascii() and len(header) < (1 << 16) - _ALIGNMENT else 3
    lengths, _ = _VERSIONS[version]
    before = len(_MAGIC) + 2 + lengths
    padding = -(before + len(header) + 1) % _ALIGNMENT
    length = len(header) + padding + 1
    head = _MAGIC + bytes((version, 0)) + length.to_bytes(lengths, "little")
    return [head + header + b" " * padding + b"\n", array.reshape(-1).view(np.uint8).data]


# ---- reading


def _split_header(body: Body) -> tuple[bytes, str, int]:
    """The header, its encoding, and where the array begins."""
    if not body.startswith(_MAGIC):
        raise InvalidInputs("The request body is no array as np.save writes it: it does not begin like one.")
    version = bytes(body[len(_MAGIC) : len(_MAGIC) + 2])
    if len(version) < 2 or version[0] not in _VERSIONS:
        raise InvalidInputs("The array in the request body has a header of an unknown version.")
    lengths, encoding = _VERSIONS[version[0]]
    begin = len(_MAGIC) + 2 + lengths
    length = int.from_bytes(body[begin - lengths : begin], "little")
    if length > _MAX_HEADER_BYTES or begin + length > len(body):
        raise InvalidInputs(
            f"The array in the request body has a header of {length} bytes; it can have {_MAX_HEADER_BYTES} "
            f"at most, and the body has {len(body)}."
        )
    return bytes(body[begin : begin + length]), encoding, begin + length


@lru_cache(_CACHED_HEADERS)
def _parse_header(header: bytes, encoding: str) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    """The type, whether the order is Fortran's, and the shape."""
    text = header.decode(encoding, errors="replace").strip()
    if _RECORDS.search(text):
        raise _unsupported_array("records")
    found: dict[str, str] = {}
    at = 1
    while text.startswith("{") and (entry := _ENTRY.match(text, at)):
        found[entry["name"]] = entry["value"]
        at = entry.end()
    if found.keys() != {"descr", "fortran_order", "shape"} or text[at:].strip() != "}":
        raise InvalidInputs("The array in the request body has a header that cannot be read.")
    sizes = re.findall(r"\d+", found["shape"])
    if any(len(size) > _MAX_DIGITS for size in sizes):
        raise InvalidInputs(
            f"The array in the request body has a size of {max(map(len, sizes))} digits: none is so large."
        )
    shape = tuple(map(int, sizes))
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidInputs(
            f"The array in the request body has {len(shape)} dimensions; {MAX_DIMENSIONS} are the most."
        )
    return _parse_dtype(found["descr"].strip("'\"")), found["fortran_order"] == "True", shape


def _parse_dtype(described: str) -> np.dtype[Any]:
    if "O" in described:
        raise _unsupported_array("Python objects")
    match = _DTYPE.fullmatch(described)
    try:
        dtype = np.dtype(described) if match else None
    except TypeError:
        dtype = None
    if dtype is None or not dtype.itemsize:
        raise _unsupported_array(f"the type {described!r}")
    return dtype


def _unsupported_array(what: str) -> InvalidInputs:
    return InvalidInputs(
        f"The array in the request body is of {what}: only numbers, truth values and texts are taken. "
        "Several inputs can be sent as application/octet-stream, as the Open Inference Protocol has them."
    )


def _texts_to_bytes(array: Array) -> Array:
    """Texts as UTF-8 bytes objects. Raises InvalidInputs for what is not valid Unicode."""
    codes = np.ascontiguousarray(array).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
    if codes.size and codes.max() > sys.maxunicode:
        raise _invalid_text(f"{codes.max()} is no code point")
    texts = np.empty(array.shape, object)
    try:
        texts.reshape(-1)[:] = [text.encode() for text in array.reshape(-1).tolist()]
    except UnicodeEncodeError as error:
        raise _invalid_text(str(error)) from error
    return texts


def _invalid_text(problem: str) -> InvalidInputs:
    return InvalidInputs(f"The array in the request body has a string that is not valid Unicode: {problem}.")


# ---- writing


def _to_storable(name: str, array: Array) -> Array:
    """An array as a file can hold it, row by row."""
    match array.dtype.kind:
        case "O":
            return _texts_to_numpy(name, array)
        case "V":  # bfloat16 and its relatives, which only their own package knows
            return np.ascontiguousarray(array, np.float32)
        case _:
            return np.ascontiguousarray(array).reshape(array.shape)


def _texts_to_numpy(name: str, array: Array) -> Array:
    """Texts as numpy strings, or as numpy bytes if they are not UTF-8."""
    values: list[bytes] = array.reshape(-1).tolist()
    if any(value.endswith(b"\0") for value in values):
        raise InvalidOutputs(
            f"Output {name} has a text that ends with a zero byte, which an array of numpy cannot hold: ask "
            "for application/json or application/octet-stream."
        )
    longest = max(map(len, values), default=0)
    padded = len(values) * longest * np.dtype("U1").itemsize
    if padded > max(_MAX_PADDED_BYTES, _MAX_PADDING_FACTOR * sum(map(len, values))):
        raise InvalidOutputs(
            f"Output {name} has {len(values)} texts, one of them of {longest} bytes: as an array of numpy, "
            "all would take as much. Ask for application/json or application/octet-stream."
        )
    try:
        return np.array([value.decode() for value in values], np.str_).reshape(array.shape)
    except UnicodeDecodeError:
        return np.array(values, np.bytes_).reshape(array.shape)


def _to_records(arrays: Mapping[str, Array]) -> Array:
    counts = {name: len(array) if array.ndim else -1 for name, array in arrays.items()}
    if len(set(counts.values())) != 1 or -1 in counts.values() or "" in arrays:
        raise InvalidOutputs(
            f"The outputs {', '.join(arrays)} do not go into one array: ask for application/octet-stream."
        )
    dtype = np.dtype([(name, array.dtype, array.shape[1:]) for name, array in arrays.items()])
    records = np.empty(next(iter(counts.values())), dtype)
    for name, array in arrays.items():
        records[name] = array
    return records
