"""Writes event files byte by byte, as TensorFlow would."""

from __future__ import annotations

import struct


def write_varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def write_field(number: int, content: bytes) -> bytes:
    return write_varint(number << 3 | 2) + write_varint(len(content)) + content


def write_event(tag: str, value: float, step: int = 0, time: float = 0.0) -> bytes:
    """The record of one scalar, as TensorFlow 1 writes it. Readers do not look at checksums."""
    scalar = write_field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
    head = b"\x09" + struct.pack("<d", time) + b"\x10" + write_varint(step)
    return frame_record(head + write_field(5, write_field(1, scalar)))


def write_tensor_event(tag: str, tensor: bytes, plugin: str = "scalars", step: int = 0) -> bytes:
    """The record of a TensorProto, as TensorFlow 2 writes it."""
    metadata = write_field(1, write_field(1, plugin.encode())) if plugin else b""
    value = write_field(1, tag.encode()) + write_field(9, metadata) + write_field(8, tensor)
    return frame_record(b"\x10" + write_varint(step) + write_field(5, write_field(1, value)))


def frame_record(data: bytes) -> bytes:
    return struct.pack("<QI", len(data), 0) + data + bytes(4)
