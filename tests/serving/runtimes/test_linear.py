from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    Perceptron,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.svm import LinearSVC

from serving.errors import InvalidInputs
from serving.runtimes import Source
from serving.runtimes.linear import product
from serving.runtimes.sklearn import load

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(120, 5))
NUMBERS = ROWS @ [1.0, -2.0, 0.5, 0.0, 3.0] + RANDOM.normal(size=120)
TWO = NUMBERS > 0
THREE = np.digitize(NUMBERS, [-2, 2])
WORDS = np.array(["low", "mid", "high"])[THREE]

CLASSIFIERS = [
    LogisticRegression(),
    Perceptron(),
    SGDClassifier(random_state=0),
    LinearSVC(),
]


def some_rows() -> list[NDArray[Any]]:
    """Other rows than those it was chosen by: of several counts, also of integers."""
    floats = [np.random.default_rng(count).normal(scale=10, size=(count, 5)) for count in (1, 2, 3, 17, 300)]
    return [*floats, np.arange(20).reshape(4, 5) - 7]


@pytest.mark.parametrize("target", [TWO, THREE, WORDS], ids=["two", "three", "words"])
@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda one: type(one).__name__)
def test_labels_are_those_of_the_library(estimator: Any, target: NDArray[Any]) -> None:
    """Every linear classifier, to the bit and in dtype, for any number of rows."""
    estimator.fit(ROWS, target)

    found = product(estimator, [ROWS[:3]])

    assert found is not None
    for rows in some_rows():
        ours, theirs = found(rows), estimator.predict(rows)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


class Cautious(LogisticRegression):  # type: ignore[misc]
    """Predicts in its own way."""

    def predict(self, X: Any) -> Any:  # noqa: N803
        return np.zeros(len(X))


@pytest.mark.parametrize(
    "estimator",
    [
        RandomForestClassifier(2),
        Cautious(),
        RidgeClassifier(),
        LinearDiscriminantAnalysis(),
        LinearRegression(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_other_models_are_left_to_the_library(estimator: Any) -> None:
    """What predicts in a way of its own is not a product."""
    assert product(estimator.fit(ROWS, TWO), [ROWS[:3]]) is None


def test_a_product_that_differs_is_not_taken() -> None:
    """The samples decide: an estimator that answers otherwise keeps answering itself."""
    estimator = LogisticRegression().fit(ROWS, TWO)
    estimator.predict = lambda rows: np.zeros(len(rows))

    assert product(estimator, [ROWS[:3]]) is None


@pytest.mark.parametrize(
    ("rows", "said"), [([[1.0, 2.0]], "expecting 5 features"), ([[np.nan] * 5], "contains NaN")]
)
def test_the_library_words_what_is_wrong_with_rows(rows: Any, said: str, tmp_path: Path) -> None:
    """Rows that are not plain go the library's way, errors included."""
    joblib.dump(LogisticRegression().fit(ROWS, THREE), tmp_path / "model.joblib")
    runtime = load(Source(tmp_path))

    with config_context(assume_finite=False), pytest.raises(InvalidInputs, match=said):
        runtime.predict(np.array(rows))
