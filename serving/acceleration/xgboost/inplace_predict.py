"""XGBoost's in-place prediction, called directly through the C interface, with prepared arguments.

`Booster.inplace_predict` looks over what kind of data it was given, and has XGBoost make an empty matrix for
each call, which reads the limits of the control group from files. Here the function of the C interface that
it calls gets one matrix for all calls, and what was prepared once. If that does not answer as the public
method does, the public method is used.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray
from xgboost.libpath import find_lib_path

InplacePredict = Callable[[NDArray[Any]], NDArray[np.float32]]


def make_inplace_predict(booster: Any, rounds: tuple[int, int], missing: float, width: int) -> InplacePredict:
    """What answers (N, width) int64 or float64 rows of C order with the float32 answers of the booster.

    `rounds` is XGBoost's iteration_range, and `missing` the number besides NaN that stands for no value. One
    thread at a time may call it.
    """

    def predict_by_public_api(rows: NDArray[Any]) -> NDArray[np.float32]:
        answer: NDArray[np.float32] = booster.inplace_predict(
            rows, iteration_range=rounds, missing=missing, validate_features=False
        )
        return answer

    example = np.zeros((2, width))
    try:
        prepared = _Prepared(booster, rounds, missing, width)
        ours, theirs = prepared(example), predict_by_public_api(example)
    except (OSError, AttributeError, TypeError, IndexError):
        return predict_by_public_api
    agree = ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
    return prepared if agree else predict_by_public_api


class _Prepared:
    def __init__(self, booster: Any, rounds: tuple[int, int], missing: float, width: int) -> None:
        library = ctypes.CDLL(find_lib_path()[0])
        self._booster = booster  # its handle lives as long as it does
        self._call = library.XGBoosterPredictFromDense
        self._call_config = json.dumps(
            {
                "type": 0,
                "training": False,
                "iteration_begin": rounds[0],
                "iteration_end": rounds[1],
                "missing": missing,
                "strict_shape": False,
                "cache_id": 0,
            }
        ).encode()
        self._layout = (
            f'{{"data":[%d,true],"shape":[%d,{width}],"typestr":"%s","version":3,"strides":null}}'.encode()
        )
        self._shape = ctypes.POINTER(ctypes.c_uint64)()
        self._dimensions = ctypes.c_uint64()
        self._values = ctypes.POINTER(ctypes.c_float)()
        self._matrix = ctypes.c_void_p()
        if library.XGProxyDMatrixCreate(ctypes.byref(self._matrix)):
            raise OSError("XGBoost could not make a matrix.")
        self._free = library.XGDMatrixFree
        self._answer = (
            ctypes.byref(self._shape),
            ctypes.byref(self._dimensions),
            ctypes.byref(self._values),
        )

    def __del__(self) -> None:
        if getattr(self, "_free", None):
            self._free(self._matrix)

    def __call__(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        address = rows.__array_interface__["data"][0]
        layout = self._layout % (address, len(rows), rows.dtype.str.encode())
        if self._call(self._booster.handle, layout, self._call_config, self._matrix, *self._answer):
            raise xgb.core.XGBoostError("XGBoost could not predict in place.")
        shape = self._shape[: self._dimensions.value]
        size = 4
        for extent in shape:
            size *= extent
        # A copy: the library writes its next answer to the same place.
        return np.frombuffer(ctypes.string_at(self._values, size), np.float32).reshape(shape)
