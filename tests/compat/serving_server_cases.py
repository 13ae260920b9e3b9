"""The cases of TensorFlow Serving's `model_servers` as requests: what is sent, and what comes back.

Those of http_rest_api_handler_test.cc and its like over HTTP, those of tensorflow_model_server_test.py and
get_model_status_impl_test.cc over both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.compat import serving_models as models

VERSION = 123
LABEL, NO_LABEL = "version_label", "version_nonexistent"
MOST_UINT64 = (1 << 64) - 1


@dataclass(frozen=True)
class Request:
    """One over HTTP, by the name of its test; `differs` is our own status where it is another."""

    name: str
    method: str
    path: str
    body: str
    status: int
    answer: Any = None
    differs: int = 0


@dataclass(frozen=True)
class Call:
    """One over gRPC: `fields` are those of the request, `told` what the answer is to have, by path."""

    name: str
    rpc: str
    fields: Mapping[str, Any]
    told: Mapping[str, Any] = field(default_factory=dict)
    code: str = "OK"


def requests(model: str) -> Iterator[Request]:
    """Over HTTP; `model` is half_plus_two, of either TensorFlow."""
    yield from _paths()
    yield Request("testPrometheusEndpoint", "GET", "/monitoring/prometheus/metrics", "", 200)
    yield from _errors(model)
    yield from _answers(model)


def _paths() -> Iterator[Request]:
    for path in ("/statuspage", "/index"):
        yield Request("kPathRegex", "GET", path, "", 404)
    yield Request("kPathRegex", "GET", "/v1/models", "", 400)
    for method, path, differs in (
        ("GET", "/v1/foo", 404),
        ("POST", "/v1/foo", 404),
        ("GET", "/v1/models", 0),
        ("GET", "/v1/models/debug/model_name", 0),
        ("POST", "/v1/models", 0),
        ("GET", "/v1/models/foo:predict", 0),
        ("GET", "/v1/models/foo/version/50:predict", 0),
        ("POST", "/v1/models/foo/version/50:regress", 0),
        ("POST", "/v1/models/foo/versions/HELLO:regress", 404),
        ("POST", f"/v1/models/foo/versions/{MOST_UINT64}:regress", 0),
        ("POST", "/v1/models/foo/metadata", 0),
        ("POST", "/v1/models/foo/label/some_label:regress", 0),
        ("POST", "/v1/models/foo/versions/50/labels/some_label:regress", 0),
        ("POST", "/v1/models/foo/versions/some_label:regress", 404),
    ):
        yield Request("UnsupportedApiCalls", method, path, "", 400, differs=differs)


def _errors(model: str) -> Iterator[Request]:
    for path in ("foo", "foo/versions/50", f"{model}99"):
        yield Request(
            "PredictModelNameVersionErrors", "POST", f"/v1/models/{path}:predict", '{"instances": [1]}', 404
        )
    for path, body in (
        (model, ""),
        (model, "instances = [1, 2]"),
        (model, '{"instances": ["x", "y"]}'),
        (f"{model}/labels/{NO_LABEL}", '{"instances": ["x", "y"]}'),
        (model, '{"signature_name": 100}'),
    ):
        yield Request("PredictRequestErrors", "POST", f"/v1/models/{path}:predict", body, 400)


def _answers(model: str) -> Iterator[Request]:
    version, label = f"{model}/versions/{VERSION}", f"{model}/labels/{LABEL}"
    named = '"signature_name": "serving_default"'
    for path, body, answer in (
        (model, '{"instances": [[1.0, 2.0], [3.0, 4.0]]}', {"predictions": [[2.5, 3.0], [3.5, 4.0]]}),
        (version, '{"instances": [1.0, 2.0]}', {"predictions": [2.5, 3.0]}),
        (label, '{"instances": [1.0, 2.0]}', {"predictions": [2.5, 3.0]}),
        (version, f'{{{named}, "instances": [3.0, 4.0]}}', {"predictions": [3.5, 4.0]}),
        (version, f'{{{named}, "inputs": [3.0, 4.0]}}', {"outputs": [3.5, 4.0]}),
    ):
        yield Request("Predict", "POST", f"/v1/models/{path}:predict", body, 200, answer)
    body = '{"signature_name": "regress_x_to_y", "examples": [{"x": 80.0}]}'
    for path in (model, version, label):
        yield Request("Regress", "POST", f"/v1/models/{path}:regress", body, 200, {"results": [42]})
    for path, x, score in ((model, 20.0, 12), (label, 10.0, 7)):
        body = f'{{"signature_name": "classify_x_to_y", "examples": [{{"x": {x}}}]}}'
        yield Request(
            "Classify", "POST", f"/v1/models/{path}:classify", body, 200, {"results": [[["", score]]]}
        )
    status = {
        "version": str(VERSION),
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    for path in (model, version, label):
        yield Request("GetStatus", "GET", f"/v1/models/{path}", "", 200, {"model_version_status": [status]})
    body = '{"signature_name": "classify_x_to_y", "examples": [{"x": 2.0}]}'
    yield Request(
        "testClassifyREST", "POST", f"/v1/models/{model}:classify", body, 200, {"results": [[["", 3.0]]]}
    )
    body = '{"signature_name": "regress_x_to_y", "examples": [{"x": 2.0}]}'
    yield Request("testRegressREST", "POST", f"/v1/models/{model}:regress", body, 200, {"results": [3.0]})
    for name, key, told in (
        ("testPredictREST", "instances", "predictions"),
        ("testPredictColumnarREST", "inputs", "outputs"),
    ):
        body = f'{{"{key}": [2.0, 3.0, 4.0]}}'
        yield Request(name, "POST", f"/v1/models/{model}:predict", body, 200, {told: [3.0, 3.5, 4.0]})
    yield Request(
        "testGetStatusREST", "GET", f"/v1/models/{model}", "", 200, {"model_version_status": [status]}
    )


def calls(model: str) -> Iterator[Call]:
    """Over gRPC, of half_plus_two of either TensorFlow."""
    examples = {
        "example_list": {"examples": [{"features": {"feature": {"x": {"float_list": {"value": [2.0]}}}}}]}
    }
    spec = {"name": model}
    yield Call(
        "testGetModelStatus",
        "ModelService/GetModelStatus",
        {"model_spec": spec},
        {"model_version_status.0.version": VERSION, "model_version_status.0.status.error_code": 0},
    )
    yield Call(
        "testGetModelMetadata",
        "PredictionService/GetModelMetadata",
        {"model_spec": spec, "metadata_field": ["signature_def"]},
        {"model_spec.name": model, "model_spec.version.value": VERSION, "metadata": ["signature_def"]},
    )
    named = {"model_spec.name": model, "model_spec.version.value": VERSION}
    for verb, rpc, path in (
        ("classify", "Classify", "result.classifications.0.classes.0.score"),
        ("regress", "Regress", "result.regressions.0.value"),
    ):
        yield Call(
            f"test{rpc}",
            f"PredictionService/{rpc}",
            {"model_spec": {**spec, "signature_name": f"{verb}_x_to_y"}, "input": examples},
            {**named, "model_spec.signature_name": f"{verb}_x_to_y", path: 3.0},
        )
    yield Call(
        "testMultiInference",
        "PredictionService/MultiInference",
        {
            "tasks": [
                {
                    "model_spec": {**spec, "signature_name": f"{verb}_x_to_y"},
                    "method_name": f"tensorflow/serving/{verb}",
                }
                for verb in ("regress", "classify")
            ],
            "input": examples,
        },
        {
            "results.0.regression_result.regressions.0.value": 3.0,
            "results.1.classification_result.classifications.0.classes.0.score": 3.0,
            "results.0.model_spec.signature_name": "regress_x_to_y",
            "results.1.model_spec.signature_name": "classify_x_to_y",
            "results.0.model_spec.version.value": VERSION,
            "results.1.model_spec.version.value": VERSION,
        },
    )
    yield from predicts("testPredictSavedModel", model, 3.0, filtered=(True, False))


def statuses(model: str) -> Iterator[Call]:
    """Those of get_model_status_impl_test.cc; `model` has the versions 123 and 124."""
    rpc = "ModelService/GetModelStatus"
    yield Call("MissingOrEmptyModelSpecFailure", rpc, {}, code="INVALID_ARGUMENT")
    missing = {"model_spec": {"name": "nonexistent_model"}}
    yield Call("InvalidModelNameFailure", rpc, missing, code="NOT_FOUND")
    version = {"model_spec": {"name": model, "version": VERSION + 2}}
    yield Call("InvalidModelVersionFailure", rpc, version, code="NOT_FOUND")
    both = {f"model_version_status.{place}.status.error_code": 0 for place in (0, 1)}
    newest = {"model_version_status.0.version": VERSION + 1, "model_version_status.1.version": VERSION}
    yield Call("AllVersionsSuccess", rpc, {"model_spec": {"name": model}}, {**both, **newest})
    version = {"model_spec": {"name": model, "version": VERSION}}
    one = {"model_version_status.0.version": VERSION, "model_version_status.0.status.error_message": ""}
    yield Call("SingleVersionSuccess", rpc, version, one)
    yield Call("ModelSpecOverride", rpc, {"model_spec": {"name": model}}, newest)
    yield Call("ModelSpecOverride", rpc, missing, code="NOT_FOUND")


def deployed() -> Iterator[Call]:
    """Predictions of the other models."""
    yield from predicts("testGoodModelConfig", models.HALF_PLUS_TWO, 3.0, filtered=(True, False))
    yield from predicts("testGoodModelConfig", models.HALF_PLUS_THREE, 4.0, filtered=(True, False))
    yield from predicts("testGoodGrpcChannelArgs", models.HALF_PLUS_TWO, 3.0)
    yield from predicts("test_tf_saved_model_save", models.SAVED, 12.0)
    several = "test_tf_saved_model_save_multiple_signatures"
    yield from predicts(several, models.SEVERAL, 2.0, filtered=(True,), signature="custom_signature_key")
    yield from predicts(several, models.SEVERAL, 1.0, filtered=(True,))
    yield from predicts("test_sequential_keras_saved_model_save", models.SEQUENTIAL, 2.0, shape=(1, 1))
    yield from predicts("test_distrat_sequential_keras_saved_model_save", models.MIRRORED, 2.0, shape=(1, 1))


def predicts(
    name: str,
    model: str,
    answer: float,
    *,
    filtered: Sequence[bool] = (False,),
    signature: str = "serving_default",
    shape: Sequence[int] = (1,),
) -> Iterator[Call]:
    """A Predict of x = 2, with an output filter or without."""
    dimensions = [{"size": size} for size in shape]
    tensor = {"dtype": "DT_FLOAT", "float_val": [2.0], "tensor_shape": {"dim": dimensions}}
    fields = {"model_spec": {"name": model, "signature_name": signature}, "inputs": {"x": tensor}}
    told = {
        "outputs.y.dtype": 1,
        "outputs.y.float_val": [answer],
        "model_spec.name": model,
        "model_spec.signature_name": signature,
        "model_spec.version.value": VERSION,
    }
    for chosen in filtered:
        more = {"output_filter": ["y"]} if chosen else {}
        yield Call(name, "PredictionService/Predict", {**fields, **more}, told)
