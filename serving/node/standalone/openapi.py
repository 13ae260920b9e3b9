"""The OpenAPI document of a standalone node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from serving.http_headers import JSON
from serving.model_schema import ModelSchema
from serving.openapi import prediction_operations
from serving.openapi.document import (
    ANY_ERRORS,
    OBJECT,
    STRING,
    OpenApiOperation,
    build_document,
    schema_ref,
    to_path_template,
)

Json = dict[str, Any]

# One of the names that its model answers to, for the examples.
PROJECT = "local"
NAME = f"projects/{PROJECT}/models/model/versions/v1"

_DESCRIPTION = "One version of one model, which answers to any name, by any protocol."
_PREDICT = "projects.predict"
_MODEL = "/v1/projects/{project}/models/{model}"
_TENSORFLOW, _INFERENCE = "tensorflow.serving.", "inference.GRPCInferenceService."


def _make_operation(
    summary: str, gives: Json, *, refusals: tuple[int, ...] = (*ANY_ERRORS, 503)
) -> OpenApiOperation:
    return OpenApiOperation(summary, "Server", {JSON: gives}, refusals=refusals)


_OWN_OPERATIONS = {
    "/healthz": ("healthz", _make_operation("Whether the node is live", OBJECT, refusals=ANY_ERRORS)),
    "/readyz": ("readyz", _make_operation("Whether the model is loaded", OBJECT)),
    "/stats": ("stats", _make_operation("Counts since the start", OBJECT, refusals=ANY_ERRORS)),
    "/openapi.json": ("openapi", _make_operation("This document", OBJECT, refusals=ANY_ERRORS)),
    "/docs": (
        "docs",
        OpenApiOperation(
            "A page to try predictions", "Server", {"text/html; charset=utf-8": STRING}, refusals=ANY_ERRORS
        ),
    ),
    f"{_MODEL}:schema": (
        "models.schema",
        _make_operation("What the model takes and answers", schema_ref("Schema")),
    ),
    f"{_MODEL}/versions/{{version}}:schema": (
        "versions.schema",
        _make_operation("What the model takes and answers", schema_ref("Schema")),
    ),
}
# The paths of calls about the model and the server, each with its method.
METADATA_PATHS: tuple[tuple[str, str], ...] = (
    *(
        (f"/v1/models/{{model}}{version}{suffix}", f"{_TENSORFLOW}{method}")
        for version in ("", "/versions/{version}", "/labels/{label}")
        for suffix, method in (
            ("", "ModelService.GetModelStatus"),
            ("/metadata", "PredictionService.GetModelMetadata"),
        )
    ),
    ("/v2", f"{_INFERENCE}ServerMetadata"),
    ("/v2/health/live", f"{_INFERENCE}ServerLive"),
    ("/v2/health/ready", f"{_INFERENCE}ServerReady"),
    *(
        (f"/v2/models/{model}{version}{suffix}", f"{_INFERENCE}{method}")
        for model in ("{model}", "projects/{project}/models/{model}")
        for version in ("", "/versions/{version}")
        for suffix, method in (("", "ModelMetadata"), ("/ready", "ModelReady"))
    ),
)


def build_node_document(schema: ModelSchema | None, *, legacy_model_errors: bool) -> Json:
    """The document; `schema` is None while the model is being loaded.

    `legacy_model_errors`: errors of the model have AI Platform's form.
    """
    paths: dict[str, Json] = {}
    counted: Counter[str] = Counter()
    for name, verb, path, operation in _list_operations(schema):
        described = _without_auth_errors(operation).to_json(
            f"{name}.{counted[name]}" if counted[name] else name, path
        )
        if legacy_model_errors and name == _PREDICT:
            described = prediction_operations.add_legacy_errors(described)
        paths[to_path_template(path)] = {verb: described}
        counted[name] += 1
    if schema is not None:
        described = _without_auth_errors(
            prediction_operations.build_predict_operation(schema, "the model")
        ).to_json("predict", "")
        extensions = {"x-version": NAME, "x-schema": f"/v1/{NAME}:schema"}
        described = prediction_operations.add_example(described, schema)
        if legacy_model_errors:
            described = prediction_operations.add_legacy_errors(described)
        paths[f"/v1/{NAME}:predict"] = {"post": {**described, **extensions}}
    document = build_document(
        "Pilotlight node", _DESCRIPTION, paths, prediction_operations.COMPONENTS, tokens=False
    )
    document["info"]["x-default-project"] = PROJECT
    return document


def _without_auth_errors(operation: OpenApiOperation) -> OpenApiOperation:
    """A standalone node checks no tokens."""
    refusals = tuple(status for status in operation.refusals if status not in (401, 403))
    return replace(operation, refusals=refusals)


def _list_operations(schema: ModelSchema | None) -> Iterator[tuple[str, str, str, OpenApiOperation]]:
    """Each operation with its id, its verb and its path."""
    for path, (name, operation) in _OWN_OPERATIONS.items():
        yield name, "get", path, operation
    predict = (
        prediction_operations.PREDICT_OPERATION
        if schema is None
        else prediction_operations.build_predict_operation(schema, "the model")
    )
    for version in ("", "/versions/{version}"):
        yield _PREDICT, "post", f"{_MODEL}{version}:predict", predict
    operations = prediction_operations.OPERATIONS_BY_METHOD
    for version in ("", "/versions/{version}", "/labels/{label}"):
        for verb in ("Predict", "Classify", "Regress"):
            name = f"{_TENSORFLOW}PredictionService.{verb}"
            yield name, "post", f"/v1/models/{{model}}{version}:{verb.lower()}", operations[name]
    for path, name in METADATA_PATHS:
        yield name, "get", path, operations[name]
    for model in ("{model}", "projects/{project}/models/{model}"):
        for version in ("", "/versions/{version}"):
            name = f"{_INFERENCE}ModelInfer"
            yield name, "post", f"/v2/models/{model}{version}/infer", operations[name]
