"""Prediction methods other than predict, and answers of several parts; see runtimes/prediction_methods.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import xgboost as xgb
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from serving.acceleration.candidates import AccelerableRuntime
from serving.errors import InvalidInputs, InvalidOutputs, LoadFailed
from serving.node.codecs import ServedModel
from serving.node.codecs.open_inference_rest import OpenInferenceRestCodec
from serving.node.request import NodeRequest
from serving.openapi import prediction_schemas
from serving.protocols import Dialect, RequestMetadata
from serving.protocols.inference_metadata import render_metadata
from serving.runtimes import ExternalInterpreter, LoadSpec, load_model
from serving.runtimes.json_codec import InstancesDecoder, encode_predictions
from serving.runtimes.schema_inference import infer_model_schema

X = np.random.default_rng(0).random((40, 3))
Y = np.arange(40) % 3
LABELS = np.array(["low", "middle", "high"], object)[Y]
ROWS = X[:4]


OPEN: list[Any] = []


@pytest.fixture(autouse=True)
def ends_predictors() -> Iterator[None]:
    """Those of other processes."""
    yield
    while OPEN:
        OPEN.pop().close()


def loaded(folder: Path, model: Any, method: str = "", external: ExternalInterpreter | None = None) -> Any:
    joblib.dump(model, folder / "model.joblib")
    return opened(LoadSpec(folder, method=method, external=external))


def opened(source: LoadSpec) -> Any:
    runtime = load_model(source)
    if source.external is not None:
        OPEN.append(runtime)
    return runtime


@pytest.mark.parametrize("elsewhere", [False, True])
def test_every_method_answers_as_the_library(elsewhere: bool, tmp_path: Path) -> None:
    """Asked for by the request, here and in another process."""
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, LABELS)
    runtime = loaded(tmp_path, model, external=ExternalInterpreter(sys.executable) if elsewhere else None)

    for name in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        answer = runtime.predict(ROWS, method=name)
        assert np.asarray(answer).tolist() == getattr(model, name)(ROWS).tolist(), name
    with pytest.raises(InvalidInputs, match=r"'transform'; it has predict, predict_proba, predict_log"):
        runtime.predict(ROWS, method="transform")
    with pytest.raises(InvalidInputs, match="called 7"):
        runtime.input_format({"method": 7})


def test_a_version_may_answer_with_another_method(tmp_path: Path) -> None:
    """No faster way is taken for it; a request may still ask for predict."""
    model = LogisticRegression().fit(X, Y)
    runtime = loaded(tmp_path, model, "predict_proba")

    assert runtime.predict(ROWS).tolist() == model.predict_proba(ROWS).tolist()
    assert runtime.predict(ROWS, method="predict").tolist() == model.predict(ROWS).tolist()
    assert isinstance(runtime, AccelerableRuntime)
    assert list(runtime.list_candidates()) == []
    assert not runtime.exact


def test_a_faster_way_is_not_taken_for_a_method_that_is_asked_for(tmp_path: Path) -> None:
    runtime = loaded(tmp_path, LogisticRegression().fit(X, Y))
    runtime.set_fast_path(lambda rows: np.zeros(len(rows)))

    assert runtime.predict(ROWS).tolist() == [0.0] * 4
    assert runtime.predict(ROWS, method="predict_proba").shape == (4, 3)


def test_a_model_without_predict_may_transform(tmp_path: Path) -> None:
    """Sparse answers are rows of numbers; without the setting the message names it."""
    model = make_pipeline(StandardScaler(), PCA(2)).fit(X.round())
    encoder = OneHotEncoder().fit(X.round())

    answer = loaded(tmp_path, model, "transform").predict(X.round().tolist())
    assert answer.tolist() == model.transform(X.round()).tolist()
    answer = loaded(tmp_path, encoder, "transform").predict(X.round().tolist())
    assert answer.tolist() == encoder.transform(X.round()).toarray().tolist()
    with pytest.raises(LoadFailed, match=r"no predict method. It has transform: set predictionMethod"):
        load_model(LoadSpec(tmp_path))


def test_only_estimators_have_methods(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="predictionMethod predict_proba is for models of scikit-learn"):
        load_model(LoadSpec(tmp_path, "CUSTOM", "a.B", method="predict_proba"))
    with pytest.raises(
        LoadFailed, match=r"LinearRegression, which has no predict_proba method. It has predict"
    ):
        loaded(tmp_path, LinearRegression().fit(X, Y), "predict_proba")


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("targets", [Y, X[:, :2]])
def test_pairs_are_answered_row_by_row(elsewhere: bool, targets: Any, tmp_path: Path) -> None:
    """[mean, deviation], of several targets each a list."""
    model = GaussianProcessRegressor(optimizer=None).fit(X, targets)
    runtime = loaded(tmp_path, model, external=ExternalInterpreter(sys.executable) if elsewhere else None)
    mean, deviation = model.predict(ROWS, return_std=True)

    answer = json.loads(encode_predictions(runtime.predict(ROWS, return_std=True)))["predictions"]

    assert answer == [list(pair) for pair in zip(mean.tolist(), deviation.tolist(), strict=True)]


def test_a_pair_of_a_pipeline_and_a_matrix_of_covariances(tmp_path: Path) -> None:
    model = make_pipeline(StandardScaler(), BayesianRidge()).fit(X, Y)
    assert loaded(tmp_path, model).predict(ROWS, return_std=True).shape == (4, 2)
    process = GaussianProcessRegressor(optimizer=None).fit(X, Y)
    mean, covariance = process.predict(ROWS, return_cov=True)

    answer = loaded(tmp_path, process).predict(ROWS, return_cov=True)

    assert answer == [list(pair) for pair in zip(mean.tolist(), covariance.tolist(), strict=True)]


def test_probabilities_of_several_targets_are_lists(tmp_path: Path) -> None:
    model = RandomForestClassifier(3).fit(X, np.column_stack([Y, Y > 0]))
    first, second = model.predict_proba(ROWS)

    answer = loaded(tmp_path, model).predict(ROWS, method="predict_proba")

    assert answer == [[one.tolist(), other.tolist()] for one, other in zip(first, second, strict=True)]


def test_estimators_of_xgboost(tmp_path: Path) -> None:
    model = xgb.XGBClassifier(n_estimators=3).fit(X, Y)
    runtime = loaded(tmp_path, model, "predict_proba")

    assert runtime.predict(ROWS).tolist() == model.predict_proba(ROWS).tolist()
    assert runtime.predict(ROWS, method="predict").tolist() == model.predict(ROWS).tolist()
    assert list(runtime.list_candidates()) == []
    with pytest.raises(InvalidInputs, match="it has predict, predict_proba"):
        runtime.input_format({"method": "transform"})


def test_requests_that_ask_for_a_method_share_no_call() -> None:
    """That answers stay equal was tried for the usual one only."""
    plain, special, usual = NodeRequest(), NodeRequest(), NodeRequest()
    plain.set_inputs([[1.0]], {"output_margin": True})
    special.set_inputs([[1.0]], {"method": "predict_proba"})
    usual.set_inputs([[1.0]], {})

    assert (plain.never_batch, special.never_batch, usual.never_batch) == (False, True, False)


def test_methods_are_told_and_asked_for_as_named_outputs(tmp_path: Path) -> None:
    """In the schema, OpenAPI, and the Open Inference Protocol."""
    model = SVC().fit(X, LABELS)
    runtime = loaded(tmp_path, model)
    schema = infer_model_schema(runtime, tmp_path)

    assert schema.method == "predict"
    assert [(one.name, one.datatype, one.shape) for one in schema.methods] == [
        ("decision_function", "FP64", (-1, 3))
    ]
    assert [one["name"] for one in render_metadata("m", (), schema)["outputs"]] == [
        "predictions",
        "decision_function",
    ]
    assert prediction_schemas.build_request_schema(schema)["properties"]["method"]["enum"] == [
        "predict",
        "decision_function",
    ]

    reader = OpenInferenceRestCodec(
        RequestMetadata(Dialect.INFERENCE, "infer", "m"), ServedModel(runtime, schema, InstancesDecoder())
    )
    inputs = [{"name": "x", "datatype": "FP64", "shape": [4, 3], "data": ROWS.ravel().tolist()}]

    def infer(*outputs: str) -> dict[str, Any]:
        body = json.dumps({"inputs": inputs, "outputs": [{"name": name} for name in outputs]})
        asked = reader.decode_request(body.encode())
        reply = json.loads(
            reader.encode_response(asked, runtime.predict(asked.instances, **asked.parameters)).body
        )
        return {one["name"]: np.reshape(one["data"], one["shape"]).tolist() for one in reply["outputs"]}

    scores, said = model.decision_function(ROWS).tolist(), model.predict(ROWS).tolist()
    assert infer() == {"predictions": said}
    assert infer("decision_function") == {"decision_function": scores}
    assert infer("predictions", "decision_function") == {"predictions": said, "decision_function": scores}
    with pytest.raises(
        InvalidInputs, match="no output predict_proba: the model has predictions, predict, dec"
    ):
        infer("predict_proba")


def test_a_routine_that_answers_too_few_is_told_so(tmp_path: Path) -> None:
    """What it returns beyond that is its own affair."""
    (tmp_path / "few_answers.py").write_text(
        "class Few:\n"
        "    @classmethod\n"
        "    def from_path(cls, folder):\n        return cls()\n"
        "    def predict(self, instances, **kwargs):\n        return [1, 2]\n"
    )
    for external in (None, ExternalInterpreter(sys.executable)):
        source = LoadSpec(tmp_path, "CUSTOM", "few_answers.Few", (tmp_path,), external=external)
        runtime = opened(source)
        assert runtime.predict([1]) == [1, 2]
        with pytest.raises(InvalidOutputs, match="returned 2 predictions for 3 instances"):
            runtime.predict([1, 2, 3])
