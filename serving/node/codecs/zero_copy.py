"""Extracts long tensors from TensorFlow's messages without a copy; protobuf would copy them twice.

Protobuf parses the rest of the message. Tensors in an unusual encoding stay in the message.
"""

from __future__ import annotations

from typing import NamedTuple

from serving.protocols.protobuf_fields import (
    BYTES,
    MalformedProtobuf,
    ProtobufField,
    encode_field_prefix,
    iter_fields,
)

# Contents from this many bytes on are extracted.
MIN_CONTENT_BYTES = 4096
# `tensor_content` and the packed lists whose elements are as they are in memory: TensorProto's fields.
CONTENT_FIELDS = {4: "tensor_content", 5: "float_val", 6: "double_val", 9: "scomplex_val", 12: "dcomplex_val"}

_KEY, _VALUE = 1, 2
# Limit of the fields that are parsed in Python.
_MAX_FIELDS = 1024
# Type, shape, version and contents: a tensor with more fields has an unpacked list, or several lists.
_MAX_TENSOR_FIELDS = 4


class TensorContent(NamedTuple):
    """The contents of a tensor, and the field they were in."""

    field: str
    data: memoryview


def extract_contents(
    body: bytes | bytearray, number: int
) -> tuple[bytes | bytearray, dict[str, TensorContent]]:
    """A message without the long contents of the tensors in its map of this number, and these by key.

    The contents lie in `body` itself.
    """
    if len(body) < MIN_CONTENT_BYTES:
        return body, {}
    view = memoryview(body)
    rest: list[bytes | memoryview] = []
    contents: dict[str, TensorContent] = {}
    keys: list[str] = []
    try:
        for count, field in enumerate(iter_fields(body)):
            if count == _MAX_FIELDS:
                return body, {}
            part: bytes | memoryview = view[field.tag_start : field.end]
            if field.number == number:
                key, tensor = _parse_entry(body, field)
                keys.append(key)
                content = _find_content(body, tensor)
                if content is not None:
                    contents[key] = TensorContent(
                        CONTENT_FIELDS[content.number], view[content.start : content.end]
                    )
                    part = _remove_content(body, number, key, tensor, content)
            rest.append(part)
    except (MalformedProtobuf, UnicodeDecodeError):
        return body, {}
    if not contents or len(set(keys)) < len(
        keys
    ):  # of entries with one key the last counts, maybe a short one
        return body, {}
    return b"".join(rest), contents


def _parse_entry(body: bytes | bytearray, entry: ProtobufField) -> tuple[str, ProtobufField]:
    """The key and the value field of an entry. Raises MalformedProtobuf if it has other fields."""
    found = iter_fields(body, entry.start, entry.end)
    key, value = next(found, None), next(found, None)
    if key is None or value is None or next(found, None) is not None:
        raise MalformedProtobuf("an entry is not a key and a value")
    if (key.number, value.number) != (_KEY, _VALUE) or {entry.wire_type, key.wire_type, value.wire_type} != {
        BYTES
    }:
        raise MalformedProtobuf("an entry has other fields than a key and a value")
    return body[key.start : key.end].decode(), value


def _find_content(body: bytes | bytearray, tensor: ProtobufField) -> ProtobufField | None:
    """Where the contents of a tensor are, if they are long and in one field."""
    if tensor.end - tensor.start < MIN_CONTENT_BYTES:
        return None
    found = None
    for count, field in enumerate(iter_fields(body, tensor.start, tensor.end), 1):
        if count > _MAX_TENSOR_FIELDS:
            return None
        if field.number in CONTENT_FIELDS:
            if found is not None or field.wire_type != BYTES or field.end - field.start < MIN_CONTENT_BYTES:
                return None
            found = field
    return found


def _remove_content(
    body: bytes | bytearray, number: int, key: str, tensor: ProtobufField, content: ProtobufField
) -> bytes:
    """The entry of a tensor without its contents."""
    slim = bytes(body[tensor.start : content.tag_start] + body[content.end : tensor.end])
    name = key.encode()
    entry = encode_field_prefix(_KEY, len(name)) + name + encode_field_prefix(_VALUE, len(slim)) + slim
    return encode_field_prefix(number, len(entry)) + entry
