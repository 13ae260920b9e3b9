"""Real models, asked with tensors made of the example that their schema has: the answer is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from serving.model_schema import TensorSpec
from serving.node.codecs import ServedModel
from serving.node.codecs.tensor_mapping import batch_to_tensors, tensors_to_batch
from serving.runtimes import LoadSpec, load_model
from serving.runtimes.json_codec import InstancesDecoder
from serving.runtimes.schema_inference import infer_model_schema

# What loading a model sets for its process, pytest resets for each test.
pytestmark = pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")

ROWS = np.random.default_rng(0).normal(size=(40, 2)).round(2)
LABELS = np.where(ROWS[:, 0] > 0, "yes", "no")
MIXED = pd.DataFrame({"city": ["Rom", "Wien"] * 20, "rooms": ROWS[:, 0]})


def mixed(city: Any, rooms: Any) -> Any:
    steps = [("c", OneHotEncoder(handle_unknown="ignore"), [city]), ("n", StandardScaler(), [rooms])]
    return make_pipeline(ColumnTransformer(steps), LogisticRegression())


def estimators() -> dict[str, Any]:
    """One for each way in which rows are taken."""
    named = pd.DataFrame(ROWS, columns=["a", "b"])
    return {
        "numbers": LogisticRegression().fit(ROWS, LABELS),
        "named numbers": LogisticRegression().fit(named, LABELS),
        "mixed": mixed("city", "rooms").fit(MIXED, LABELS),
        "mixed without names": mixed(0, 1).fit(MIXED.to_numpy(object), LABELS),
        "one column": make_pipeline(
            ColumnTransformer([("c", OneHotEncoder(), ["city"])]), LogisticRegression()
        ).fit(MIXED[["city"]], LABELS),
        "texts": make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(list(LABELS), LABELS),
        "xgboost": xgb.XGBRegressor(n_estimators=2).fit(named, ROWS[:, 0]),
    }


KINDS = ("numbers", "named numbers", "mixed", "mixed without names", "one column", "texts", "xgboost")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServedModel]:
    folder = tmp_path_factory.mktemp("estimators")
    found = {}
    for kind, estimator in estimators().items():
        place = folder / kind
        place.mkdir()
        joblib.dump(estimator, place / "model.joblib")
        found[kind] = _model(place, "XGBOOST" if kind == "xgboost" else "SCIKIT_LEARN")
    return found


def _model(folder: Path, framework: str) -> ServedModel:
    runtime = load_model(LoadSpec(folder, framework))
    return ServedModel(runtime, infer_model_schema(runtime, folder), InstancesDecoder())


def column(tensor: TensorSpec, values: list[Any]) -> NDArray[Any]:
    if tensor.datatype == "BYTES":
        return np.array([value.encode() for value in values], object)
    return np.array(values, np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_is_answered_alike_by_its_inputs_names(known: dict[str, ServedModel], kind: str) -> None:
    """Two rows of it, each input a tensor of its own, if there are several."""
    model = known[kind]
    inputs = model.schema.signatures[model.schema.default].inputs
    example = model.schema.example
    assert example is not None
    values = (
        list(example.values()) if isinstance(example, dict) else example if len(inputs) > 1 else [example]
    )
    tensors = {one.name: column(one, [value] * 2) for one, value in zip(inputs, values, strict=True)}

    batch, parameters = tensors_to_batch(model, tensors)
    answer = batch_to_tensors(model.runtime.predict(batch, **parameters))["predictions"].tolist()

    expected = model.schema.answer
    assert answer == ([expected.encode()] * 2 if isinstance(expected, str) else pytest.approx([expected] * 2))


@pytest.mark.parametrize("kind", ["numbers", "named numbers", "xgboost"])
def test_numbers_may_come_in_one_tensor_of_any_name(known: dict[str, ServedModel], kind: str) -> None:
    """And are answered as the model itself answers them."""
    model = known[kind]

    batch, _ = tensors_to_batch(model, {"input-0": ROWS})

    assert batch is ROWS
    assert len(batch_to_tensors(model.runtime.predict(batch))["predictions"]) == len(ROWS)
