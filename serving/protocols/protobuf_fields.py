"""Protobuf's wire format, one message at a time: finds fields without copying them.

For callers that need a few bytes of a long message, or its long bytes where they are.
Source: "Encoding" in the documentation of Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_FIXED = {FIXED64: 8, FIXED32: 4}
# The longest varint: 64 bits, 7 in each byte.
_MAX_VARINT_BYTES = 10
_MASK = (1 << 64) - 1


class MalformedProtobuf(ValueError):
    pass


class ProtobufField(NamedTuple):
    """A field: its number, its wire type, where it begins, and where its value begins and ends."""

    number: int
    wire_type: int
    tag_start: int
    start: int
    end: int


ByteBuffer = bytes | bytearray | memoryview


def iter_fields(data: ByteBuffer, start: int = 0, end: int | None = None) -> Iterator[ProtobufField]:
    """The fields of the message in `data`, in their order. Raises MalformedProtobuf."""
    stop = len(data) if end is None else end
    at = start
    while at < stop:
        begin, tag = at, data[at]
        if tag < 0x80:  # as nearly all are
            at += 1
        else:
            tag, at = read_varint(data, at, stop)
        kind = tag & 7
        if kind == BYTES:
            size, first = read_varint(data, at, stop)
            at = first + size
        elif kind == VARINT:
            first = at
            _, at = read_varint(data, at, stop)
        elif kind in _FIXED:
            first = at
            at += _FIXED[kind]
        else:
            raise MalformedProtobuf(f"field {tag >> 3} is of a kind that is not used, {kind}")
        if at > stop:
            raise MalformedProtobuf(f"field {tag >> 3} is cut short")
        yield ProtobufField(tag >> 3, kind, begin, first, at)


def read_varint(data: ByteBuffer, at: int, end: int) -> tuple[int, int]:
    """Return the unsigned 64-bit number that begins at `at`, and where it ends. Raises MalformedProtobuf."""
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    for place in range(at, min(end, at + _MAX_VARINT_BYTES)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, place + 1
        shift += 7
    raise MalformedProtobuf("a number is cut short")


def to_signed_int64(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def encode_varint(value: int) -> bytes:
    """`value` is not negative."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def encode_field_prefix(number: int, size: int) -> bytes:
    """Encode what stands in front of the `size` bytes of a field."""
    return encode_varint(number << 3 | BYTES) + encode_varint(size)
