from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from serving.acceleration.candidates import Predict
from serving.acceleration.sklearn.candidates import FunctionCandidate
from serving.acceleration.sklearn.verification_rows import make_verification_rows
from serving.runtimes import LoadSpec
from serving.runtimes.instance_batch import count_rows, is_finite_float32
from serving.runtimes.sklearn_runtime.runtime import SklearnRuntime, load_model
from tests.serving.acceleration.rows import assert_same_bits
from tests.serving.runtimes.proving import prove

RANDOM = np.random.default_rng(11)
ROWS = RANDOM.normal(size=(90, 4))
LACKING = np.where(RANDOM.random(ROWS.shape) < 0.2, np.nan, ROWS)
LABELS = (ROWS @ [1.0, -2.0, 0.5, 0.0] + RANDOM.normal(size=90) > 0).astype(int)
FOREST = RandomForestClassifier(8, max_depth=5, random_state=0)
MODELS: dict[str, Callable[[], Any]] = {
    "linear": lambda: LogisticRegression().fit(ROWS, LABELS),
    "numbers": lambda: LinearRegression().fit(ROWS, LABELS),
    "forest": lambda: FOREST.fit(LACKING, LABELS),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=5).fit(ROWS, LABELS),
    "histograms": lambda: HistGradientBoostingClassifier(max_iter=4).fit(LACKING, LABELS),
    "scaled": lambda: make_pipeline(StandardScaler(), FOREST).fit(ROWS, LABELS),
    "filled": lambda: make_pipeline(SimpleImputer(), LogisticRegression()).fit(LACKING, LABELS),
    "polynomials": lambda: make_pipeline(PolynomialFeatures(2), FOREST).fit(ROWS, LABELS),
}


def served(estimator: Any, folder: Path) -> SklearnRuntime:
    joblib.dump(estimator, folder / "model.joblib")
    runtime = load_model(LoadSpec(folder))
    assert isinstance(runtime, SklearnRuntime)
    return runtime


@pytest.mark.parametrize("name", MODELS)
def test_what_is_offered_is_proven(name: str, tmp_path: Path) -> None:
    """On rows made from the model, all of which the runtime hands to a faster way."""
    runtime = served(MODELS[name](), tmp_path)
    batches = runtime.make_verification_rows()
    handed: list[Any] = []
    proven = prove(runtime)

    def answer(rows: Any) -> Any:
        handed.append(rows)
        return rows

    assert set(proven.candidates) == {offer.name for offer in runtime.list_candidates()} != set()
    assert 300 < sum(map(count_rows, batches)) < 3000
    runtime.set_fast_path(answer)
    for rows in batches:
        runtime.predict(rows)
    assert len(handed) == len(batches)
    assert {rows.dtype.char for rows in handed} == {"d", "l"}


def test_probes_are_always_the_same() -> None:
    """A verdict is the same for the same model."""
    estimator = MODELS["forest"]()

    for one, other in zip(
        make_verification_rows(estimator, 4, allow_nan=True),
        make_verification_rows(estimator, 4, allow_nan=True),
        strict=True,
    ):
        assert_same_bits(one, other)


def test_probes_of_wide_models_are_few() -> None:
    """So that a study of them takes no memory to speak of."""
    width = 20_000
    estimator = LogisticRegression().fit(np.eye(2, width), [0, 1])

    assert sum(rows.nbytes for rows in make_verification_rows(estimator, width, allow_nan=False)) < 20 << 20


@pytest.mark.parametrize("name", ["forest", "filled"])
def test_missing_values_are_probed_where_they_are_taken(name: str, tmp_path: Path) -> None:
    """And only there."""
    assert any(
        np.isnan(np.asarray(rows)).any() for rows in served(MODELS[name](), tmp_path).make_verification_rows()
    )
    assert all(map(is_finite_float32, served(MODELS["boosting"](), tmp_path).make_verification_rows()))


# Candidates that are wrong in one point, each of which a probe must find.


def unrounded(estimator: Any) -> Predict:
    """Compares float64, not float32, with the thresholds."""
    return by_walking(estimator, lambda rows: rows, lambda tree, node: bool(tree.missing_go_to_left[node]))


def blind(estimator: Any) -> Predict:
    """Sends missing values to the left everywhere."""
    return by_walking(estimator, lambda rows: rows.astype(np.float32), lambda tree, node: True)


def exclusive(estimator: Any) -> Predict:
    """Goes left below a threshold, not on it."""
    return by_walking(
        estimator,
        lambda rows: np.nextafter(rows.astype(np.float32), np.float32(np.inf)),
        lambda tree, node: bool(tree.missing_go_to_left[node]),
    )


def by_walking(
    estimator: Any,
    seen: Callable[[NDArray[Any]], NDArray[Any]],
    missing_left: Callable[[Any, int], bool],
) -> Predict:
    """The labels of a forest, in plain Python, of the rows as they are `seen`."""

    def leaf(tree: Any, row: NDArray[Any]) -> int:
        node = 0
        while tree.children_left[node] >= 0:
            value = row[tree.feature[node]]
            left = missing_left(tree, node) if np.isnan(value) else value <= tree.threshold[node]
            node = int(tree.children_left[node] if left else tree.children_right[node])
        return node

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        sums = [
            sum(one.tree_.value[leaf(one.tree_, row), 0] for one in estimator.estimators_)
            for row in seen(rows)
        ]
        found: NDArray[Any] = estimator.classes_.take(np.argmax(sums, axis=1))
        return found

    return predict


@pytest.mark.parametrize("wrong", [unrounded, blind, exclusive])
def test_a_candidate_that_differs_is_refused(wrong: Callable[[Any], Predict], tmp_path: Path) -> None:
    """On an edge of float32, on missing values, on a threshold itself."""
    estimator = RandomForestClassifier(3, max_depth=4, random_state=0).fit(LACKING, LABELS)
    runtime = offering(served(estimator, tmp_path), wrong(estimator))

    assert "differ" in prove(runtime).refused["wrong"]


def test_the_walk_of_these_tests_is_right(tmp_path: Path) -> None:
    """Without its fault it is proven."""
    estimator = RandomForestClassifier(3, max_depth=4, random_state=0).fit(LACKING, LABELS)
    right = by_walking(
        estimator,
        lambda rows: rows.astype(np.float32),
        lambda tree, node: bool(tree.missing_go_to_left[node]),
    )

    assert prove(offering(served(estimator, tmp_path), right)).refused == {}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda rows, right: np.nextafter(right(rows), np.inf),
        lambda rows, right: right(rows).astype(np.float32),
        lambda rows, right: right(rows)[:, None],
        lambda rows, right: right(rows.astype(np.int64)),
    ],
    ids=["another last bit", "another dtype", "another shape", "whole numbers"],
)
def test_numbers_that_differ_are_refused(wrong: Callable[[Any, Predict], Any], tmp_path: Path) -> None:
    """In value, dtype or shape."""
    estimator = RandomForestRegressor(3, random_state=0).fit(ROWS, ROWS[:, 0])
    runtime = served(estimator, tmp_path)
    right = runtime.list_candidates()[0].build().predict
    assert prove(offering(runtime, lambda rows: wrong(rows, right))).refused.keys() == {"wrong"}


def offering(runtime: SklearnRuntime, predict: Predict) -> SklearnRuntime:
    offer = replace(runtime.list_candidates()[0], name="wrong", build=lambda: FunctionCandidate(predict))
    runtime.list_candidates = lambda: (offer,)  # type: ignore[method-assign]
    return runtime
