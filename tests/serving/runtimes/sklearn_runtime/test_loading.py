"""Which files are loaded as estimators, and what loading does to them."""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.cluster import DBSCAN
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info

from serving.errors import LoadFailed
from serving.runtimes import LoadSpec
from serving.runtimes.sklearn_runtime.runtime import load_model
from tests.serving.runtimes.sklearn_runtime.estimators import LABELS, X, assert_same_bits, served


@pytest.mark.parametrize("names", [["model.joblib"], ["model.pkl"], ["model.joblib", "model.pkl"]])
def test_joblib_comes_before_pickle(names: list[str], tmp_path: Path) -> None:
    """With the framework given, model.joblib is taken where both files are there."""
    for value, name in enumerate(names, start=1):
        (tmp_path / name).write_bytes(pickle.dumps(LinearRegression().fit([[0.0], [1.0]], [value, value])))

    runtime = load_model(LoadSpec(tmp_path, "SCIKIT_LEARN"))

    assert np.asarray(runtime.predict([[0.0]])).tolist() == [1.0]


@pytest.mark.parametrize("width", [10**12, 1 << 23, -1, "many", 1e300, float("nan")])
def test_a_model_of_absurdly_many_features_is_refused(width: Any, tmp_path: Path) -> None:
    """Before anything has that many numbers: the file was changed by somebody."""
    model = LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])
    model.n_features_in_ = width
    joblib.dump(model, tmp_path / "model.joblib")
    with pytest.raises(LoadFailed, match=r"says that its rows have .* features \(n_features_in_\)"):
        load_model(LoadSpec(tmp_path, "SCIKIT_LEARN"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"model": 1}, "model.joblib holds a builtins.dict, which is not a scikit-learn estimator"),
        (LinearRegression(), "model.joblib holds a LinearRegression that is not fitted"),
        (StandardScaler().fit(X), "model.joblib holds a StandardScaler, which has no predict"),
        (DBSCAN().fit(X), "model.joblib holds a DBSCAN, which has no predict"),
    ],
)
def test_objects_that_cannot_be_served_are_refused(model: Any, message: str, tmp_path: Path) -> None:
    """Only a fitted estimator with predict is served; the message says what the file holds."""
    with pytest.raises(LoadFailed) as caught:
        served(model, tmp_path)

    assert message in caught.value.detail


def test_workers_and_threads_are_set_at_load(tmp_path: Path) -> None:
    """Every nested estimator, fitted ones included, runs without joblib workers and on the given threads."""
    stack = StackingClassifier(
        [("forest", RandomForestClassifier(3, n_jobs=2)), ("neighbours", KNeighborsClassifier(n_jobs=-1))],
        cv=2,
        n_jobs=1,
    ).fit(X, LABELS)

    runtime = served(stack, tmp_path, threads=1)

    estimator = runtime._estimator  # type: ignore[attr-defined]
    assert [inner.n_jobs for inner in estimator.estimators_] == [1, 1]
    assert {info["num_threads"] for info in threadpool_info()} == {1}


def test_the_thread_limit_holds_in_another_thread(tmp_path: Path) -> None:
    """OpenMP keeps its limit per thread, so it is set again in the one that predicts."""
    runtime = served(HistGradientBoostingClassifier(max_iter=5).fit(X, LABELS), tmp_path, threads=1)
    seen: list[set[int]] = []

    def work() -> None:
        runtime.predict(X)
        seen.append({info["num_threads"] for info in threadpool_info()})

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()

    assert seen == [{1}]


def test_big_vocabularies_do_not_slow_the_load_down(tmp_path: Path) -> None:
    """Walking a model skips large collections of plain values."""
    words = [f"word{number}" for number in range(200_000)]
    vectors = TfidfVectorizer(vocabulary=words, use_idf=False)
    estimator = make_pipeline(vectors, LogisticRegression()).fit(["word1", "word2"], [0, 1])
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(estimator))

    start = time.process_time()
    runtime = load_model(LoadSpec(tmp_path))

    assert time.process_time() - start < 5
    assert_same_bits(runtime.predict(["word2"]), estimator.predict(["word2"]))


class Bare(BaseEstimator):  # type: ignore[misc]
    """An estimator of this module, which is neither the library's nor in a package."""

    def predict(self, rows: list[Any]) -> list[int]:
        return [1 for _ in rows]


def test_a_subclass_of_scikit_learn_is_an_estimator(tmp_path: Path) -> None:
    """What inherits from scikit-learn is served, wherever its module was installed."""
    assert served(Bare(), tmp_path).predict([[1], [2]]) == [1, 1]
