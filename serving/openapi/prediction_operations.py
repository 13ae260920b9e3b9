"""Predictions and metadata of models in all protocols: the operations of gateway and node alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.http_headers import BINARY, JSON, NPY
from serving.model_schema import ModelSchema
from serving.openapi import prediction_schemas
from serving.openapi.document import (
    ANY_ERRORS,
    OBJECT,
    PREDICT_ERRORS,
    READ_ERRORS,
    STRING,
    OpenApiOperation,
    array_schema,
    object_schema,
    schema_ref,
)

Json = dict[str, Any]

_AI_PLATFORM, _TENSORFLOW, _INFERENCE = "Predictions", "TensorFlow Serving", "Open Inference Protocol"
_BYTES: Json = {"type": "string", "format": "binary"}
_BOOLEAN: Json = {"type": "boolean"}

_SIGNATURE_NAME: Json = {"type": "string", "description": "The signature of a SavedModel."}
_ROWS_REQUEST = object_schema(
    {"signature_name": _SIGNATURE_NAME, "instances": {"type": "array", "minItems": 1}},
    ["instances"],
    allow_others=True,
)
_ROWS_RESPONSE = object_schema({"predictions": {"type": "array"}}, ["predictions"])
_INFERENCE_TENSOR = {
    "name": STRING,
    "datatype": {
        "type": "string",
        "enum": [
            "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
            "FP16", "FP32", "FP64", "BYTES",
        ],
    },
    "shape": array_schema({"type": "integer", "minimum": 0}),
    "parameters": OBJECT,
    "data": {"type": "array"},
}  # fmt: skip

COMPONENTS: Mapping[str, Json] = {
    "Schema": object_schema(
        {
            "version": STRING,
            "platform": STRING,
            "strict": {
                "type": "boolean",
                "description": "Whether inputs must be as declared; a custom routine may take anything.",
            },
            "defaultSignature": STRING,
            "signatures": {
                "type": "object",
                "additionalProperties": object_schema(
                    {
                        "method": STRING,
                        "inputs": array_schema(schema_ref("Tensor")),
                        "outputs": array_schema(schema_ref("Tensor")),
                    },
                    ["method", "inputs", "outputs"],
                ),
            },
            "method": {
                "type": "string",
                "description": "What of an estimator answers when none is asked for.",
            },
            "methods": array_schema(schema_ref("Tensor")),
            "example": {"description": "An instance that was predicted."},
            "answer": {"description": "Its prediction."},
        },
        ["platform", "strict", "defaultSignature", "signatures"],
    ),
    "Tensor": object_schema(
        {
            "name": STRING,
            "datatype": STRING,
            "shape": {"type": ["array", "null"], "items": {"type": "integer"}},
            "tensor": STRING,
            "classes": {"type": "array"},
        },
        ["name", "datatype"],
    ),
    "ModelStatus": object_schema(
        {
            "model_version_status": array_schema(
                object_schema(
                    {
                        "version": STRING,
                        "state": {
                            "type": "string",
                            "enum": ["UNKNOWN", "START", "LOADING", "AVAILABLE", "UNLOADING", "END"],
                        },
                        "status": object_schema(
                            {"error_code": STRING, "error_message": STRING}, ["error_code", "error_message"]
                        ),
                    },
                    ["version", "state", "status"],
                )
            )
        },
        ["model_version_status"],
    ),
    "InferRequest": object_schema(
        {
            "id": STRING,
            "parameters": OBJECT,
            "inputs": array_schema(object_schema(_INFERENCE_TENSOR, ["name", "datatype", "shape", "data"])),
            "outputs": array_schema(object_schema({"name": STRING, "parameters": OBJECT}, ["name"])),
        },
        ["inputs"],
    ),
    "InferResponse": object_schema(
        {
            "model_name": STRING,
            "model_version": STRING,
            "id": STRING,
            "parameters": OBJECT,
            "outputs": array_schema(object_schema(_INFERENCE_TENSOR, ["name", "datatype", "shape"])),
        },
        ["model_name", "outputs"],
    ),
    "ModelMetadata": object_schema(
        {
            "name": STRING,
            "versions": array_schema(STRING),
            "platform": STRING,
            "inputs": array_schema(schema_ref("MetadataTensor")),
            "outputs": array_schema(schema_ref("MetadataTensor")),
        },
        ["name", "platform", "inputs", "outputs"],
    ),
    "MetadataTensor": object_schema(
        {"name": STRING, "datatype": STRING, "shape": array_schema({"type": "integer"})},
        ["name", "datatype", "shape"],
    ),
}


def _tensorflow_operation(summary: str, takes: Json | None, gives: Json) -> OpenApiOperation:
    return OpenApiOperation(
        summary,
        _TENSORFLOW,
        {JSON: gives},
        {JSON: takes} if takes else None,
        refusals=PREDICT_ERRORS if takes else READ_ERRORS,
        text_errors=True,
    )


def _examples_operation(summary: str, gives: Json) -> OpenApiOperation:
    takes = object_schema(
        {
            "signature_name": _SIGNATURE_NAME,
            "context": OBJECT,
            "examples": {"type": "array", "items": OBJECT},
        },
        ["examples"],
    )
    return _tensorflow_operation(summary, takes, object_schema({"results": gives}, ["results"]))


def _inference_operation(
    summary: str, gives: Json, *, unavailable: bool = False, of_server: bool = False
) -> OpenApiOperation:
    return OpenApiOperation(
        summary,
        _INFERENCE,
        {JSON: gives},
        refusals=ANY_ERRORS if of_server else READ_ERRORS,
        text_errors=True,
        is_public=of_server,
        unavailable_body=gives if unavailable else None,
    )


PREDICT_OPERATION = OpenApiOperation(
    "Predict with a version, or with the default version of a model",
    _AI_PLATFORM,
    {JSON: _ROWS_RESPONSE, NPY: _BYTES, BINARY: _BYTES},
    {JSON: _ROWS_REQUEST, NPY: _BYTES, BINARY: _BYTES},
    refusals=PREDICT_ERRORS,
)
_INFERENCE_SERVICE = "inference.GRPCInferenceService"
_STATISTICS_SCHEMA = object_schema({"model_stats": array_schema(OBJECT)}, ["model_stats"])


def _unsupported_operation(what: str) -> OpenApiOperation:
    refusals = (400, 401, 403, 404, 429, *ANY_ERRORS)
    return OpenApiOperation(
        f"Not offered: {what} a model", _INFERENCE, {}, {JSON: OBJECT}, refusals=refusals, text_errors=True
    )


# By the ids of their methods.
OPERATIONS_BY_METHOD: Mapping[str, OpenApiOperation] = {
    "tensorflow.serving.PredictionService.Predict": _tensorflow_operation(
        "Predict, by rows or by columns",
        {
            "anyOf": [
                object_schema(
                    {"signature_name": _SIGNATURE_NAME, "instances": {"type": "array", "minItems": 1}},
                    ["instances"],
                ),
                object_schema({"signature_name": _SIGNATURE_NAME, "inputs": {}}, ["inputs"]),
            ]
        },
        {"anyOf": [_ROWS_RESPONSE, object_schema({"outputs": {}}, ["outputs"])]},
    ),
    "tensorflow.serving.PredictionService.Classify": _examples_operation(
        "Classify examples", array_schema(array_schema({"type": "array", "minItems": 2, "maxItems": 2}))
    ),
    "tensorflow.serving.PredictionService.Regress": _examples_operation(
        "Regress examples", array_schema({"type": ["number", "string", "null"]})
    ),
    "tensorflow.serving.PredictionService.GetModelMetadata": _tensorflow_operation(
        "The signatures of a model",
        None,
        object_schema(
            {
                "model_spec": OBJECT,
                "metadata": object_schema({"signature_def": OBJECT}, ["signature_def"]),
            },
            ["model_spec", "metadata"],
        ),
    ),
    "tensorflow.serving.ModelService.GetModelStatus": _tensorflow_operation(
        "How the versions of a model are", None, schema_ref("ModelStatus")
    ),
    f"{_INFERENCE_SERVICE}.ServerLive": _inference_operation(
        "Whether the server lives", object_schema({"live": _BOOLEAN}, ["live"]), of_server=True
    ),
    f"{_INFERENCE_SERVICE}.ServerReady": _inference_operation(
        "Whether the server is up",
        object_schema({"ready": _BOOLEAN}, ["ready"]),
        unavailable=True,
        of_server=True,
    ),
    f"{_INFERENCE_SERVICE}.ServerMetadata": _inference_operation(
        "What the server is",
        object_schema(
            {"name": STRING, "version": STRING, "extensions": array_schema(STRING)},
            ["name", "version", "extensions"],
        ),
        of_server=True,
    ),
    f"{_INFERENCE_SERVICE}.ModelReady": _inference_operation(
        "Whether a model answers",
        object_schema({"name": STRING, "ready": _BOOLEAN}, ["name", "ready"]),
        unavailable=True,
    ),
    f"{_INFERENCE_SERVICE}.ModelStatistics": _inference_operation(
        "What a model has done", _STATISTICS_SCHEMA
    ),
    f"{_INFERENCE_SERVICE}.AllModelStatistics": _inference_operation(
        "What all models have done", _STATISTICS_SCHEMA
    ),
    f"{_INFERENCE_SERVICE}.ModelConfig": _inference_operation(
        "The inputs and outputs of a model, as Triton has them", OBJECT
    ),
    f"{_INFERENCE_SERVICE}.RepositoryIndex": OpenApiOperation(
        "The versions of all models",
        _INFERENCE,
        {JSON: array_schema(OBJECT)},
        {JSON: object_schema({"ready": _BOOLEAN})},
        text_errors=True,
    ),
    f"{_INFERENCE_SERVICE}.RepositoryModelLoad": _unsupported_operation("load"),
    f"{_INFERENCE_SERVICE}.RepositoryModelUnload": _unsupported_operation("unload"),
    f"{_INFERENCE_SERVICE}.ModelMetadata": _inference_operation(
        "The inputs and outputs of a model", schema_ref("ModelMetadata")
    ),
    f"{_INFERENCE_SERVICE}.ModelInfer": OpenApiOperation(
        "Infer",
        _INFERENCE,
        {JSON: schema_ref("InferResponse"), BINARY: _BYTES},
        {JSON: schema_ref("InferRequest"), BINARY: _BYTES},
        refusals=PREDICT_ERRORS,
        text_errors=True,
    ),
}


def build_predict_operation(schema: ModelSchema, title: str) -> OpenApiOperation:
    """Describe predictions with a model whose schema is known."""
    return OpenApiOperation(
        f"Predict with {title}",
        _AI_PLATFORM,
        {JSON: prediction_schemas.build_response_schema(schema), NPY: _BYTES, BINARY: _BYTES},
        {JSON: prediction_schemas.build_request_schema(schema), NPY: _BYTES, BINARY: _BYTES},
        refusals=PREDICT_ERRORS,
    )


def add_legacy_errors(operation: Json) -> Json:
    """Describe errors of models and their inputs as AI Platform sent them, with 200."""
    success = operation["responses"]["200"]["content"][JSON]
    success["schema"] = {"anyOf": [success["schema"], schema_ref("ErrorText")]}
    return operation


def add_example(operation: Json, schema: ModelSchema) -> Json:
    """Add a request that was answered, and its response."""
    asked, answered = prediction_schemas.example_request(schema), prediction_schemas.example_response(schema)
    if asked is not None:
        operation["requestBody"]["content"][JSON]["example"] = asked
    if asked is not None and answered is not None:
        operation["responses"]["200"]["content"][JSON]["example"] = answered
    return operation
