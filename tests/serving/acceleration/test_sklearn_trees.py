from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor, ExtraTreeRegressor

from serving.acceleration.candidates import Predict, UnsuitableCandidate
from serving.acceleration.sklearn import tree_ensembles
from serving.acceleration.sklearn.candidates import list_candidates
from serving.runtimes.sklearn_runtime.estimator_inspection import takes_nan
from tests.serving.acceleration.rows import assert_same_bits, rows_like

RANDOM = np.random.default_rng(5)
ROWS = RANDOM.normal(size=(90, 4)).round(2)
LACKING = np.where(RANDOM.random(ROWS.shape) < 0.2, np.nan, ROWS)
NUMBERS = ROWS @ [1.0, -2.0, 0.5, 0.0] + RANDOM.normal(size=90)
TWO = (NUMBERS > 0).astype(int)
THREE = np.digitize(NUMBERS, [-1, 1])
WORDS = np.array(["low", "mid", "high"])[THREE]
SHALLOW: dict[str, Any] = {"max_depth": 3, "random_state": 0}
QUICK: dict[str, Any] = {"n_estimators": 7, "random_state": 0, "max_depth": 4}
FEW: dict[str, Any] = {"max_iter": 5, "min_samples_leaf": 4, "random_state": 0}

# Fitted when they are asked for.
MODELS: dict[str, Callable[[], Any]] = {
    "tree": lambda: DecisionTreeClassifier(**SHALLOW).fit(ROWS, WORDS),
    "tree of numbers": lambda: DecisionTreeRegressor(**SHALLOW).fit(LACKING, NUMBERS),
    "tree, two targets": lambda: ExtraTreeRegressor(**SHALLOW).fit(ROWS, np.c_[NUMBERS, -NUMBERS]),
    "tree, two labels": lambda: DecisionTreeClassifier(**SHALLOW).fit(ROWS, np.c_[THREE, TWO]),
    "forest": lambda: RandomForestClassifier(**QUICK).fit(ROWS, TWO),
    "forest, words": lambda: RandomForestClassifier(**QUICK, class_weight="balanced").fit(LACKING, WORDS),
    "forest, two labels": lambda: RandomForestClassifier(**QUICK).fit(ROWS, np.c_[THREE, TWO]),
    "forest of one": lambda: RandomForestClassifier(1, random_state=0).fit(ROWS, THREE),
    "forest of numbers": lambda: RandomForestRegressor(**QUICK).fit(LACKING, NUMBERS),
    "forest, two targets": lambda: ExtraTreesRegressor(**QUICK).fit(ROWS, np.c_[NUMBERS, -NUMBERS]),
    "extra trees": lambda: ExtraTreesClassifier(**QUICK).fit(ROWS, WORDS),
    "boosting": lambda: GradientBoostingClassifier(**QUICK).fit(ROWS, TWO),
    "boosting, words": lambda: GradientBoostingClassifier(**QUICK).fit(ROWS, WORDS),
    "boosting of numbers": lambda: GradientBoostingRegressor(**QUICK).fit(ROWS, NUMBERS),
    "boosting from zero": lambda: GradientBoostingRegressor(**QUICK, init="zero", loss="huber").fit(
        ROWS, NUMBERS
    ),
    "histograms": lambda: HistGradientBoostingClassifier(**FEW).fit(ROWS, TWO),
    "histograms, words": lambda: HistGradientBoostingClassifier(**FEW).fit(LACKING, WORDS),
    "histograms of numbers": lambda: HistGradientBoostingRegressor(**FEW).fit(LACKING, NUMBERS),
    "histograms of counts": lambda: HistGradientBoostingRegressor(**FEW, loss="poisson").fit(
        ROWS, np.abs(NUMBERS)
    ),
}


@cache
def fitted(name: str) -> Any:
    return MODELS[name]()


def ways(estimator: Any) -> dict[str, Predict]:
    """All that there are, also those not worth a try."""
    kind = tree_ensembles.find_ensemble_kind(estimator)
    assert kind is not None
    arrays = {"tree arrays": kind.tree_arrays(estimator)}
    return arrays if kind.one_tree is None else {"one tree": kind.one_tree(estimator), **arrays}


def splits(estimator: Any) -> tuple[float, ...]:
    kind = tree_ensembles.find_ensemble_kind(estimator)
    assert kind is not None
    fields = kind.fields
    found = np.concatenate([tree[fields.threshold][fields.is_inner(tree)] for tree in kind.nodes(estimator)])
    return tuple(found[np.isfinite(found)].tolist())  # what splits off the missing values has none


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_library(name: str) -> None:
    """To the bit, in dtype and shape, for one row and for more than go through at once."""
    estimator = fitted(name)
    many = np.random.default_rng(0).normal(size=(100, 4))

    for predict in ways(estimator).values():
        for rows in (many[:1], many[1:3], many, (many * 3).astype(np.int64)):
            assert_same_bits(predict(rows), estimator.predict(rows))


@pytest.mark.parametrize("name", MODELS)
def test_any_rows_are_answered_as_by_the_library(name: str) -> None:
    """Whatever finite numbers are in the rows, also on the thresholds and about them, and missing ones."""
    estimator = fitted(name)
    found = ways(estimator)
    assert found

    @settings(max_examples=15)
    @given(rows_like(ROWS, splits=splits(estimator), missing=takes_nan(estimator)))
    def check(rows: NDArray[Any]) -> None:
        expected = estimator.predict(rows)
        for predict in found.values():
            assert_same_bits(predict(rows), expected)

    check()


@settings(max_examples=25)
@given(st.data())
def test_any_forest_is_answered_as_by_the_library(data: st.DataObject) -> None:
    """However many trees there are, of whatever depth, over however many features."""
    seed, width = data.draw(st.integers(0, 1000)), data.draw(st.sampled_from([1, 2, 5, 40]))
    options = {"max_depth": data.draw(st.sampled_from([1, 3, None])), "random_state": seed}
    kind = data.draw(
        st.sampled_from([RandomForestRegressor, ExtraTreesClassifier, GradientBoostingRegressor])
    )
    random = np.random.default_rng(seed)
    known = random.normal(size=(30, width)).round(1)
    estimator = kind(n_estimators=data.draw(st.integers(1, 6)), **options).fit(
        known, random.integers(0, 4, 30)
    )
    rows = data.draw(rows_like(known, splits=splits(estimator) or (0.0,)))

    for predict in ways(estimator).values():
        assert_same_bits(predict(rows), estimator.predict(rows))


def test_rows_are_rounded_before_they_are_compared() -> None:
    """A value above a threshold that float32 rounds onto it goes to the left, as with the library."""
    estimator = DecisionTreeRegressor().fit([[0.0], [1.0]], [0.0, 1.0])
    above = np.array([[0.5 + 2.0**-30]])

    assert estimator.predict(above) == [0.0]
    assert ways(estimator)["tree arrays"](above) == [0.0]


class Contrary(RandomForestClassifier):  # type: ignore[misc]
    """Predicts in its own way."""

    def predict(self, X: Any) -> Any:  # noqa: N803
        return super().predict(X)[::-1]


def test_what_predicts_in_its_own_way_is_refused() -> None:
    """Nothing is known of a subclass, and an object with a predict of its own is found out."""
    replaced = RandomForestClassifier(2).fit(ROWS, TWO)
    replaced.predict = lambda rows: np.zeros(len(rows))

    assert list_candidates(Contrary(2).fit(ROWS, TWO), takes_nan=False) == ()
    for offer in list_candidates(replaced, takes_nan=False):
        with pytest.raises(UnsuitableCandidate, match="overrides predict"):
            offer.build()


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (HistGradientBoostingRegressor(**FEW, categorical_features=[3]), "categorical"),
        (GradientBoostingClassifier(n_estimators=2, init=LogisticRegression()), "of a LogisticRegression"),
        (GradientBoostingClassifier(n_estimators=2, init=DummyClassifier(strategy="uniform")), "of a Dummy"),
    ],
    ids=["categories", "another start", "a random start"],
)
def test_what_is_computed_otherwise_is_refused(estimator: Any, said: str) -> None:
    """Categories, and a start that is not the same for all rows."""
    estimator.fit(np.c_[ROWS[:, :3], THREE], TWO)

    for offer in list_candidates(estimator, takes_nan=False):
        with pytest.raises(UnsuitableCandidate, match=said):
            offer.build()


def test_what_is_worth_a_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large ensemble is not kept twice: its trees are asked one after the other."""
    tried = {
        name: [offer.name for offer in list_candidates(fitted(name), takes_nan=False)]
        for name in ("tree", "forest", "boosting", "histograms")
    }
    monkeypatch.setattr(tree_ensembles, "_MOST_BYTES", 1000)

    assert tried == {
        "tree": ["tree arrays"],
        "forest": ["one tree"],
        "boosting": ["one tree", "tree arrays"],
        "histograms": ["one tree"],
    }
    assert {offer.name for name in tried for offer in list_candidates(fitted(name), takes_nan=False)} == {
        "tree arrays"
    }


def test_one_tree_costs_a_fraction_of_the_library() -> None:
    """For one row a hundredth; a tenth is asked for, whatever else the machine does."""
    estimator = RandomForestClassifier(60, max_depth=4, random_state=0).fit(ROWS, TWO)
    row = ROWS[:1]

    ours = least(ways(estimator)["one tree"], row)

    assert ours < least(estimator.predict, row) / 10


def least(predict: Predict, rows: NDArray[Any]) -> float:
    """The seconds of the quickest of several calls."""
    found = []
    for _ in range(10):
        start = time.perf_counter()
        predict(rows)
        found.append(time.perf_counter() - start)
    return min(found)
