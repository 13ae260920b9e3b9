"""The types of tensors: their names in the Open Inference Protocol, and numpy's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

DType = np.dtype[Any]

BYTES = "BYTES"  # texts too; arrays of objects, each of them bytes
BF16 = "BF16"

# BF16 is numpy's only with a package that comes with TensorFlow. The protocol has no word for complex
# numbers; that is what they are called in schemas.
_NUMPY_DTYPES: Mapping[str, DType] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    BYTES: np.dtype(object),
    "COMPLEX64": np.dtype(np.complex64),
    "COMPLEX128": np.dtype(np.complex128),
}
_DATATYPE_NAMES = {dtype: name for name, dtype in _NUMPY_DTYPES.items()}

DATATYPES = (*(name for name in _NUMPY_DTYPES if not name.startswith("COMPLEX")), BF16)


def dtype_of(datatype: str) -> DType | None:
    """The dtype of a type's name; None if there is no such type, or numpy cannot have it here."""
    if datatype == BF16:
        try:
            import ml_dtypes  # noqa: PLC0415  where TensorFlow is
        except ImportError:
            return None
        bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return _NUMPY_DTYPES.get(datatype)


@lru_cache(maxsize=64)
def datatype_of(dtype: DType) -> str:
    """The name of a dtype; that of numpy in capitals if the protocol has none."""
    if dtype.kind in "OSU":
        return BYTES
    if dtype.name == "bfloat16":
        return BF16
    return _DATATYPE_NAMES.get(dtype.newbyteorder("="), dtype.name.upper())
