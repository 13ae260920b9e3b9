"""Writes UBJSON as XGBoost reads it: lengths are int64, and arrays of numpy are arrays of one type."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

# XGBoost reads no other types in arrays of one type.
_ARRAYS = {np.dtype(np.float32): b"d", np.dtype(np.int32): b"l", np.dtype(np.uint8): b"U"}


def encode(value: Any) -> bytes:
    """A document of dicts, lists, texts, integers, floats (as float32) and arrays of one dimension."""
    match value:
        case dict():
            members = (_text(name) + encode(member) for name, member in value.items())
            return b"{" + b"".join(members) + b"}"
        case list():
            return b"[" + b"".join(map(encode, value)) + b"]"
        case str():
            return b"S" + _text(value)
        case int():
            return b"L" + struct.pack(">q", value)
        case float():
            return b"d" + struct.pack(">f", value)
        case np.ndarray():
            swapped = value.astype(value.dtype.newbyteorder(">"))
            return b"[$" + _ARRAYS[value.dtype] + b"#" + encode(value.size) + swapped.tobytes()
        case _:
            raise TypeError(f"UBJSON of XGBoost has no place for a {type(value).__name__}")


def _text(text: str) -> bytes:
    data = text.encode()
    return encode(len(data)) + data
