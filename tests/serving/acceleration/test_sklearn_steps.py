from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_selection import SelectKBest, VarianceThreshold, f_regression
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PolynomialFeatures,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeRegressor

from serving.acceleration.candidates import UnsuitableCandidate
from serving.acceleration.dispatch import FastPathDispatcher
from serving.acceleration.sklearn.candidates import accepts_nan, list_candidates
from serving.errors import InvalidInputs
from serving.runtimes import LoadSpec
from serving.runtimes.sklearn_runtime.runtime import SklearnRuntime, load_model
from tests.serving.acceleration.rows import assert_same_bits, rows_like

RANDOM = np.random.default_rng(7)
ROWS = RANDOM.normal(size=(80, 4)).round(2) * [1.0, 100.0, 1e-3, 5.0]
LACKING = np.where(RANDOM.random(ROWS.shape) < 0.2, np.nan, ROWS)
NUMBERS = ROWS @ [1.0, -0.02, 50.0, 0.0] + RANDOM.normal(size=80)
LABELS = np.digitize(NUMBERS, [-1, 1])
FOREST = RandomForestClassifier(5, max_depth=4, random_state=0)

# Whether NaN is taken, and the model; fitted when it is asked for.
PIPELINES: dict[str, tuple[bool, Callable[[], Any]]] = {
    "scaled, logistic": (
        False,
        lambda: make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, LABELS),
    ),
    "without mean or scale": (
        False,
        lambda: make_pipeline(
            StandardScaler(with_mean=False), RobustScaler(with_scaling=False), "passthrough", LinearSVC()
        ).fit(ROWS, LABELS),
    ),
    "clipped, forest": (True, lambda: make_pipeline(MinMaxScaler(clip=True), FOREST).fit(LACKING, LABELS)),
    "by the largest, forest": (True, lambda: make_pipeline(MaxAbsScaler(), FOREST).fit(ROWS, LABELS)),
    "lengths of one": (
        False,
        lambda: make_pipeline(Normalizer("l2"), Normalizer("l1"), Normalizer("max"), FOREST).fit(
            ROWS, LABELS
        ),
    ),
    "filled, histograms": (
        True,
        lambda: make_pipeline(
            StandardScaler(), SimpleImputer(strategy="median"), HistGradientBoostingClassifier(max_iter=3)
        ).fit(LACKING, LABELS),
    ),
    "filled, linear": (
        True,
        lambda: make_pipeline(SimpleImputer(strategy="most_frequent"), LinearRegression()).fit(
            LACKING, NUMBERS
        ),
    ),
    "polynomials": (
        False,
        lambda: make_pipeline(PolynomialFeatures(2), StandardScaler(), LogisticRegression(max_iter=500)).fit(
            ROWS, LABELS
        ),
    ),
    "interactions": (
        False,
        lambda: make_pipeline(
            StandardScaler(), PolynomialFeatures(interaction_only=True, include_bias=False), FOREST
        ).fit(ROWS, LABELS),
    ),
    "components": (
        False,
        lambda: make_pipeline(StandardScaler(), PCA(2, whiten=True), FOREST).fit(ROWS, LABELS),
    ),
    "chosen": (
        False,
        lambda: make_pipeline(
            VarianceThreshold(), SelectKBest(f_regression, k=2), DecisionTreeRegressor(max_depth=3)
        ).fit(ROWS, NUMBERS),
    ),
    "nested, searched for": (
        False,
        lambda: GridSearchCV(
            Pipeline([("a", make_pipeline(StandardScaler(), MinMaxScaler())), ("b", LogisticRegression())]),
            {"b__C": [0.1, 1.0]},
            cv=2,
        ).fit(ROWS, LABELS),
    ),
}


@cache
def fitted(name: str) -> Any:
    return PIPELINES[name][1]()


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_answer_as_the_library_does(name: str) -> None:
    """To the bit, for any rows of which the library would complain neither at first nor on the way."""
    missing, estimator = PIPELINES[name][0], fitted(name)
    found = [offer.build() for offer in list_candidates(estimator, takes_nan=missing)]
    assert found
    assert accepts_nan(estimator, takes_nan=missing) is missing

    @settings(max_examples=15)
    @given(rows_like(ROWS, missing=missing))
    def check(rows: NDArray[Any]) -> None:
        before = rows.copy()
        for candidate in found:
            try:
                answer = candidate.predict(rows)
            except UnsuitableCandidate:
                continue
            assert_same_bits(answer, estimator.predict(rows))
        assert_same_bits(rows, before)

    check()


@pytest.mark.parametrize(
    ("transformer", "said"),
    [
        (QuantileTransformer(n_quantiles=10), "an unknown step: QuantileTransformer"),
        (SimpleImputer(add_indicator=True), "adds or drops"),
        (SimpleImputer(missing_values=-1), "for -1"),
        (PolynomialFeatures(3), "degree 2"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_unknown_steps_are_refused(transformer: Any, said: str) -> None:
    """By name; the same goes for a known step in a way that is not known."""
    rows = LACKING if isinstance(transformer, SimpleImputer) and transformer.add_indicator else ROWS
    estimator = make_pipeline(transformer, LogisticRegression(max_iter=1000)).fit(
        rows / np.nanstd(rows, axis=0), LABELS
    )

    for offer in list_candidates(estimator, takes_nan=False):
        with pytest.raises(UnsuitableCandidate, match=said):
            offer.build()


class Shifted(StandardScaler):  # type: ignore[misc]
    """Scales in its own way."""

    def transform(self, X: Any, copy: Any = None) -> Any:  # noqa: N803
        return super().transform(X, copy) + 1


def test_steps_that_work_in_their_own_way_are_refused() -> None:
    """A subclass of a known step, and an object with a transform of its own."""
    replaced = make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, LABELS)
    replaced[0].transform = lambda rows: rows + 1

    for estimator in (make_pipeline(Shifted(), LogisticRegression()).fit(ROWS, LABELS), replaced):
        (offer,) = list_candidates(estimator, takes_nan=False)
        with pytest.raises(UnsuitableCandidate, match="an unknown step"):
            offer.build()


def test_nothing_is_offered_for_an_unknown_model() -> None:
    """Steps alone gain too little."""
    estimator = make_pipeline(StandardScaler(), KNeighborsClassifier()).fit(ROWS, LABELS)

    assert list_candidates(estimator, takes_nan=False) == ()


def test_rows_that_become_too_large_on_the_way_are_left_to_the_library(tmp_path: Path) -> None:
    """It has words for them, or an answer; and the next row is answered in the faster way as before."""
    large = np.full((1, 4), 1e30)
    for model in (FOREST, LogisticRegression()):
        estimator = make_pipeline(StandardScaler(), model).fit(ROWS * 1e-10, LABELS)
        joblib.dump(estimator, tmp_path / "model.joblib")
        runtime = load_model(LoadSpec(tmp_path))
        assert isinstance(runtime, SklearnRuntime)
        switch = FastPathDispatcher(
            runtime.predict_reference,
            [(1, runtime.list_candidates()[0].build().predict)],
            exact=True,
            library_spread={},
        )
        withdrawn: list[str] = []
        switch.on_withdrawn = withdrawn.append
        runtime.set_fast_path(switch)

        if model is FOREST:
            with pytest.raises(InvalidInputs, match="too large for dtype"), np.errstate(over="ignore"):
                runtime.predict(large)
        else:
            assert_same_bits(runtime.predict(large), estimator.predict(large))
        assert withdrawn == []
