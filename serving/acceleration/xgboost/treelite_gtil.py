"""treelite's interpreter of tree models, called directly through the C interface, with prepared arguments.

`treelite.gtil.predict` prepares each of its calls anew, which takes three times as long as the trees of one
row. Here the same two functions of treelite's C interface are called with what was prepared once. If that
does not answer as the public function does, the public function is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import treelite
from numpy.typing import NDArray
from treelite.gtil import gtil
from treelite.libpath import find_lib_path

GtilPredict = Callable[[NDArray[Any]], NDArray[Any]]


def make_gtil_predict(model: Any, *, margin: bool = False) -> GtilPredict:
    """What answers (N, width) rows of numbers with an array (N, ...), on the caller's thread.

    The rows are cast to the type of the model's thresholds. `margin`: the sums, without what turns them into
    probabilities. One thread at a time may call it.
    """

    def predict_by_public_api(rows: NDArray[Any]) -> NDArray[Any]:
        answer: NDArray[Any] = treelite.gtil.predict(model, rows, nthread=1, pred_margin=margin)
        return answer

    try:
        prepared = _Prepared(model, "raw" if margin else "default", predict_by_public_api)
    except (OSError, AttributeError, TypeError, ValueError, IndexError):
        return predict_by_public_api
    return prepared if prepared.agrees_with(predict_by_public_api) else predict_by_public_api


class _Prepared:
    def __init__(self, model: Any, kind: str, public: GtilPredict) -> None:
        self._model = model  # the handles live as long as these two
        self._config = gtil.GTILConfig(predict_type=kind, nthread=1)
        self._call = ctypes.CDLL(str(find_lib_path()[0])).TreeliteGTILPredict
        self._handles = (model.handle, self._config.handle)
        self._name = model.input_type.encode()
        self._type = np.dtype(model.input_type)
        self._example = np.zeros((2, model.num_feature), self._type)
        answer = public(self._example)
        self._row_shape, self._answer_type = answer.shape[1:], answer.dtype

    def agrees_with(self, public: GtilPredict) -> bool:
        ours, theirs = self(self._example), public(self._example)
        return ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()

    def __call__(self, rows: NDArray[Any]) -> NDArray[Any]:
        model, config = self._handles
        numbers = np.array(rows, self._type, order="C")
        answer = np.zeros((len(rows), *self._row_shape), self._answer_type)
        failed = self._call(
            model,
            _pointer_to(numbers),
            self._name,
            ctypes.c_uint64(len(rows)),
            _pointer_to(answer),
            config,
        )
        if failed:
            raise RuntimeError("treelite could not predict.")
        return answer


def _pointer_to(array: Any) -> Any:
    return ctypes.byref(ctypes.c_char.from_buffer(array))
