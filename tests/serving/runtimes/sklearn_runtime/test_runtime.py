from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import Birch, KMeans
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import NMF, PCA
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    BaggingRegressor,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingRegressor,
)
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, LocalOutlierFactor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from xgboost import XGBClassifier

from serving.errors import InvalidInputs
from serving.runtimes import ArrayFormat, LoadSpec, RowsFormat
from serving.runtimes.instance_batch import count_rows
from serving.runtimes.sklearn_runtime.runtime import load_model
from tests.serving.runtimes.sklearn_runtime.estimators import (
    FRAME,
    LABELS,
    NAMES,
    PEOPLE,
    SENTIMENT,
    TEXTS,
    VALUES,
    X_INT,
    X_NAN,
    X,
    answers,
    assert_same_bits,
    clean,
    served,
)

# Estimator, exact, mergeable; all of them take one array.
NUMERIC: dict[str, tuple[Callable[[], Any], bool, bool]] = {
    "logistic": (lambda: LogisticRegression().fit(X, LABELS), True, True),
    "logistic, string labels": (lambda: LogisticRegression().fit(X, NAMES), True, True),
    "linear": (lambda: LinearRegression().fit(X, VALUES), False, True),
    "linear, two targets": (lambda: LinearRegression().fit(X, np.c_[VALUES, X[:, 0]]), False, True),
    "ridge": (lambda: Ridge().fit(X, VALUES), False, True),
    "tree": (lambda: DecisionTreeRegressor().fit(X, VALUES), True, True),
    "forest": (lambda: RandomForestClassifier(10, random_state=0, n_jobs=2).fit(X, NAMES), True, True),
    "forest regressor": (lambda: RandomForestRegressor(10, random_state=0).fit(X, VALUES), True, True),
    "extra trees, two targets": (
        lambda: ExtraTreesRegressor(5, random_state=0).fit(X, np.c_[VALUES, X[:, 0]]),
        True,
        True,
    ),
    "gradient boosting": (lambda: GradientBoostingClassifier(n_estimators=10).fit(X, LABELS), True, True),
    "gradient boosting regressor": (
        lambda: GradientBoostingRegressor(n_estimators=10).fit(X, VALUES),
        True,
        True,
    ),
    "hist": (lambda: HistGradientBoostingClassifier(max_iter=10).fit(X, LABELS), True, True),
    "hist regressor": (lambda: HistGradientBoostingRegressor(max_iter=10).fit(X, VALUES), True, True),
    "svc": (lambda: SVC().fit(X, LABELS), True, True),
    "svr": (lambda: SVR().fit(X, VALUES), False, True),
    "neighbours": (lambda: KNeighborsClassifier().fit(X, NAMES), True, True),
    "network": (
        lambda: MLPRegressor(hidden_layer_sizes=(8,), max_iter=2000, tol=1e-2, random_state=0).fit(X, VALUES),
        False,
        True,
    ),
    "bayes": (lambda: GaussianNB().fit(X, LABELS), True, True),
    "kmeans": (lambda: KMeans(3, random_state=0, n_init=1).fit(X), True, True),
    "birch": (lambda: Birch(n_clusters=3).fit(X), True, True),
    "mixture": (lambda: GaussianMixture(2, random_state=0).fit(X), True, True),
    "isolation forest": (lambda: IsolationForest(n_estimators=10, random_state=0).fit(X), True, True),
    "gaussian process": (lambda: GaussianProcessRegressor(alpha=1e-3).fit(X, VALUES), False, True),
    "multi-output": (
        lambda: MultiOutputClassifier(LogisticRegression()).fit(X, np.c_[LABELS, 1 - LABELS]),
        True,
        True,
    ),
    "scaled": (lambda: make_pipeline(StandardScaler(), LogisticRegression()).fit(X, NAMES), True, True),
    "scaled, reduced": (
        lambda: make_pipeline(MinMaxScaler(), "passthrough", PCA(2), Ridge()).fit(X, VALUES),
        False,
        True,
    ),
    "imputed": (lambda: make_pipeline(SimpleImputer(), LinearRegression()).fit(X_NAN, VALUES), False, True),
    "searched": (
        lambda: GridSearchCV(DecisionTreeClassifier(), {"max_depth": [2, 3]}, cv=2).fit(X, LABELS),
        True,
        True,
    ),
    "calibrated": (lambda: CalibratedClassifierCV(GaussianNB(), cv=2).fit(X, LABELS), True, True),
    "calibrated, isotonic": (
        lambda: CalibratedClassifierCV(GaussianNB(), method="isotonic", cv=2).fit(X, LABELS),
        True,
        True,
    ),
    "voting": (
        lambda: VotingRegressor([("a", LinearRegression()), ("b", DecisionTreeRegressor())]).fit(X, VALUES),
        False,
        True,
    ),
    "stacking": (
        lambda: StackingClassifier([("a", GaussianNB()), ("b", DecisionTreeClassifier())], cv=2).fit(
            X, LABELS
        ),
        True,
        True,
    ),
    "bagging": (lambda: BaggingRegressor(n_estimators=3, random_state=0).fit(X, VALUES), False, True),
    "target": (
        lambda: TransformedTargetRegressor(LinearRegression(), transformer=StandardScaler()).fit(X, VALUES),
        False,
        True,
    ),
    "outliers": (lambda: LocalOutlierFactor(novelty=True).fit(X), True, False),
    "factors": (
        lambda: make_pipeline(NMF(2, init="random", random_state=0, max_iter=2000), Ridge()).fit(
            abs(X), VALUES
        ),
        False,
        False,
    ),
}


@pytest.mark.parametrize("name", NUMERIC)
def test_numeric_models_take_an_array_and_answer_to_the_bit(name: str, tmp_path: Path) -> None:
    """Known numeric models get one array and give what predict(list) gives, bit for bit."""
    make, exact, mergeable = NUMERIC[name]
    estimator = make()
    runtime = served(estimator, tmp_path)
    rows = (abs(X) if name == "factors" else X).tolist()
    whole = (abs(X_INT) if name == "factors" else X_INT).tolist()

    form = runtime.input_format({})
    assert isinstance(form, ArrayFormat) and form.width == 4 and not form.allows_objects
    for instances in (rows[:1], rows, whole[:1], whole):
        assert_same_bits(answers(runtime, instances), estimator.predict(instances))
    assert (runtime.framework.name, runtime.exact, runtime.mergeable) == ("SCIKIT_LEARN", exact, mergeable)
    assert count_rows(runtime.predict(runtime.make_synthetic_rows(7))) == 7 if name != "factors" else True


@pytest.mark.parametrize(
    "name", [name for name, (_, exact, mergeable) in NUMERIC.items() if exact and mergeable]
)
def test_exact_models_answer_alike_in_any_company(name: str, tmp_path: Path) -> None:
    """Where regrouping must not change a bit, rows one by one give what they give together."""
    runtime = served(NUMERIC[name][0](), tmp_path)

    together = np.asarray(runtime.predict(X))
    alone = np.concatenate([np.asarray(runtime.predict(row[None])) for row in X])

    assert_same_bits(together, alone)


@pytest.mark.parametrize(
    ("estimator", "nullable"),
    [
        (HistGradientBoostingClassifier(max_iter=10).fit(X_NAN, LABELS), True),
        (make_pipeline(SimpleImputer(), LinearRegression()).fit(X_NAN, VALUES), True),
        (
            GridSearchCV(HistGradientBoostingRegressor(max_iter=5), {"max_depth": [2]}, cv=2).fit(
                X_NAN, VALUES
            ),
            True,
        ),
        (LogisticRegression().fit(X, LABELS), False),
        (SVC().fit(X, LABELS), False),
    ],
)
def test_null_is_a_value_where_the_estimator_says_so(estimator: Any, nullable: bool, tmp_path: Path) -> None:
    """The estimator's own tags decide whether null is read as NaN or refused."""
    runtime = served(estimator, tmp_path)
    form = runtime.input_format({})

    assert isinstance(form, ArrayFormat) and form.nullable is nullable
    if nullable:
        assert_same_bits(answers(runtime, clean(X_NAN)), estimator.predict(X_NAN))
    else:
        with pytest.raises(InvalidInputs, match="Instance 0, value 1 is null"):
            answers(runtime, [[1.0, None, 0.0, 0.0]])


def test_nan_the_last_step_refuses_is_the_clients_fault(tmp_path: Path) -> None:
    """A scaler lets NaN through; the sentence of the step that refuses it reaches the client."""
    runtime = served(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, LABELS), tmp_path)

    with pytest.raises(InvalidInputs, match="Input X contains NaN"):
        answers(runtime, [[1.0, None, 0.0, 0.0]])


@given(
    rows=st.lists(
        st.lists(st.one_of(st.integers(-(2**40), 2**40), st.floats(-1e30, 1e30)), min_size=4, max_size=4),
        min_size=1,
        max_size=40,
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_numbers_give_the_librarys_answer(rows: list[list[float]], tmp_path: Path) -> None:
    """Integers, floats and mixtures of them mean to the array what they mean to predict(list)."""
    estimator = DecisionTreeRegressor(random_state=0).fit(X, VALUES)
    if not (tmp_path / "model.joblib").exists():
        joblib.dump(estimator, tmp_path / "model.joblib")
    runtime = load_model(LoadSpec(tmp_path))

    assert_same_bits(answers(runtime, rows), estimator.predict(rows))


def test_a_model_with_column_names_takes_lists_and_objects(tmp_path: Path) -> None:
    """Lists are answered as predict(list), objects as predict(DataFrame), in any order of keys."""
    estimator = make_pipeline(StandardScaler(), Ridge()).fit(FRAME, VALUES)
    runtime = served(estimator, tmp_path)
    objects = [dict(reversed(row.items())) for row in FRAME.to_dict("records")]

    assert runtime.input_format({}) == ArrayFormat(4, nullable=True, allows_objects=True)
    assert runtime.mergeable
    assert_same_bits(answers(runtime, X.tolist()), estimator.predict(X))
    assert_same_bits(answers(runtime, objects), estimator.predict(FRAME))


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ([{"age": 1, "city": "x"}, {"age": 1}], "Instance 1 has no 'city'. The model takes 'age', 'city'"),
        (
            [{"age": 1, "city": "x", "zip": 2}],
            "Instance 0 has an unknown 'zip'. The model takes 'age', 'city'",
        ),
        ([{"age": 1, "city": "x"}, [1, "x"]], "Instance 1 is a list, but instance 0 is an object"),
        ([[1, "x"], [1]], "Instance 1 has 1 values; the model expects 2: 'age', 'city'"),
        (["x"], "Instance 0 is a string; expected an object or a list with 'age', 'city'"),
        ([{"age": "old", "city": "x"}], "could not convert string to float: 'old'"),
    ],
)
def test_rows_that_do_not_fit_the_columns_are_named(
    instances: list[Any], message: str, tmp_path: Path
) -> None:
    """A missing or unknown column is an error that names the instance, the column and what is known."""
    runtime = served(people(), tmp_path)

    with pytest.raises(InvalidInputs) as caught:
        answers(runtime, instances)

    assert message in caught.value.detail


def people() -> Any:
    columns = ColumnTransformer(
        [("n", StandardScaler(), ["age"]), ("c", OneHotEncoder(handle_unknown="ignore"), ["city"])]
    )
    return make_pipeline(columns, LogisticRegression()).fit(PEOPLE, [0, 1, 0, 1] * 5)


def test_columns_picked_by_name_get_a_data_frame(tmp_path: Path) -> None:
    """A ColumnTransformer over a data frame with strings is served from objects, and from lists too."""
    estimator = people()
    runtime = served(estimator, tmp_path)

    assert runtime.input_format({}) == RowsFormat()
    assert not runtime.mergeable
    assert runtime.make_synthetic_rows(3) is None
    assert_same_bits(answers(runtime, PEOPLE.to_dict("records")), estimator.predict(PEOPLE))
    assert_same_bits(answers(runtime, PEOPLE.values.tolist()), estimator.predict(PEOPLE))


def test_objects_need_a_model_with_column_names(tmp_path: Path) -> None:
    """A model trained on an array says that it takes lists."""
    runtime = served(LinearRegression().fit(X, VALUES), tmp_path)

    with pytest.raises(InvalidInputs, match="without column names"):
        runtime.predict([{"a": 1}])


def test_a_value_that_a_step_cannot_take_is_the_clients_fault(tmp_path: Path) -> None:
    """Also where the library stumbles over it without having checked it."""
    said = pd.DataFrame({"age": [3, 40] * 8, "said": TEXTS})
    columns = ColumnTransformer([("words", TfidfVectorizer(), "said")], remainder="passthrough")
    runtime = served(make_pipeline(columns, LogisticRegression()).fit(said, SENTIMENT), tmp_path)

    with pytest.raises(InvalidInputs, match="A value of the instances is an object"):
        answers(runtime, [{"age": 3, "said": {}}])


def test_text_pipelines_take_strings(tmp_path: Path) -> None:
    """An instance of a text pipeline is a string; anything else is named."""
    estimator = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, SENTIMENT)
    runtime = served(estimator, tmp_path)

    assert runtime.input_format({}) == RowsFormat()
    assert runtime.mergeable
    assert_same_bits(answers(runtime, TEXTS), estimator.predict(TEXTS))
    with pytest.raises(InvalidInputs, match="Instance 1 is a list; the model takes one string per instance"):
        answers(runtime, ["fine", ["not fine"]])


@pytest.mark.parametrize(
    ("estimator", "instances"),
    [
        (make_pipeline(DictVectorizer(), Ridge()).fit([{"a": 1}, {"b": 2}], [1, 2]), [{"a": 3}, {"b": 1}]),
        (make_pipeline(OneHotEncoder(), Ridge()).fit([["a", "b"], ["c", "d"]], [1, 2]), [["a", "d"]]),
        (
            make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(), Ridge()).fit(
                np.array([["a"], ["b"]], object), [1, 2]
            ),
            [["b"], ["a"]],
        ),
        (
            make_pipeline(FunctionTransformer(np.cumsum, kw_args={"axis": 0}), Ridge()).fit(X, VALUES),
            X[:5].tolist(),
        ),
        (
            make_pipeline(ColumnTransformer([("s", StandardScaler(), [0, 1])]), Ridge()).fit(X, VALUES),
            X.tolist(),
        ),
    ],
)
def test_other_models_get_the_plain_rows(estimator: Any, instances: list[Any], tmp_path: Path) -> None:
    """What is not known to be numeric gets the rows of the request itself, never merged."""
    runtime = served(estimator, tmp_path)

    assert runtime.input_format({}) == RowsFormat()
    assert not runtime.mergeable
    assert_same_bits(answers(runtime, instances), estimator.predict(instances))


def test_models_that_guess_are_not_merged(tmp_path: Path) -> None:
    """A dummy's answer depends on how often it was asked."""
    runtime = served(DummyClassifier(strategy="stratified").fit(X, LABELS), tmp_path)

    assert not runtime.mergeable


def test_xgboost_may_be_the_last_step(tmp_path: Path) -> None:
    """A pipeline of scikit-learn that ends in XGBoost is as numeric as any."""
    estimator = make_pipeline(StandardScaler(), XGBClassifier(n_estimators=3, n_jobs=2)).fit(X, LABELS)
    runtime = served(estimator, tmp_path)

    assert runtime.input_format({}) == ArrayFormat(4, nullable=True)
    assert (runtime.framework.name, runtime.mergeable, runtime.exact) == ("SCIKIT_LEARN", True, True)
    assert_same_bits(answers(runtime, X.tolist()), estimator.predict(X.tolist()))


def test_an_only_step_of_xgboost_needs_its_names(tmp_path: Path) -> None:
    """XGBoost refuses rows without names where scikit-learn would take them: it gets a data frame."""
    estimator = make_pipeline(XGBClassifier(n_estimators=3)).fit(FRAME, LABELS)
    runtime = served(estimator, tmp_path)

    assert runtime.input_format({}) == RowsFormat()
    assert_same_bits(answers(runtime, X.tolist()), estimator.predict(FRAME))
    assert_same_bits(answers(runtime, FRAME.to_dict("records")), estimator.predict(FRAME))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e39])
@pytest.mark.parametrize("estimator", [LogisticRegression(), RandomForestClassifier(3, random_state=0)])
def test_values_that_are_not_finite_are_treated_as_by_the_library(
    tmp_path: Path, estimator: Any, value: float
) -> None:
    """Sparing the library its search for NaN and infinities never changes what comes out."""
    model = clone(estimator).fit([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]], [0, 1, 1])
    joblib.dump(model, tmp_path / "model.joblib")
    rows = np.array([[0.5, value]])
    try:
        with config_context(assume_finite=False):  # another runtime may have set it in this thread
            wanted, refusal = model.predict(rows).tolist(), ""
    except ValueError as error:
        wanted, refusal = None, str(error).splitlines()[0]

    runtime = load_model(LoadSpec(tmp_path))

    if refusal:
        with pytest.raises(InvalidInputs, match=re.escape(refusal)):
            runtime.predict(rows)
    else:
        assert np.array(runtime.predict(rows)).tolist() == wanted
    assert count_rows(runtime.predict(np.array([[0.5, 0.5]]))) == 1
