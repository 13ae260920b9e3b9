"""Predictions and what is told of models, in all protocols: the operations of gateway and node alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.media import BINARY, JSON, NPY
from serving.openapi import shapes
from serving.openapi.document import (
    ANY,
    OBJECT,
    PREDICT,
    READ,
    STRING,
    Operation,
    listed,
    ref,
    shaped,
)
from serving.schema import ModelSchema

Json = dict[str, Any]

_AI_PLATFORM, _TENSORFLOW, _INFERENCE = "Predictions", "TensorFlow Serving", "Open Inference Protocol"
_BYTES: Json = {"type": "string", "format": "binary"}
_BOOLEAN: Json = {"type": "boolean"}

_NAMES: Json = {"type": "string", "description": "The signature of a SavedModel."}
_ROWS = shaped(
    {"signature_name": _NAMES, "instances": {"type": "array", "minItems": 1}}, ["instances"], more=True
)
_ROW_ANSWER = shaped({"predictions": {"type": "array"}}, ["predictions"])
_TENSOR_OF_INFERENCE = {
    "name": STRING,
    "datatype": {
        "type": "string",
        "enum": [
            "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
            "FP16", "FP32", "FP64", "BYTES",
        ],
    },
    "shape": listed({"type": "integer", "minimum": 0}),
    "parameters": OBJECT,
    "data": {"type": "array"},
}  # fmt: skip

COMPONENTS: Mapping[str, Json] = {
    "Schema": shaped(
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
                "additionalProperties": shaped(
                    {
                        "method": STRING,
                        "inputs": listed(ref("Tensor")),
                        "outputs": listed(ref("Tensor")),
                    },
                    ["method", "inputs", "outputs"],
                ),
            },
            "method": {
                "type": "string",
                "description": "What of an estimator answers when none is asked for.",
            },
            "methods": listed(ref("Tensor")),
            "example": {"description": "An instance that was predicted."},
            "answer": {"description": "Its prediction."},
        },
        ["platform", "strict", "defaultSignature", "signatures"],
    ),
    "Tensor": shaped(
        {
            "name": STRING,
            "datatype": STRING,
            "shape": {"type": ["array", "null"], "items": {"type": "integer"}},
            "tensor": STRING,
            "classes": {"type": "array"},
        },
        ["name", "datatype"],
    ),
    "ModelStatus": shaped(
        {
            "model_version_status": listed(
                shaped(
                    {
                        "version": STRING,
                        "state": {
                            "type": "string",
                            "enum": ["UNKNOWN", "START", "LOADING", "AVAILABLE", "UNLOADING", "END"],
                        },
                        "status": shaped(
                            {"error_code": STRING, "error_message": STRING}, ["error_code", "error_message"]
                        ),
                    },
                    ["version", "state", "status"],
                )
            )
        },
        ["model_version_status"],
    ),
    "InferRequest": shaped(
        {
            "id": STRING,
            "parameters": OBJECT,
            "inputs": listed(shaped(_TENSOR_OF_INFERENCE, ["name", "datatype", "shape", "data"])),
            "outputs": listed(shaped({"name": STRING, "parameters": OBJECT}, ["name"])),
        },
        ["inputs"],
    ),
    "InferResponse": shaped(
        {
            "model_name": STRING,
            "model_version": STRING,
            "id": STRING,
            "parameters": OBJECT,
            "outputs": listed(shaped(_TENSOR_OF_INFERENCE, ["name", "datatype", "shape"])),
        },
        ["model_name", "outputs"],
    ),
    "ModelMetadata": shaped(
        {
            "name": STRING,
            "versions": listed(STRING),
            "platform": STRING,
            "inputs": listed(ref("MetadataTensor")),
            "outputs": listed(ref("MetadataTensor")),
        },
        ["name", "platform", "inputs", "outputs"],
    ),
    "MetadataTensor": shaped(
        {"name": STRING, "datatype": STRING, "shape": listed({"type": "integer"})},
        ["name", "datatype", "shape"],
    ),
}


def _tensorflow(summary: str, takes: Json | None, gives: Json) -> Operation:
    return Operation(
        summary,
        _TENSORFLOW,
        {JSON: gives},
        {JSON: takes} if takes else None,
        refusals=PREDICT if takes else READ,
        text_errors=True,
    )


def _examples(summary: str, gives: Json) -> Operation:
    takes = shaped(
        {"signature_name": _NAMES, "context": OBJECT, "examples": {"type": "array", "items": OBJECT}},
        ["examples"],
    )
    return _tensorflow(summary, takes, shaped({"results": gives}, ["results"]))


def _told(summary: str, gives: Json, *, unavailable: bool = False, of_server: bool = False) -> Operation:
    return Operation(
        summary,
        _INFERENCE,
        {JSON: gives},
        refusals=ANY if of_server else READ,
        text_errors=True,
        open=of_server,
        unavailable=gives if unavailable else None,
    )


PREDICTION = Operation(
    "Predict with a version, or with the default version of a model",
    _AI_PLATFORM,
    {JSON: _ROW_ANSWER, NPY: _BYTES, BINARY: _BYTES},
    {JSON: _ROWS, NPY: _BYTES, BINARY: _BYTES},
    refusals=PREDICT,
)
_V2 = "inference.GRPCInferenceService"
_STATISTICS = shaped({"model_stats": listed(OBJECT)}, ["model_stats"])


def _by_hand(what: str) -> Operation:
    refusals = (400, 401, 403, 404, 429, *ANY)
    return Operation(
        f"Not offered: {what} a model", _INFERENCE, {}, {JSON: OBJECT}, refusals=refusals, text_errors=True
    )


# By the ids of their methods.
OPERATIONS: Mapping[str, Operation] = {
    "tensorflow.serving.PredictionService.Predict": _tensorflow(
        "Predict, by rows or by columns",
        {
            "anyOf": [
                shaped(
                    {"signature_name": _NAMES, "instances": {"type": "array", "minItems": 1}}, ["instances"]
                ),
                shaped({"signature_name": _NAMES, "inputs": {}}, ["inputs"]),
            ]
        },
        {"anyOf": [_ROW_ANSWER, shaped({"outputs": {}}, ["outputs"])]},
    ),
    "tensorflow.serving.PredictionService.Classify": _examples(
        "Classify examples", listed(listed({"type": "array", "minItems": 2, "maxItems": 2}))
    ),
    "tensorflow.serving.PredictionService.Regress": _examples(
        "Regress examples", listed({"type": ["number", "string", "null"]})
    ),
    "tensorflow.serving.PredictionService.GetModelMetadata": _tensorflow(
        "The signatures of a model",
        None,
        shaped(
            {
                "model_spec": OBJECT,
                "metadata": shaped({"signature_def": OBJECT}, ["signature_def"]),
            },
            ["model_spec", "metadata"],
        ),
    ),
    "tensorflow.serving.ModelService.GetModelStatus": _tensorflow(
        "How the versions of a model are", None, ref("ModelStatus")
    ),
    f"{_V2}.ServerLive": _told(
        "Whether the server lives", shaped({"live": _BOOLEAN}, ["live"]), of_server=True
    ),
    f"{_V2}.ServerReady": _told(
        "Whether the server is up", shaped({"ready": _BOOLEAN}, ["ready"]), unavailable=True, of_server=True
    ),
    f"{_V2}.ServerMetadata": _told(
        "What the server is",
        shaped(
            {"name": STRING, "version": STRING, "extensions": listed(STRING)},
            ["name", "version", "extensions"],
        ),
        of_server=True,
    ),
    f"{_V2}.ModelReady": _told(
        "Whether a model answers",
        shaped({"name": STRING, "ready": _BOOLEAN}, ["name", "ready"]),
        unavailable=True,
    ),
    f"{_V2}.ModelStatistics": _told("What a model has done", _STATISTICS),
    f"{_V2}.AllModelStatistics": _told("What all models have done", _STATISTICS),
    f"{_V2}.ModelConfig": _told("The inputs and outputs of a model, as Triton has them", OBJECT),
    f"{_V2}.RepositoryIndex": Operation(
        "The versions of all models",
        _INFERENCE,
        {JSON: listed(OBJECT)},
        {JSON: shaped({"ready": _BOOLEAN})},
        text_errors=True,
    ),
    f"{_V2}.RepositoryModelLoad": _by_hand("load"),
    f"{_V2}.RepositoryModelUnload": _by_hand("unload"),
    f"{_V2}.ModelMetadata": _told("The inputs and outputs of a model", ref("ModelMetadata")),
    f"{_V2}.ModelInfer": Operation(
        "Infer",
        _INFERENCE,
        {JSON: ref("InferResponse"), BINARY: _BYTES},
        {JSON: ref("InferRequest"), BINARY: _BYTES},
        refusals=PREDICT,
        text_errors=True,
    ),
}


def prediction(schema: ModelSchema, title: str) -> Operation:
    """Predictions with a model of which that is known."""
    return Operation(
        f"Predict with {title}",
        _AI_PLATFORM,
        {JSON: shapes.answer(schema), NPY: _BYTES, BINARY: _BYTES},
        {JSON: shapes.request(schema), NPY: _BYTES, BINARY: _BYTES},
        refusals=PREDICT,
    )


def with_old_errors(operation: Json) -> Json:
    """The operation where errors of models and their inputs are told as AI Platform did, with 200."""
    told = operation["responses"]["200"]["content"][JSON]
    told["schema"] = {"anyOf": [told["schema"], ref("ErrorText")]}
    return operation


def with_example(operation: Json, schema: ModelSchema) -> Json:
    """The operation with a request that was answered, and the answer."""
    asked, answered = shapes.example(schema), shapes.example_answer(schema)
    if asked is not None:
        operation["requestBody"]["content"][JSON]["example"] = asked
    if asked is not None and answered is not None:
        operation["responses"]["200"]["content"][JSON]["example"] = answered
    return operation
