"""scikit-learn's linear models without its checks of the input: the same arithmetic, the same bits.

For one row, the checks take fifty times as long as the product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.runtimes.acceleration import Predict, Unsuitable

# Where the predictions of linear models come from; whose class does not stand on one of these is none.
_BASE = "sklearn.linear_model._base"
_GRADIENT = "sklearn.linear_model._stochastic_gradient"


def is_linear(estimator: Any) -> bool:
    """Whether it may be a linear model of the library. Nothing is imported to find out."""
    return hasattr(estimator, "coef_") and any(
        base.__module__ in (_BASE, _GRADIENT) for base in type(estimator).__mro__
    )


def product(estimator: Any) -> Predict:
    """What gives the answers of a linear model for finite rows of its width. Raises Unsuitable."""
    from sklearn.linear_model._base import LinearClassifierMixin, LinearModel  # noqa: PLC0415  it has brought it

    coefficients = estimator.coef_
    if not isinstance(coefficients, np.ndarray):
        raise Unsuitable("its coefficients are sparse")
    if isinstance(estimator, LinearClassifierMixin):
        if _inherits(estimator, LinearClassifierMixin, ("predict", "decision_function")):
            return _labels(coefficients, estimator.intercept_, estimator.classes_)
    # These say again what they inherit, each in its own words.
    elif _is_the_librarys(estimator, ("predict", "_decision_function")):
        if isinstance(estimator, LinearModel):
            return _numbers(coefficients, estimator.intercept_)
        return _raveled(coefficients, estimator.intercept_)
    # A subclass may predict in another way; then it is not ours to know.
    raise Unsuitable(f"{type(estimator).__name__} predicts in a way of its own")


def _labels(coefficients: NDArray[Any], intercept: Any, classes: NDArray[Any]) -> Predict:
    if coefficients.ndim != 2:
        raise Unsuitable("its coefficients are not one row per class")
    transposed = coefficients.T

    def two(rows: NDArray[Any]) -> NDArray[Any]:
        labels: NDArray[Any] = classes.take((rows @ transposed + intercept)[:, 0] > 0)
        return labels

    def many(rows: NDArray[Any]) -> NDArray[Any]:
        labels: NDArray[Any] = classes.take((rows @ transposed + intercept).argmax(axis=1))
        return labels

    return two if transposed.shape[1] == 1 else many


def _numbers(coefficients: NDArray[Any], intercept: Any) -> Predict:
    transposed = coefficients.T  # of one target it is a vector, and stays as it is

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        numbers: NDArray[Any] = rows @ transposed + intercept
        return numbers

    return predict


def _raveled(coefficients: NDArray[Any], intercept: Any) -> Predict:
    numbers = _numbers(coefficients, intercept)

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = np.asarray(numbers(rows)).ravel()
        return found

    return predict


def _inherits(estimator: Any, base: type, methods: tuple[str, ...]) -> bool:
    """Whether these methods are the base's own, on the class and on the object."""
    kind = type(estimator)
    return all(getattr(kind, name) is getattr(base, name) and name not in vars(estimator) for name in methods)


def _is_the_librarys(estimator: Any, methods: tuple[str, ...]) -> bool:
    """Whether these methods are there and of scikit-learn's own making, on the class and on the object."""
    found = [getattr(type(estimator), name, None) for name in methods]
    return all(str(getattr(one, "__module__", "")).startswith("sklearn.") for one in found) and not any(
        name in vars(estimator) for name in methods
    )
