"""Candidates for scikit-learn's linear models: the same arithmetic and the same bits, without input checks.

For one row, the checks take fifty times as long as the product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.acceleration.candidates import Predict, UnsuitableCandidate

# Every linear model has a base class in one of these modules.
_LINEAR_MODULE = "sklearn.linear_model._base"
_SGD_MODULE = "sklearn.linear_model._stochastic_gradient"


def is_linear(estimator: Any) -> bool:
    """Whether it may be a linear model of the library. Imports nothing."""
    return hasattr(estimator, "coef_") and any(
        base.__module__ in (_LINEAR_MODULE, _SGD_MODULE) for base in type(estimator).__mro__
    )


def make_linear_predict(estimator: Any) -> Predict:
    """Makes a function that predicts finite rows of the model's width. Raises UnsuitableCandidate."""
    # Loading the estimator has imported it.
    from sklearn.linear_model._base import LinearClassifierMixin, LinearModel  # noqa: PLC0415

    coefficients = estimator.coef_
    if not isinstance(coefficients, np.ndarray):
        raise UnsuitableCandidate("its coefficients are sparse")
    if isinstance(estimator, LinearClassifierMixin):
        if _inherits_methods(estimator, LinearClassifierMixin, ("predict", "decision_function")):
            return _make_classifier(coefficients, estimator.intercept_, estimator.classes_)
    # Regressors override what they inherit, each in its own words.
    elif _has_library_methods(estimator, ("predict", "_decision_function")):
        if isinstance(estimator, LinearModel):
            return _make_regressor(coefficients, estimator.intercept_)
        return _make_raveled_regressor(coefficients, estimator.intercept_)
    raise UnsuitableCandidate(f"{type(estimator).__name__} overrides predict")


def _make_classifier(coefficients: NDArray[Any], intercept: Any, classes: NDArray[Any]) -> Predict:
    if coefficients.ndim != 2:
        raise UnsuitableCandidate("its coefficients are not one row per class")
    transposed = coefficients.T

    def predict_binary(rows: NDArray[Any]) -> NDArray[Any]:
        labels: NDArray[Any] = classes.take((rows @ transposed + intercept)[:, 0] > 0)
        return labels

    def predict_multiclass(rows: NDArray[Any]) -> NDArray[Any]:
        labels: NDArray[Any] = classes.take((rows @ transposed + intercept).argmax(axis=1))
        return labels

    return predict_binary if transposed.shape[1] == 1 else predict_multiclass


def _make_regressor(coefficients: NDArray[Any], intercept: Any) -> Predict:
    transposed = coefficients.T  # with one target it is a vector, which stays as it is

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        numbers: NDArray[Any] = rows @ transposed + intercept
        return numbers

    return predict


def _make_raveled_regressor(coefficients: NDArray[Any], intercept: Any) -> Predict:
    numbers = _make_regressor(coefficients, intercept)

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = np.asarray(numbers(rows)).ravel()
        return found

    return predict


def _inherits_methods(estimator: Any, base: type, methods: tuple[str, ...]) -> bool:
    """Whether these methods are the base's own, on the class and on the object."""
    kind = type(estimator)
    return all(getattr(kind, name) is getattr(base, name) and name not in vars(estimator) for name in methods)


def _has_library_methods(estimator: Any, methods: tuple[str, ...]) -> bool:
    """Whether these methods exist and are scikit-learn's own, on the class and on the object."""
    found = [getattr(type(estimator), name, None) for name in methods]
    return all(str(getattr(one, "__module__", "")).startswith("sklearn.") for one in found) and not any(
        name in vars(estimator) for name in methods
    )
