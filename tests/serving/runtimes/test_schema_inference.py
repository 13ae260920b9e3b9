"""What models say they take is what they take: every example is asked again, as a request."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, TensorSpec
from serving.runtimes import LoadSpec, Runtime, load_model
from serving.runtimes.json_codec import InstancesDecoder, encode_predictions
from serving.runtimes.schema_inference import EXAMPLE_FILE, infer_model_schema, unknown_schema

X = np.random.default_rng(0).normal(size=(40, 3))
LABELS = np.array(["no", "yes"])[(X[:, 0] > 0).astype(int)]
THIRDS = np.digitize(X[:, 0], [-0.5, 0.5])
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
PEOPLE = pd.DataFrame(
    {
        "age": [3.0, 40, 25, 70] * 5,
        "city": ["x", "y", "z", "y"] * 5,
        "says": ["so it", "no", "yes", "oh"] * 5,
    }
)
ANSWERS = [0, 1, 1, 0] * 5

NUMBERS = (TensorSpec("instances", "FP64", (-1, 3)),)
NAMED = tuple(TensorSpec(name, "FP64", (-1,)) for name in "abc")
CITY = TensorSpec("city", "BYTES", (-1,), classes=("x", "y", "z"))


def people() -> ColumnTransformer:
    return ColumnTransformer(
        [
            ("number", make_pipeline(SimpleImputer(), StandardScaler()), ["age"]),
            ("category", OneHotEncoder(), ["city"]),
            ("text", TfidfVectorizer(), "says"),
        ]
    )


def booster(objective: str, labels: Any, **parameters: Any) -> xgb.Booster:
    matrix = xgb.DMatrix(X, label=labels)
    return xgb.train({"objective": objective, "max_depth": 2, "nthread": 1, **parameters}, matrix, 2)


def loaded(model: Any, folder: Path) -> Runtime:
    joblib.dump(model, folder / "model.joblib")
    return load_model(LoadSpec(folder, "XGBOOST" if isinstance(model, xgb.Booster) else ""))


def asked(runtime: Runtime, schema: ModelSchema) -> Any:
    """What a client gets for the example."""
    batch, _ = InstancesDecoder().decode(
        json.dumps({"instances": [schema.example]}).encode(), runtime.input_format
    )
    return json.loads(encode_predictions(runtime.predict(batch)))["predictions"]


@pytest.mark.parametrize(
    ("model", "inputs", "output"),
    [
        (LogisticRegression().fit(X, LABELS), NUMBERS, ("BYTES", (-1,), ("no", "yes"))),
        (LogisticRegression().fit(FRAME, THIRDS), NAMED, ("INT64", (-1,), (0, 1, 2))),
        (LinearRegression().fit(X, X[:, :2]), NUMBERS, ("FP64", (-1, 2), ())),
        (KMeans(2, n_init=1).fit(X), NUMBERS, ("INT32", (-1,), ())),
        (
            MultiOutputClassifier(LogisticRegression()).fit(X, np.c_[THIRDS, THIRDS]),
            NUMBERS,
            ("INT64", (-1, 2), ()),
        ),
        (
            make_pipeline(people(), LogisticRegression()).fit(PEOPLE, ANSWERS),
            (TensorSpec("age", "FP64", (-1,)), CITY, TensorSpec("says", "BYTES", (-1,))),
            ("INT64", (-1,), (0, 1)),
        ),
        (
            make_pipeline(
                ColumnTransformer([("code", OrdinalEncoder(), [1])], remainder="passthrough"),
                LogisticRegression(),
            ).fit(PEOPLE[["age", "city"]].to_numpy().tolist(), ANSWERS),
            (
                TensorSpec("column-0", "FP64", (-1,)),
                TensorSpec("column-1", "BYTES", (-1,), classes=("x", "y", "z")),
            ),
            ("INT64", (-1,), (0, 1)),
        ),
        (
            HistGradientBoostingClassifier(categorical_features=["city"], max_iter=2).fit(
                PEOPLE[["age", "city"]].astype({"city": "category"}), ANSWERS
            ),
            (TensorSpec("age", "FP64", (-1,)), CITY),
            ("INT64", (-1,), (0, 1)),
        ),
        (
            make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(PEOPLE["says"], ANSWERS),
            (TensorSpec("instances", "BYTES", (-1,)),),
            ("INT64", (-1,), (0, 1)),
        ),
        (
            make_pipeline(DictVectorizer(), LinearRegression()).fit(
                [{"a": 1, "b": "x"}, {"b": "y"}], [1.0, 2]
            ),
            (TensorSpec("instances", "BYTES", None),),
            ("FP64", (-1,), ()),
        ),
        (xgb.XGBClassifier(n_estimators=2).fit(FRAME, THIRDS), NAMED, ("INT64", (-1,), (0, 1, 2))),
        (xgb.XGBRegressor(n_estimators=2).fit(X, X[:, 0]), NUMBERS, ("FP32", (-1,), ())),
        (booster("binary:logistic", THIRDS > 0), NUMBERS, ("FP32", (-1,), ())),
        (booster("multi:softprob", THIRDS, num_class=3), NUMBERS, ("FP32", (-1, 3), (0, 1, 2))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_tells_its_inputs_its_output_and_an_instance_that_predicts(
    model: Any, inputs: tuple[TensorSpec, ...], output: tuple[Any, ...], tmp_path: Path
) -> None:
    runtime = loaded(model, tmp_path)

    schema = infer_model_schema(runtime, tmp_path)

    [signature] = schema.signatures.values()
    [found] = signature.outputs
    assert signature.inputs == inputs
    assert (found.name, found.datatype, found.shape, found.classes) == ("predictions", *output)
    assert asked(runtime, schema) == [schema.answer]


class Shouting(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A user's own estimator, which says nothing of what it takes."""

    def predict(self, instances: Any) -> list[str]:
        return [instance["word"].upper() for instance in instances]


def test_an_example_that_comes_with_a_model_is_the_one(tmp_path: Path) -> None:
    (tmp_path / EXAMPLE_FILE).write_text('{"word": "so"}')
    runtime = loaded(Shouting(), tmp_path)

    schema = infer_model_schema(runtime, tmp_path)

    assert (schema.example, schema.answer, schema.strict) == ({"word": "so"}, "SO", False)
    assert asked(runtime, schema) == ["SO"]


@pytest.mark.parametrize("text", ["[1.0, 2.0]", "no JSON", "[" * 5000])
def test_an_example_that_is_none_is_passed_over(text: str, tmp_path: Path) -> None:
    (tmp_path / EXAMPLE_FILE).write_text(text)
    runtime = loaded(LogisticRegression().fit(X, LABELS), tmp_path)

    assert asked(runtime, infer_model_schema(runtime, tmp_path)) == ["yes"]


def test_nothing_is_told_of_a_model_that_nobody_knows_how_to_ask(tmp_path: Path) -> None:
    schema = infer_model_schema(loaded(Shouting(), tmp_path), tmp_path)

    assert (schema.example, schema.answer, schema.strict) == (None, None, False)
    assert schema.signatures == unknown_schema("").signatures


def test_a_model_that_breaks_when_it_is_looked_at_can_still_be_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = loaded(LogisticRegression().fit(X, LABELS), tmp_path)
    monkeypatch.setattr(runtime, "infer_schema", lambda _: 1 / 0)

    assert infer_model_schema(runtime, tmp_path) == unknown_schema("sklearn")


CODE = """
    asked = []

    class Predictor:
        @classmethod
        def from_path(cls, model_dir):
            return cls()
        def predict(self, instances, **kwargs):
            asked.append(instances)
            return [{"sum": instance["left"] + instance["right"][0]} for instance in instances]
"""


@pytest.mark.parametrize("example", [None, {"left": 1, "right": [2.5]}])
def test_a_custom_routine_is_asked_nothing_but_its_own_example(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what its code does with what was made up."""
    (tmp_path / "described.py").write_text(textwrap.dedent(CODE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "described", raising=False)
    if example:
        (tmp_path / EXAMPLE_FILE).write_text(json.dumps(example))
    runtime = load_model(LoadSpec(tmp_path, prediction_class="described.Predictor"))

    schema = infer_model_schema(runtime, tmp_path)

    import described  # type: ignore[import-not-found]

    assert described.asked == [[example]] * bool(example)
    assert not schema.strict
    assert schema.answer == ({"sum": 3.5} if example else None)
    right = (TensorSpec("left", "INT64", (-1,)), TensorSpec("right", "FP64", (-1, 1)))
    assert schema.signatures[DEFAULT_SIGNATURE].inputs == (
        right if example else (TensorSpec("instances", "BYTES", None),)
    )


class Leaving(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A user's own estimator, which ends its process when it does not know a row."""

    n_features_in_ = 2

    def predict(self, _: Any) -> list[str]:
        raise SystemExit


def test_code_of_a_user_ends_nothing_by_what_was_made_up(tmp_path: Path) -> None:
    schema = infer_model_schema(loaded(Leaving(), tmp_path), tmp_path)

    assert (schema.example, schema.signatures[DEFAULT_SIGNATURE].inputs[0].datatype) == (None, "FP64")


def test_labels_that_cannot_be_sent_cost_details_alone(tmp_path: Path) -> None:
    """Text that UTF-8 cannot carry is no reason not to serve the model."""
    model = LogisticRegression().fit(X, LABELS)
    model.classes_ = np.array(["\ud800", "yes"])
    runtime = loaded(model, tmp_path)

    assert infer_model_schema(runtime, tmp_path) == unknown_schema("sklearn")
