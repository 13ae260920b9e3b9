from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import (
    BayesianRidge,
    ElasticNet,
    HuberRegressor,
    LassoLars,
    LinearRegression,
    LogisticRegression,
    Perceptron,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.svm import LinearSVC, LinearSVR

from serving.acceleration.candidates import UnsuitableCandidate
from serving.acceleration.sklearn.linear_models import is_linear, make_linear_predict
from tests.serving.acceleration.rows import assert_same_bits, rows_like

ROWS = np.random.default_rng(0).normal(size=(120, 5))
NUMBERS = ROWS @ [1.0, -2.0, 0.5, 0.0, 3.0] + np.random.default_rng(1).normal(size=120)
TARGETS: dict[str, NDArray[Any]] = {
    "two": NUMBERS > 0,
    "three": np.digitize(NUMBERS, [-2, 2]),
    "words": np.array(["low", "mid", "high"])[np.digitize(NUMBERS, [-2, 2])],
}
CLASSIFIERS = [LogisticRegression(), Perceptron(), SGDClassifier(random_state=0), LinearSVC()]
REGRESSORS = [
    LinearRegression(),
    Ridge(fit_intercept=False),
    ElasticNet(alpha=0.1),
    LassoLars(alpha=0.1),
    BayesianRidge(),
    HuberRegressor(),
    LinearSVR(random_state=0),
    SGDRegressor(random_state=0),
]


def some_rows() -> list[NDArray[Any]]:
    """Of several counts, and of integers."""
    floats = [np.random.default_rng(count).normal(scale=10, size=(count, 5)) for count in (1, 2, 3, 17, 300)]
    return [*floats, np.arange(20).reshape(4, 5) - 7]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda one: type(one).__name__)
def test_labels_are_those_of_the_library(estimator: Any, target: str) -> None:
    """Every linear classifier, to the bit and in dtype, for any number of rows."""
    predict = make_linear_predict(estimator.fit(ROWS, TARGETS[target]))

    for rows in some_rows():
        assert_same_bits(predict(rows), estimator.predict(rows))


@pytest.mark.parametrize("estimator", REGRESSORS, ids=lambda one: type(one).__name__)
def test_numbers_are_those_of_the_library(estimator: Any) -> None:
    """Every linear regressor, to the bit."""
    predict = make_linear_predict(estimator.fit(ROWS, NUMBERS))

    for rows in some_rows():
        assert_same_bits(predict(rows), estimator.predict(rows))


def test_several_targets_keep_their_shape() -> None:
    """One column per target, of one target too."""
    for targets in (np.c_[NUMBERS, -NUMBERS], NUMBERS[:, None]):
        estimator = LinearRegression().fit(ROWS, targets)
        for rows in some_rows():
            assert_same_bits(make_linear_predict(estimator)(rows), estimator.predict(rows))


@settings(max_examples=40)
@given(st.data())
def test_any_model_and_any_rows(data: st.DataObject) -> None:
    """Coefficients and rows of any size, and ties among them."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    classes, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 7))
    estimator = LogisticRegression()
    estimator.n_features_in_ = width
    estimator.classes_ = np.arange(max(classes, 2))
    estimator.coef_ = random.normal(size=(classes, width)).round(data.draw(st.integers(0, 3)))
    estimator.intercept_ = random.normal(size=classes).round()
    rows = data.draw(rows_like(random.normal(size=(30, width)).round(1)))

    assert_same_bits(make_linear_predict(estimator)(rows), estimator.predict(rows))


class Cautious(LogisticRegression):  # type: ignore[misc]
    """Predicts in its own way."""

    def predict(self, X: Any) -> Any:  # noqa: N803
        return np.zeros(len(X))


def test_what_predicts_in_its_own_way_is_refused() -> None:
    """A subclass with another predict, an object with one, and what is linear in name only."""
    replaced = LogisticRegression().fit(ROWS, TARGETS["two"])
    replaced.predict = lambda rows: np.zeros(len(rows))
    sparse = LogisticRegression().fit(ROWS, TARGETS["two"]).sparsify()

    for estimator in (Cautious().fit(ROWS, TARGETS["two"]), replaced, sparse):
        assert is_linear(estimator)
        with pytest.raises(UnsuitableCandidate):
            make_linear_predict(estimator)


@pytest.mark.parametrize(
    "estimator", [RidgeClassifier(), LinearDiscriminantAnalysis()], ids=lambda one: type(one).__name__
)
def test_linear_models_of_another_making_are_left_to_the_library(estimator: Any) -> None:
    """Their labels come about differently: either they are not known, or they are refused, or equal."""
    estimator.fit(ROWS, TARGETS["two"])
    try:
        predict = make_linear_predict(estimator)
    except UnsuitableCandidate:
        return
    for rows in some_rows():
        assert_same_bits(predict(rows), estimator.predict(rows))
