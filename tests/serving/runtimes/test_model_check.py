"""Whether a model can predict, as far as trying it tells; see serving/runtimes/model_check.py."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import AdaBoostClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from serving.errors import InvalidInputs, LoadFailed, ModelFailed
from serving.runtimes import LoadSpec, load_model, model_check
from serving.runtimes.custom_runtime.runtime import CustomRuntime
from serving.runtimes.model_check import (
    ModelCheckResult,
    PredictionTrial,
    RaisedException,
    is_model_fault,
    judge_trials,
    run_trials,
)
from serving.runtimes.schema_inference import EXAMPLE_FILE, infer_model_schema, read_examples

X = np.random.default_rng(0).random((30, 3))
Y = np.arange(30) % 3

ANSWERED = PredictionTrial("An instance")


def refused(kind: str, text: str = "", *, library: bool = True, **more: Any) -> PredictionTrial:
    return PredictionTrial(
        "A made-up instance", f"{kind}: {text}", RaisedException(kind, text, library), **more
    )


def refused_by_estimator(package: str) -> PredictionTrial:
    text = "'OrdinalEncoder' object has no attribute 'missing'"
    return PredictionTrial(
        "A made-up instance", text, RaisedException("AttributeError", text, False, package)
    )


@pytest.mark.parametrize(
    ("trial", "broken"),
    [
        (refused("AttributeError", "'SimpleImputer' object has no attribute '_fill_dtype'"), True),
        (refused("AttributeError", "'SVC' object has no attribute '_probA'", library=False), False),
        (refused("AttributeError", "'numpy.ndarray' object has no attribute 'lower'"), False),
        (refused_by_estimator("encoders"), True),
        (refused_by_estimator("sklearn"), True),
        (refused_by_estimator(""), False),
        (refused("AttributeError", "'str' object has no attribute 'transform'"), True),
        (refused("AttributeError", "'str' object has no attribute 'get'", is_input_fault=True), False),
        (refused("AttributeError", "'float' object has no attribute 'lower'"), False),
        (refused("AttributeError", "'float' object has no attribute 'lower'", is_numeric=True), True),
        (refused("NotFittedError", "idf vector is not fitted"), True),
        (refused("ImportError", "No module named 'pandas'"), True),
        (refused("TypeError", "'<' not supported"), False),
        (refused("TypeError", "expected an int", is_numeric=True), True),
        (refused("ValueError", "Found unknown categories [0.0] in column 0", is_numeric=True), False),
        (refused("ValueError", "Buffer dtype mismatch, expected 'int' but got 'long'"), True),
        (refused("FailedPreconditionError", "Could not find variable dense/kernel."), True),
        (refused("InvalidArgumentError", "indices[0] = 7 is not in [0, 5)"), False),
        (refused("NotFoundError", "in.jpg; No such file or directory"), False),
        (ANSWERED, False),
    ],
)
def test_who_raised_what_tells_a_broken_model_from_a_bad_instance(
    trial: PredictionTrial, broken: bool
) -> None:
    assert is_model_fault(trial) == broken


BROKEN = refused("NotFittedError", "not fitted")
PICKY = refused("ValueError", "unknown category", is_input_fault=True)


def test_a_model_fails_only_if_it_is_broken_and_answers_nothing() -> None:
    """Nothing tried is no verdict, and one answer is enough."""
    assert judge_trials([]) == ModelCheckResult()
    assert judge_trials([ANSWERED]) == ModelCheckResult()
    assert not judge_trials([BROKEN, ANSWERED]).failure
    failed = judge_trials([PICKY, BROKEN], lambda: "Do this.").failure
    assert failed.endswith("of 2 made-up instances none was answered. NotFittedError: not fitted. Do this.")


def test_a_model_that_refuses_what_was_made_up_is_deployed_with_a_warning() -> None:
    verdict = judge_trials([PICKY, PICKY])

    assert not verdict.failure
    assert "unknown category" in verdict.warnings[0]
    assert EXAMPLE_FILE in verdict.warnings[0]


def test_recorded_requests_that_fail_are_warnings() -> None:
    record = PredictionTrial(
        "The recorded warm-up request 2", "wrong", RaisedException("ValueError", "", True), is_recorded=True
    )

    assert judge_trials([ANSWERED, record]).warnings == (
        "The recorded warm-up request 2 was not answered: wrong",
    )
    assert judge_trials([record]).warnings == ("The recorded warm-up request 2 was not answered: wrong",)


def verdict_of(folder: Path, model: Any) -> ModelCheckResult:
    joblib.dump(model, folder / "model.joblib")
    runtime = load_model(LoadSpec(folder))
    found = tuple(run_trials(runtime, infer_model_schema(runtime, folder), read_examples(folder)))
    return judge_trials(found, lambda: model_check.describe_runtime_versions(runtime))


def test_a_pickle_that_loads_and_cannot_predict_names_the_versions_and_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = GaussianNB().fit(X, Y)
    del model.var_  # sigma_ until 1.0
    with monkeypatch.context() as patch:
        patch.setattr("sklearn.base.__version__", "0.22.1")
        joblib.dump(model, tmp_path / "model.joblib")
    runtime = load_model(LoadSpec(tmp_path))
    verdict = judge_trials(
        tuple(run_trials(runtime, infer_model_schema(runtime, tmp_path), ())),
        lambda: model_check.describe_runtime_versions(runtime),
    )

    assert "AttributeError: 'GaussianNB' object has no attribute 'var_'" in verdict.failure
    assert "saved with scikit-learn 0.22.1; this server has scikit-learn 1." in verdict.failure
    assert "`pilotlight runtimes add 2.1 --create`, and create the version with runtimeVersion 2.1." in (
        verdict.failure
    )


def test_what_is_not_fitted_is_no_null_of_the_client(tmp_path: Path) -> None:
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["a cat", "a dog"], [0, 1])
    model.named_steps["tfidfvectorizer"]._tfidf = TfidfTransformer()  # as of an old pickle

    assert "NotFittedError" in verdict_of(tmp_path, model).failure
    with pytest.raises(ModelFailed, match="NotFittedError"):
        load_model(LoadSpec(tmp_path)).predict(["a cat"])


def test_a_text_of_the_model_is_not_taken_for_one_of_the_instances(tmp_path: Path) -> None:
    """A step of an older version may be a word where today's is an object."""
    encoder = ColumnTransformer([("o", OneHotEncoder(), [0])], remainder="passthrough")
    rows = np.array([["x", 1.0], ["y", 2.0]], object)
    model = make_pipeline(encoder, LogisticRegression()).fit(rows, [0, 1])
    encoder.transformers_[-1] = ("remainder", "passthrough", [1])

    assert "'str' object has no attribute 'transform'" in verdict_of(tmp_path, model).failure


ENCODERS = """
from sklearn.base import BaseEstimator, TransformerMixin

class Encoder(BaseEstimator, TransformerMixin):
    def fit(self, X, y=None):
        self.n_features_in_ = len(X[0])
        self.missing_ = 0
        return self

    def transform(self, X):
        return [[value + self.missing_ for value in row] for row in X]

class Picky(BaseEstimator, TransformerMixin):
    def fit(self, X, y=None):
        self.n_features_in_ = len(X[0])
        return self

    def transform(self, X):
        return [[len(value.lower()) for value in row] for row in X]
"""


@pytest.fixture
def encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of estimators that is of no library the server knows."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "encoders.py").write_text(ENCODERS)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    yield importlib.import_module("encoders")
    del sys.modules["encoders"]


def test_an_estimator_of_another_package_that_lacks_an_attribute_is_broken(
    tmp_path: Path, encoders: Any
) -> None:
    """As of a pickle by another version of the package."""
    model = make_pipeline(encoders.Encoder(), LogisticRegression()).fit(X.tolist(), Y)
    del model[0].missing_

    failed = verdict_of(tmp_path, model).failure

    assert "AttributeError: 'Encoder' object has no attribute 'missing_'" in failed
    assert failed.endswith(
        "The estimator is of the package encoders, which may have changed since: in packageUris, give the "
        "release that the model was made with."
    )


def test_a_value_that_lacks_an_attribute_leaves_the_estimator_unblamed(tmp_path: Path, encoders: Any) -> None:
    model = make_pipeline(encoders.Picky(), LogisticRegression()).fit([["a"], ["bb"]], [0, 1])

    assert not verdict_of(tmp_path, model).failure


class Unfitted:
    """A routine around an estimator that cannot predict."""

    def predict(self, instances: Any, **_: Any) -> Any:
        return LogisticRegression().predict(instances)


def test_what_a_routine_raises_is_a_warning(tmp_path: Path) -> None:
    """Of whatever class: it may need fields of a request that the example lacks."""
    (tmp_path / EXAMPLE_FILE).write_text("[1.0]")
    runtime = CustomRuntime(Unfitted(), "routine.Unfitted")

    verdict = judge_trials(
        tuple(run_trials(runtime, infer_model_schema(runtime, tmp_path), read_examples(tmp_path)))
    )

    assert not verdict.failure
    assert "NotFittedError" in verdict.warnings[0]


def test_a_routine_that_returns_no_list_for_its_example_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / EXAMPLE_FILE).write_text("[1.0]")
    runtime = CustomRuntime(Summing(), "routine.Summing")

    verdict = judge_trials(
        tuple(run_trials(runtime, infer_model_schema(runtime, tmp_path), read_examples(tmp_path)))
    )

    assert not verdict.failure
    assert len(verdict.warnings) == 1
    assert verdict.warnings[0].startswith(f"{EXAMPLE_FILE} was not answered: ")
    assert "The custom predict must return a list or an array, not dict." in verdict.warnings[0]


class Foreign(BaseEstimator):  # type: ignore[misc]  # it has no types
    """Of another package than scikit-learn's, which does not tell how many features it takes."""

    def predict(self, rows: Any) -> Any:
        return np.zeros(len(rows))


@pytest.mark.parametrize(("example", "is_warned"), [("", True), ("[1.0]", False)])
def test_a_model_that_nobody_tried_is_deployed_with_a_warning(
    tmp_path: Path, example: str, is_warned: bool
) -> None:
    joblib.dump(Foreign(), tmp_path / "model.joblib")
    if example:
        (tmp_path / EXAMPLE_FILE).write_text(example)
    runtime = load_model(LoadSpec(tmp_path))
    trials = tuple(run_trials(runtime, infer_model_schema(runtime, tmp_path), read_examples(tmp_path)))

    warnings = model_check.warn_untried(runtime, trials)

    assert judge_trials(trials) == ModelCheckResult()
    assert bool(warnings) is is_warned
    assert not is_warned or "was not tried: it does not tell what its instances look like" in warnings[0]


def test_a_routine_that_nobody_tried_is_not_warned_of(tmp_path: Path) -> None:
    """Nothing is made up for any routine."""
    runtime = CustomRuntime(Summing(), "routine.Summing")
    trials = tuple(run_trials(runtime, infer_model_schema(runtime, tmp_path), ()))

    assert model_check.warn_untried(runtime, trials) == ()


class Summing:
    """A routine that returns an object."""

    def predict(self, instances: Any, **_: Any) -> Any:
        return {"sum": instances[0]}


def _lower(rows: Any) -> Any:
    return np.array([[row[0].lower() == "x"] for row in rows], float)


def test_a_model_that_is_picky_stays_deployable(tmp_path: Path) -> None:
    """A function of the owner's that wants texts, given numbers."""
    model = make_pipeline(FunctionTransformer(_lower), MultinomialNB()).fit([["x"], ["y"]], [0, 1])

    assert not verdict_of(tmp_path, model).failure


def test_an_example_that_is_not_answered_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / EXAMPLE_FILE).write_text('["a", "b"]')

    (warning,) = verdict_of(tmp_path, GaussianNB().fit(X, Y)).warnings

    assert warning.startswith(f"{EXAMPLE_FILE} was not answered: Invalid inputs: ")


def test_trees_with_numbers_of_samples_are_refused(tmp_path: Path) -> None:
    """Until 1.3 a leaf held them; now it holds shares, and reads numbers as such."""
    model = RandomForestClassifier(3).fit(X, Y)
    for tree in model.estimators_:
        tree.tree_.value[:] *= 30
    joblib.dump(model, tmp_path / "model.joblib")

    with pytest.raises(LoadFailed, match="trees that hold numbers of samples"):
        load_model(LoadSpec(tmp_path))


def test_an_algorithm_that_is_gone_is_refused(tmp_path: Path) -> None:
    model = AdaBoostClassifier(n_estimators=2).fit(X, Y)
    model.algorithm = "SAMME.R"
    joblib.dump(model, tmp_path / "model.joblib")

    with pytest.raises(LoadFailed, match=r"SAMME\.R.*It was saved with scikit-learn"):
        load_model(LoadSpec(tmp_path))


def test_bad_rows_stay_the_fault_of_the_client(tmp_path: Path) -> None:
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["a cat", "a dog"], [0, 1])
    joblib.dump(model, tmp_path / "model.joblib")

    with pytest.raises(InvalidInputs):
        load_model(LoadSpec(tmp_path)).predict([1.5])
