"""The format of TensorFlow's event files: records of protobuf messages, of which scalars are read.

A record is the length of its data (8 bytes, little endian), a checksum of that (4 bytes), the data, a
checksum of the data (4 bytes). The data is an Event: its time, its step, and a Summary with values. A value
has its number either directly (TensorFlow 1) or as a tensor of the plugin `scalars` (TensorFlow 2).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_HEADER, _FOOTER_BYTES = struct.Struct("<QI"), 4
# Longer records, as of graphs and videos, are passed over.
_MAX_RECORD_BYTES = 16 << 20
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# A field of a message: a number, or for _BYTES where its content begins and ends.
Field = tuple[int, int, int, int]


class Scalar(NamedTuple):
    """`time` is in seconds since 1970."""

    tag: str
    step: int
    value: float
    time: float


class RecordReader:
    """Reads whole records from where a file stands; `consumed` is how many bytes they were."""

    def __init__(self, file: BinaryIO, size: int, budget: int) -> None:
        """`size` is how many bytes there are from here on, `budget` after how many it ends."""
        self._file = file
        self._size = size
        self._budget = budget
        self.consumed = 0

    def __iter__(self) -> Iterator[bytes]:
        """The data of records; ends before one that is not whole."""
        while self.consumed < self._budget:
            header = self._file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return
            length, _ = _HEADER.unpack(header)
            total = _HEADER.size + length + _FOOTER_BYTES
            if not length or self.consumed + total > self._size:
                return
            if length > _MAX_RECORD_BYTES:
                self._pass_over(length + _FOOTER_BYTES)
            else:
                data = self._file.read(length + _FOOTER_BYTES)
                if len(data) < length + _FOOTER_BYTES:
                    return
                yield data[:length]
            self.consumed += total

    def _pass_over(self, count: int) -> None:
        if self._file.seekable():
            self._file.seek(count, 1)
            return
        # Objects of a bucket cannot be sought in.
        while count > 0 and (data := self._file.read(min(count, _MAX_RECORD_BYTES))):
            count -= len(data)


def parse_scalars(data: bytes) -> list[Scalar]:
    """The scalars of an Event; none of one that is damaged."""
    try:
        return list(_iterate_scalars(data))
    except (IndexError, struct.error, ValueError):
        return []


def _iterate_scalars(data: bytes) -> Iterator[Scalar]:
    time, step, summaries = 0.0, 0, []
    for number, kind, start, end in _iterate_fields(data, 0, len(data)):
        if number == 1 and kind == _FIXED64:
            (time,) = struct.unpack_from("<d", data, start)
        elif number == 2 and kind == _VARINT:
            step = start
        elif number == 5 and kind == _BYTES:
            summaries.append((start, end))
    for summary in summaries:
        for number, kind, start, end in _iterate_fields(data, *summary):
            if number == 1 and kind == _BYTES and (found := _read_value(data, start, end)) is not None:
                yield Scalar(found[0], _to_signed(step), found[1], time)


def _read_value(data: bytes, start: int, end: int) -> tuple[str, float] | None:
    """The tag and the number of a value, None for one that is no scalar."""
    tag, simple, tensor, plugin = "", None, None, ""
    for number, kind, first, last in _iterate_fields(data, start, end):
        if number == 1 and kind == _BYTES:
            tag = data[first:last].decode(errors="replace")
        elif number == 2 and kind == _FIXED32:
            (simple,) = struct.unpack_from("<f", data, first)
        elif number == 8 and kind == _BYTES:
            tensor = first, last
        elif number == 9 and kind == _BYTES:
            plugin = _read_plugin(data, first, last)
    if simple is None and tensor is not None and plugin in ("", "scalars"):
        simple = _read_tensor(data, *tensor)
    return None if simple is None or not tag else (tag, simple)


def _read_plugin(data: bytes, start: int, end: int) -> str:
    """The name in SummaryMetadata.plugin_data."""
    for number, kind, first, last in _iterate_fields(data, start, end):
        if number == 1 and kind == _BYTES:
            for inner, inner_kind, begin, stop in _iterate_fields(data, first, last):
                if inner == 1 and inner_kind == _BYTES:
                    return data[begin:stop].decode(errors="replace")
    return ""


# How one number of a type of tensors is packed, by DataType.
_FORMATS = {1: "<f", 2: "<d", 3: "<i", 4: "<B", 5: "<h", 6: "<b", 9: "<q", 10: "<?", 17: "<H", 19: "<e",
            22: "<I", 23: "<Q"}  # fmt: skip
_BFLOAT16 = 14
# The fields that have numbers one by one: packed floats and doubles, and varints.
_FLOAT_FIELDS = {5: "<f", 6: "<d"}
_INTEGER_FIELDS = (7, 10, 11, 16, 17)
_HALF_FIELD = 13


def _read_tensor(data: bytes, start: int, end: int) -> float | None:
    """The number of a tensor that has one, None for others."""
    dtype, content, value = 0, b"", None
    for number, kind, first, last in _iterate_fields(data, start, end):
        if number == 1 and kind == _VARINT:
            dtype = first
        elif number == 4 and kind == _BYTES:
            content = data[first:last]
        elif number in _FLOAT_FIELDS:
            size = struct.calcsize(_FLOAT_FIELDS[number])
            if last - first == size:
                (value,) = struct.unpack_from(_FLOAT_FIELDS[number], data, first)
        elif number in _INTEGER_FIELDS or number == _HALF_FIELD:
            bits = first if kind == _VARINT else _read_varint(data, first)[0]
            value = _read_half(dtype, bits) if number == _HALF_FIELD else float(_to_signed(bits))
    return _unpack(dtype, content) if content else value


def _unpack(dtype: int, content: bytes) -> float | None:
    if dtype == _BFLOAT16 and len(content) == 2:
        return float(struct.unpack("<f", b"\0\0" + content)[0])
    packing = _FORMATS.get(dtype)
    if packing is None or struct.calcsize(packing) != len(content):
        return None
    return float(struct.unpack(packing, content)[0])


def _read_half(dtype: int, bits: int) -> float | None:
    return _unpack(dtype, struct.pack("<H", bits & 0xFFFF))


def _iterate_fields(data: bytes, position: int, end: int) -> Iterator[Field]:
    """Number, kind, and either the value itself or the bounds of the content."""
    while position < end:
        key, position = _read_varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _read_varint(data, position)
            yield number, kind, value, position
            continue
        if kind == _BYTES:
            size, position = _read_varint(data, position)
        elif kind == _FIXED64:
            size = 8
        elif kind == _FIXED32:
            size = 4
        else:
            raise ValueError(f"wire type {kind}")
        if position + size > end:
            raise ValueError("a field is longer than its message")
        yield number, kind, position, position + size
        position += size


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number and the position behind it; raises IndexError."""
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift > 63:
            raise ValueError("a varint has more than ten bytes")


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
