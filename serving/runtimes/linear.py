"""scikit-learn's linear classifiers without its checks of the input: the same arithmetic, the same bits.

For one row, the checks take a hundred times as long as the product. The decoder has made them already:
a dense array of numbers in the model's width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model._base import LinearClassifierMixin

Product = Callable[[NDArray[Any]], NDArray[Any]]


def product(estimator: Any, samples: Iterable[NDArray[Any]]) -> Product | None:
    """What gives the labels of a linear classifier for finite rows of its width; None for other models.

    It is taken only if it answers as the estimator does for every one of the `samples`, to the bit.
    """
    candidate = _candidate(estimator)
    if candidate is None or not all(_same(candidate(rows), estimator.predict(rows)) for rows in samples):
        return None
    return candidate


def _candidate(estimator: Any) -> Product | None:
    coefficients = getattr(estimator, "coef_", None)
    # A subclass may predict in another way; then it is not ours to know.
    if (
        not isinstance(coefficients, np.ndarray)
        or coefficients.ndim != 2
        or not _inherits(type(estimator), "predict")
        or not _inherits(type(estimator), "decision_function")
    ):
        return None
    transposed, intercept, classes = coefficients.T, estimator.intercept_, estimator.classes_

    def two(rows: NDArray[Any]) -> NDArray[Any]:
        labels: NDArray[Any] = classes.take((rows @ transposed + intercept)[:, 0] > 0)
        return labels

    def many(rows: NDArray[Any]) -> NDArray[Any]:
        labels: NDArray[Any] = classes.take((rows @ transposed + intercept).argmax(axis=1))
        return labels

    return two if transposed.shape[1] == 1 else many


def _inherits(kind: type, method: str) -> bool:
    return getattr(kind, method, None) is getattr(LinearClassifierMixin, method)


def _same(ours: Any, theirs: Any) -> bool:
    return (
        isinstance(theirs, np.ndarray)
        and ours.dtype == theirs.dtype
        and ours.shape == theirs.shape
        and ours.tolist() == theirs.tolist()
    )
