"""Tensors as the Open Inference Protocol's raw bytes: little-endian, row-major, texts after their lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs
from serving.runtimes.datatypes import BF16, BYTES, DATATYPES, datatype_of, dtype_of
from serving.runtimes.input_conversion import MAX_DIMENSIONS

Buffer = bytes | bytearray | memoryview

# Bytes of a text's length prefix.
_LENGTH_BYTES = 4
# numpy refuses larger products of the non-zero sizes, also for empty arrays.
_MAX_SIZE = 1 << 48


def from_raw(name: str, datatype: str, shape: Sequence[int], data: Buffer) -> NDArray[Any]:
    """The tensor of an input; one of numbers is a view of the bytes. Raises InvalidInputs."""
    size = count_elements(name, datatype, shape)
    if datatype == BYTES:
        return _split_texts(name, size, bytes(data)).reshape(shape)
    dtype = _wire_dtype(datatype)
    if len(data) != size * dtype.itemsize:
        raise InvalidInputs(
            f"Input {name} has {len(data)} bytes; {datatype} of shape {list(shape)} takes "
            f"{size * dtype.itemsize}."
        )
    array: NDArray[Any] = np.frombuffer(data, dtype).reshape(shape)
    if datatype == BF16 and dtype.kind == "u":  # the upper halves of float32 numbers
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array


def to_raw(name: str, array: NDArray[Any]) -> Buffer:
    """The bytes of an output, of contiguous numbers without a copy. Raises InvalidOutputs."""
    datatype = output_datatype(name, array)
    if datatype == BYTES:
        return b"".join(
            [len(text).to_bytes(_LENGTH_BYTES, "little") + text for text in array.reshape(-1).tolist()]
        )
    ordered = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return ordered.reshape(-1).view(np.uint8).data


def count_elements(name: str, datatype: str, shape: Sequence[int]) -> int:
    """The number of elements of an input. Raises InvalidInputs if there is no such type or shape."""
    if datatype not in DATATYPES:
        known = ", ".join(DATATYPES)
        raise InvalidInputs(f"Input {name} is of type {datatype!r}, which is none of {known}.")
    if len(shape) > MAX_DIMENSIONS or any(size < 0 for size in shape):
        raise InvalidInputs(
            f"Input {name} has the shape {list(shape)[: MAX_DIMENSIONS + 1]}; a shape has at most "
            f"{MAX_DIMENSIONS} sizes, none of them negative."
        )
    if 0 in shape and math.prod(size or 1 for size in shape) > _MAX_SIZE:
        raise InvalidInputs(
            f"Input {name} has the shape {list(shape)}: no elements, and its other sizes are too large."
        )
    return math.prod(shape)


def output_datatype(name: str, array: NDArray[Any]) -> str:
    """The type of an output. Raises InvalidOutputs if the protocol has none for it."""
    datatype = datatype_of(array.dtype)
    if datatype not in DATATYPES:
        raise InvalidOutputs(f"Output {name} is of type {datatype}, which the protocol does not have.")
    return datatype


def _wire_dtype(datatype: str) -> np.dtype[Any]:
    return (dtype_of(datatype) or np.dtype(np.uint16)).newbyteorder("<")


def _split_texts(name: str, count: int, data: bytes) -> NDArray[Any]:
    if count * _LENGTH_BYTES > len(data):
        raise InvalidInputs(
            f"Input {name} has {len(data)} bytes, too few for {count} texts and their lengths."
        )
    texts = np.empty(count, object)
    begin = 0
    for index in range(count):
        end = begin + _LENGTH_BYTES
        begin, end = end, end + int.from_bytes(data[begin:end], "little")
        if begin > len(data) or end > len(data):
            raise InvalidInputs(f"Input {name} ends within text {index} of {count}.")
        texts[index] = data[begin:end]
        begin = end
    if begin != len(data):
        raise InvalidInputs(f"Input {name} has {len(data) - begin} bytes more than its {count} texts take.")
    return texts
