"""Estimators with code of the user's own, and arguments of `predict`."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from serving.errors import InvalidInputs, InvalidOutputs, ModelFailed
from serving.runtimes import LoadSpec, RowsFormat
from serving.runtimes.sklearn_runtime.runtime import load_model
from tests.serving.runtimes.sklearn_runtime.estimators import VALUES, X, answers, assert_same_bits, served

USER_CODE = """
    import numpy as np
    from sklearn.base import BaseEstimator, TransformerMixin

    class Lengths(TransformerMixin, BaseEstimator):
        def fit(self, X, y=None):
            return self
        def transform(self, X):
            if X[0] == "boom":
                raise ValueError("no such word")
            return np.array([[len(word)] for word in X])

    class Model(BaseEstimator):
        answer = None
        def predict(self, X, factor=1, **others):
            return [len(row) * factor for row in X] if self.answer is None else self.answer
"""


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that can be imported while a model is saved; a version finds it in its packages."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "words_of_user.py").write_text(textwrap.dedent(USER_CODE))
    sys.path.append(str(folder))
    yield __import__("words_of_user")
    sys.modules.pop("words_of_user")


def forget(module: Any) -> None:
    sys.path.pop()
    del sys.modules[module.__name__]


def test_user_steps_come_from_the_packages(user_code: Any, tmp_path: Path) -> None:
    """A pipeline with a class from the user's package gets plain rows, and is never merged."""
    estimator = make_pipeline(user_code.Lengths(), LinearRegression()).fit(["a", "bb"], [1, 2])
    joblib.dump(estimator, tmp_path / "model.joblib")
    expected = estimator.predict(["abc", "d"])
    forget(user_code)

    runtime = load_model(LoadSpec(tmp_path, packages=(tmp_path / "packages",)))

    assert runtime.input_format({}) == RowsFormat()
    assert (runtime.mergeable, runtime.exact) == (False, True)
    assert_same_bits(answers(runtime, ["abc", "d"]), expected)


def test_an_error_of_user_code_is_the_models_fault(user_code: Any, tmp_path: Path) -> None:
    """The same ValueError is a 500 when the user's code raises it, and a 400 when scikit-learn does."""
    estimator = make_pipeline(user_code.Lengths(), LinearRegression()).fit(["a", "bb"], [1, 2])
    runtime = served(estimator, tmp_path, packages=(tmp_path / "packages",))

    with pytest.raises(ModelFailed, match="Exception during sklearn prediction: ValueError: no such word"):
        answers(runtime, ["boom"])
    with pytest.raises(InvalidInputs, match="1 features"):
        served(LinearRegression().fit(X, VALUES), tmp_path).predict([[1.0]])


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("text", "must return an array or a list, not str"),
        ((1, 2), "must return an array or a list, not int"),
        (np.float64(3), "0 predictions for 2 instances"),
        (np.array(3), "0 predictions for 2 instances"),
        ([1], "1 predictions for 2 instances"),
        (pd.Series([1, 2, 3]), "3 predictions for 2 instances"),
    ],
)
def test_answers_that_cannot_be_sent_are_refused(
    answer: object, problem: str, user_code: Any, tmp_path: Path
) -> None:
    """predict must return a list or an array with one prediction per instance."""
    model = user_code.Model()
    model.answer = answer
    runtime = served(model, tmp_path, packages=(tmp_path / "packages",))

    with pytest.raises(InvalidOutputs, match=problem):
        runtime.predict([[1], [2]])


def test_extra_fields_are_arguments_of_predict(user_code: Any, tmp_path: Path) -> None:
    """Fields beside the instances reach predict, except signature_name."""
    runtime = served(user_code.Model(), tmp_path, packages=(tmp_path / "packages",))

    assert answers(runtime, [[1, 2]], factor=5, other=1, signature_name="serving_default") == [10]


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (
            LinearRegression(),
            "The predict of LinearRegression does not take the request field 'factor'; it takes none.",
        ),
        (make_pipeline(StandardScaler(), GaussianProcessRegressor()), "it takes return_cov, return_std."),
    ],
)
def test_unknown_fields_are_named_before_anything_runs(estimator: Any, message: str, tmp_path: Path) -> None:
    """A field that predict does not take is refused by form already."""
    runtime = served(estimator.fit(X, VALUES), tmp_path)

    with pytest.raises(InvalidInputs) as caught:
        runtime.input_format({"factor": 1})
    assert message in caught.value.detail
    assert runtime.input_format({"signature_name": "x"}) == runtime.input_format({})


def test_known_fields_pass_through_a_pipeline(tmp_path: Path) -> None:
    """return_std makes a pair of arrays of the answer: each row has its mean and its deviation."""
    pipeline = make_pipeline(StandardScaler(), GaussianProcessRegressor()).fit(X, VALUES)
    runtime = served(pipeline, tmp_path)

    rows = np.stack(pipeline.predict(X, return_std=True), axis=1)
    assert np.array_equal(answers(runtime, X.tolist(), return_std=True), rows)
