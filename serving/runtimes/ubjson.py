"""Writes UBJSON as XGBoost reads it: lengths are int64, and arrays of numpy are arrays of one type."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

# XGBoost reads no other types in arrays of one type.
_ARRAY_TYPES = {np.dtype(np.float32): b"d", np.dtype(np.int32): b"l", np.dtype(np.uint8): b"U"}


def encode_ubjson(value: Any) -> bytes:
    """A document of dicts, lists, texts, integers, floats (as float32) and arrays of one dimension."""
    match value:
        case dict():
            members = (_encode_text(name) + encode_ubjson(member) for name, member in value.items())
            return b"{" + b"".join(members) + b"}"
        case list():
            return b"[" + b"".join(map(encode_ubjson, value)) + b"]"
        case str():
            return b"S" + _encode_text(value)
        case int():
            return b"L" + struct.pack(">q", value)
        case float():
            return b"d" + struct.pack(">f", value)
        case np.ndarray():
            swapped = value.astype(value.dtype.newbyteorder(">"))
            return b"[$" + _ARRAY_TYPES[value.dtype] + b"#" + encode_ubjson(value.size) + swapped.tobytes()
        case _:
            raise TypeError(f"UBJSON of XGBoost has no place for a {type(value).__name__}")


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return encode_ubjson(len(data)) + data
