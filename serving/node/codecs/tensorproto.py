"""Converts between TensorFlow's TensorProto and numpy arrays, without TensorFlow.

The elements of a tensor are in `tensor_content`, or in the list of its type; a list that is too short goes on
with its last element, an empty one with zeros. Answers have them in lists, as those of TensorFlow Serving do:
its clients read `response.outputs["y"].float_val`. They are written by hand, since the bytes of a packed list
of floats are those of the array.
Source: tensor.proto and types.proto of TensorFlow, `Tensor::FromProto` in its tensor.cc.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs
from serving.node.codecs.zero_copy import TensorContent
from serving.protocols.protobuf_fields import MalformedProtobuf, encode_field_prefix, read_varint
from serving.protocols.protos import load_descriptor_pool, load_message_class
from serving.runtimes.datatypes import BF16, BYTES, datatype_of, dtype_of

# Limit of the elements that a request leaves out, in bytes: a few bytes can declare any shape.
MAX_FILLED_BYTES = 16 << 20
# Texts in the contents of a tensor: more would keep a node busy for seconds.
_MAX_TEXTS = 1 << 20
# numpy's limit.
_MAX_DIMENSIONS = 32
_CONTENT = "tensor_content"

Shape = tuple[int, ...]

_TENSOR = load_message_class("tensorflow.TensorProto")
_FIELDS = _TENSOR.DESCRIPTOR.fields_by_name
_DATA_TYPES = load_descriptor_pool().FindEnumTypeByName("tensorflow.DataType")


class _ElementType(NamedTuple):
    """A type of elements: its name elsewhere, the list of its elements, and what the list has."""

    datatype: str
    field: str
    listed: np.dtype[Any]


_ELEMENT_TYPES: Mapping[int, _ElementType] = {
    _DATA_TYPES.values_by_name[name].number: _ElementType(datatype, field, np.dtype(listed))
    for name, datatype, field, listed in (
        ("DT_BOOL", "BOOL", "bool_val", "?"),
        ("DT_INT8", "INT8", "int_val", "<i4"),
        ("DT_INT16", "INT16", "int_val", "<i4"),
        ("DT_INT32", "INT32", "int_val", "<i4"),
        ("DT_INT64", "INT64", "int64_val", "<i8"),
        ("DT_UINT8", "UINT8", "int_val", "<i4"),
        ("DT_UINT16", "UINT16", "int_val", "<i4"),
        ("DT_UINT32", "UINT32", "uint32_val", "<u4"),
        ("DT_UINT64", "UINT64", "uint64_val", "<u8"),
        ("DT_HALF", "FP16", "half_val", "<i4"),
        ("DT_BFLOAT16", BF16, "half_val", "<i4"),
        ("DT_FLOAT", "FP32", "float_val", "<f4"),
        ("DT_DOUBLE", "FP64", "double_val", "<f8"),
        ("DT_COMPLEX64", "COMPLEX64", "scomplex_val", "<f4"),
        ("DT_COMPLEX128", "COMPLEX128", "dcomplex_val", "<f8"),
        ("DT_STRING", BYTES, "string_val", "O"),
    )
}
TYPE_NUMBERS: Mapping[str, int] = {kind.datatype: number for number, kind in _ELEMENT_TYPES.items()}
# Lists that are the same bytes as an array, on machines whose numbers begin with the lowest byte.
_AS_IN_MEMORY = frozenset({"bool_val", "float_val", "double_val", "scomplex_val", "dcomplex_val"})


# ---- reading


def decode_tensors(
    tensors: Mapping[str, Any], contents: Mapping[str, TensorContent]
) -> dict[str, NDArray[Any]]:
    """Tensors by name as arrays; texts as objects of bytes. `contents` are those that were left in the body.

    Raises InvalidInputs that names the tensor. Allocates at most `MAX_FILLED_BYTES` beyond the message.
    """
    arrays: dict[str, NDArray[Any]] = {}
    bytes_left = MAX_FILLED_BYTES
    for name, tensor in tensors.items():
        try:
            shape = _read_shape(tensor.tensor_shape)
            elements = _read_elements(tensor, contents.get(name), shape)
            missing = math.prod(shape) - len(elements)
            if missing:
                bytes_left -= missing * elements.itemsize
                elements = _repeat_last(elements, shape, bytes_left)
            arrays[name] = elements.reshape(shape)
        except ValueError as error:
            raise InvalidInputs(f"Input {name}: {error}") from error
    return arrays


def _read_elements(tensor: Any, extracted: TensorContent | None, shape: Shape) -> NDArray[Any]:
    """The elements that a tensor has: all that its shape takes, or those of a list. Raises ValueError."""
    kind = _ELEMENT_TYPES.get(tensor.dtype)
    if kind is None:
        known = ", ".join(map(_data_type_name, _ELEMENT_TYPES))
        raise ValueError(f"its dtype is {_data_type_name(tensor.dtype)}; it can be one of {known}.")
    if extracted is None:
        content = tensor.tensor_content
        return (
            _unpack_content(kind, content, shape)
            if content
            else _read_list(kind, getattr(tensor, kind.field))
        )
    if extracted.field == _CONTENT:
        return _unpack_content(kind, extracted.data, shape)
    if extracted.field != kind.field:
        raise ValueError(
            f"its elements are in {extracted.field}; those of {_element_type_name(kind)} go into "
            f"{kind.field}."
        )
    if len(extracted.data) % kind.listed.itemsize:
        raise ValueError(
            f"{kind.field} has {len(extracted.data)} bytes; every number in it takes {kind.listed.itemsize}."
        )
    return _convert_list(kind, np.frombuffer(extracted.data, kind.listed))


def _unpack_content(kind: _ElementType, content: bytes | memoryview, shape: Shape) -> NDArray[Any]:
    """The elements in `tensor_content`: numbers lie there as in memory, the lowest byte first."""
    count = math.prod(shape)
    if kind.datatype == BYTES:
        return _make_text_array(_split_texts(content, count))
    dtype = dtype_of(kind.datatype)
    size = 2 if dtype is None else dtype.itemsize
    if len(content) != count * size:
        raise ValueError(
            f"tensor_content has {len(content)} bytes; {count} elements of {_element_type_name(kind)}, which "
            f"its shape {list(shape)} takes, have {count * size}."
        )
    if dtype is None:
        return _widen_bfloat16(np.frombuffer(content, "<u2"))
    if dtype.kind == "b":  # of which numpy takes 0 and 1 only
        flags: NDArray[Any] = np.frombuffer(content, np.uint8) != 0
        return flags
    return np.frombuffer(content, dtype)


def _read_list(kind: _ElementType, values: Any) -> NDArray[Any]:
    """The elements in the list of a type."""
    if kind.datatype == BYTES:
        return _make_text_array(values)
    return _convert_list(kind, np.fromiter(values, kind.listed, len(values)))


def _convert_list(kind: _ElementType, listed: NDArray[Any]) -> NDArray[Any]:
    """Elements of a list in the type that they stand for."""
    if kind.field == "half_val":  # their bits
        bits = _narrow_numbers(listed, np.dtype(np.uint16))
        dtype = dtype_of(kind.datatype)
        return _widen_bfloat16(bits) if dtype is None else bits.view(dtype)
    if kind.datatype.startswith("COMPLEX") and len(listed) % 2:
        raise ValueError(f"{kind.field} has {len(listed)} numbers; a complex one takes two.")
    dtype = np.dtype(dtype_of(kind.datatype))
    return listed.view(dtype) if dtype.kind == "c" else _narrow_numbers(listed, dtype)


def _narrow_numbers(listed: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Numbers in a type that must have them all."""
    narrow = listed.astype(dtype, copy=False)
    if dtype.itemsize < listed.itemsize and not np.array_equal(narrow, listed):
        wrong = listed[np.flatnonzero(narrow != listed)[0]]
        raise ValueError(f"{wrong} is no number of {dtype.itemsize * 8} bits ({dtype.name}).")
    return narrow


def _widen_bfloat16(bits: NDArray[Any]) -> NDArray[Any]:
    """bfloat16 numbers, whose bits are the upper halves of float32 ones, where numpy has none of them."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _make_text_array(values: Iterable[bytes]) -> NDArray[Any]:
    texts = list(values)
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


def _split_texts(content: bytes | memoryview, count: int) -> list[bytes]:
    """The concatenated texts, which follow the lengths of all. Raises ValueError."""
    if count > _MAX_TEXTS:
        raise ValueError(f"tensor_content can have {_MAX_TEXTS} texts; send more of them in string_val.")
    lengths: list[int] = []
    at = 0
    try:
        for _ in range(count):
            length, at = read_varint(content, at, len(content))
            lengths.append(length)
    except MalformedProtobuf as error:
        raise ValueError(f"tensor_content has not the lengths of {count} texts.") from error
    if at + sum(lengths) != len(content):
        raise ValueError(
            f"tensor_content has {len(content) - at} bytes for texts that have {sum(lengths)} together."
        )
    texts = []
    for length in lengths:
        texts.append(bytes(content[at : at + length]))
        at += length
    return texts


def _read_shape(shape: Any) -> Shape:
    """The sizes of a tensor. Raises ValueError."""
    sizes = tuple(dimension.size for dimension in shape.dim)
    if shape.unknown_rank or min(sizes, default=0) < 0:
        raise ValueError("its shape is not known; a tensor that is sent has a size in every dimension.")
    if len(sizes) > _MAX_DIMENSIONS:
        raise ValueError(f"it has {len(sizes)} dimensions; at most {_MAX_DIMENSIONS} are possible.")
    return sizes


def _repeat_last(elements: NDArray[Any], shape: Shape, bytes_left: int) -> NDArray[Any]:
    """Elements with the last one repeated until a shape is full. Raises ValueError."""
    have, count = len(elements), math.prod(shape)
    if have > count:
        raise ValueError(f"it has {have} elements; its shape {list(shape)} takes {count}.")
    if bytes_left < 0:
        raise ValueError(
            f"it has {have} of the {count} elements of its shape {list(shape)}. What a request leaves out "
            f"may have {MAX_FILLED_BYTES >> 20} MiB: send all elements."
        )
    filled = (
        np.zeros(count, elements.dtype)
        if have or elements.dtype.kind != "O"
        else _make_text_array([b""] * count)
    )
    if have:
        filled[:have] = elements
        filled[have:] = elements[-1:]
    return filled


def _element_type_name(kind: _ElementType) -> str:
    return _data_type_name(TYPE_NUMBERS[kind.datatype])


def _data_type_name(number: int) -> str:
    found = _DATA_TYPES.values_by_number.get(number)
    return f"{number}, an unknown type" if found is None else str(found.name)


# ---- writing


def encode_tensors(arrays: Mapping[str, NDArray[Any]], number: int) -> list[bytes | memoryview]:
    """The bytes of a map of tensors, in pieces: the field of this number in a message.

    Raises InvalidOutputs for a type that no tensor has.
    """
    pieces: list[bytes | memoryview] = []
    for name, array in arrays.items():
        tensor = _encode_tensor(name, array)
        key = name.encode()
        size = sum(map(len, tensor))
        entry = encode_field_prefix(1, len(key)) + key + encode_field_prefix(2, size)
        pieces += (encode_field_prefix(number, len(entry) + size) + entry, *tensor)
    return pieces


def _encode_tensor(name: str, array: NDArray[Any]) -> tuple[bytes | memoryview, ...]:
    """The bytes of a tensor: its type and shape, and its elements."""
    number = TYPE_NUMBERS.get(datatype_of(array.dtype))
    if number is None:
        raise InvalidOutputs(f"Output {name} is of the type {array.dtype}, which no TensorProto has.")
    kind, head = _ELEMENT_TYPES[number], _encode_header(number, array.shape)
    flat = array.reshape(-1)
    if not len(flat):
        return (head,)
    if kind.datatype != BYTES:
        flat = np.ascontiguousarray(flat, dtype_of(kind.datatype))
    if kind.field in _AS_IN_MEMORY:
        content = flat.view(np.uint8).data
        return head + encode_field_prefix(_FIELDS[kind.field].number, len(content)), content
    if kind.field == "half_val":
        flat = flat.view(np.uint16)
    return head, _TENSOR(**{kind.field: flat.tolist()}).SerializeToString()


@lru_cache(maxsize=256)
def _encode_header(number: int, shape: Shape) -> bytes:
    tensor = _TENSOR(dtype=number)
    tensor.tensor_shape.SetInParent()
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    head: bytes = tensor.SerializeToString()
    return head
