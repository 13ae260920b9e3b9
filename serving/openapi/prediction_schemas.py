"""JSON Schema of the bodies of AI Platform's predictions, from a model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from serving.frameworks import Framework, find_by_platform
from serving.model_schema import ModelSchema, ModelSignature, TensorSpec, fixed_row_count

Json = dict[str, Any]

_B64_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "b64": {
            "type": "string",
            "contentEncoding": "base64",
            "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
        }
    },
    "required": ["b64"],
    "additionalProperties": False,
}
_ANY_VALUE: Json = {}
# Null is a missing number; all are held as float32.
_NULLABLE_NUMBER: Json = {"type": ["number", "null"], "minimum": -3.4e38, "maximum": 3.4e38}
# Limits in a document of many models; `:schema` has the longer ones.
_MAX_EXAMPLE_BYTES = 4096


def build_request_schema(schema: ModelSchema) -> Json:
    if not _has_named_tensors(schema):
        properties = {"instances": _instances_schema(schema, _default_signature(schema))}
        if schema.method:
            names = [schema.method, *(tensor.name for tensor in schema.methods)]
            properties["method"] = {"enum": names, "description": f"{schema.method} when left out."}
        return _body_schema(schema, properties, ["instances"])
    bodies = [
        _body_schema(
            schema,
            {"instances": _instances_schema(schema, signature), "signature_name": {"const": name}},
            ["instances"] if name == schema.default else ["instances", "signature_name"],
        )
        for name, signature in schema.signatures.items()
    ]
    return _any_of(bodies)


def build_response_schema(schema: ModelSchema) -> Json:
    rows = _any_of(
        [
            *(_prediction_schema(schema, signature) for signature in schema.signatures.values()),
            *(_tensor_row_schema(tensor, _output_schema(tensor)) for tensor in schema.methods),
        ]
    )
    return {
        "type": "object",
        "properties": {"predictions": {"type": "array", "items": rows}},
        "required": ["predictions"],
        "additionalProperties": False,
    }


def _instances_schema(schema: ModelSchema, signature: ModelSignature | None) -> Json:
    rows = fixed_row_count(signature)
    count: Json = {"minItems": rows or 1, **({"maxItems": rows} if rows else {})}
    # All have the same form.
    return _any_of([{"type": "array", "items": form, **count} for form in _row_schemas(schema, signature)])


def _row_schemas(schema: ModelSchema, signature: ModelSignature | None) -> Sequence[Json]:
    """The forms that a row of a request can have."""
    if signature is None or not signature.inputs or not schema.strict:
        return (_ANY_VALUE,)
    framework = find_by_platform(schema.platform)
    values = [_tensor_row_schema(tensor, _input_schema(tensor, framework)) for tensor in signature.inputs]
    if framework.takes_named_tensors:
        named = _named_values_schema([tensor.name for tensor in signature.inputs], values)
        return (_any_of([values[0], named]) if len(values) == 1 else named,)
    if len(signature.inputs) == 1 and signature.inputs[0].name == "instances":
        return values
    count = len(values)
    row: Json = {"type": "array", "prefixItems": values, "items": False, "minItems": count, "maxItems": count}
    if signature.inputs[0].name == "column-0":
        return (row,)
    return _named_values_schema([tensor.name for tensor in signature.inputs], values), row


def _prediction_schema(schema: ModelSchema, signature: ModelSignature) -> Json:
    if not signature.outputs or not schema.strict:
        return _ANY_VALUE
    values = [_tensor_row_schema(tensor, _output_schema(tensor)) for tensor in signature.outputs]
    named = _has_named_tensors(schema) and not (schema.bare and len(values) == 1)
    return _named_values_schema([tensor.name for tensor in signature.outputs], values) if named else values[0]


def _body_schema(schema: ModelSchema, properties: Json, required: list[str]) -> Json:
    """Routines get all other fields of a request; to a graph they mean nothing."""
    body: Json = {"type": "object", "properties": properties, "required": required}
    is_open = not schema.strict or _has_named_tensors(schema)
    return body if is_open else {**body, "additionalProperties": False}


def _any_of(schemas: Sequence[Json]) -> Json:
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}


def example_request(schema: ModelSchema) -> Json | None:
    """Return a request that was answered; None where none is known, or it is long."""
    if schema.example is None or len(msgspec.json.encode(schema.example)) > _MAX_EXAMPLE_BYTES:
        return None
    return {"instances": [schema.example] * (fixed_row_count(_default_signature(schema)) or 1)}


def example_response(schema: ModelSchema) -> Json | None:
    """Return the response to `example_request`."""
    if schema.answer is None or len(msgspec.json.encode(schema.answer)) > _MAX_EXAMPLE_BYTES:
        return None
    return {"predictions": [schema.answer] * (fixed_row_count(_default_signature(schema)) or 1)}


def _default_signature(schema: ModelSchema) -> ModelSignature | None:
    return schema.signatures.get(schema.default)


def _has_named_tensors(schema: ModelSchema) -> bool:
    return find_by_platform(schema.platform).takes_named_tensors


def _named_values_schema(names: Sequence[str], values: Sequence[Json]) -> Json:
    return {
        "type": "object",
        "properties": dict(zip(names, values, strict=True)),
        "required": list(names),
        "additionalProperties": False,
    }


def _tensor_row_schema(tensor: TensorSpec, leaf: Json) -> Json:
    """The schema of one row of a tensor."""
    if tensor.shape is None:
        return _ANY_VALUE
    value = leaf
    for size in reversed(tensor.shape[1:]):
        value = {
            "type": "array",
            "items": value,
            **({"minItems": size, "maxItems": size} if size >= 0 else {}),
        }
    return value


def _input_schema(tensor: TensorSpec, framework: Framework) -> Json:
    match _value_kind(tensor):
        case "number":
            return _NULLABLE_NUMBER if framework.takes_missing_numbers else {"type": "number"}
        case "bytes" if framework.takes_named_tensors:
            return {"anyOf": [{"type": "string"}, _B64_SCHEMA]}
        case kind:
            return {"type": _JSON_TYPES[kind]} if kind in _JSON_TYPES else _ANY_VALUE


def _output_schema(tensor: TensorSpec) -> Json:
    match _value_kind(tensor):
        case "number":  # NaN and infinities are null
            return {"type": ["number", "null"]}
        case "bytes":
            return _ANY_VALUE  # text, base64, or any JSON
        case kind:
            return {"type": _JSON_TYPES[kind]} if kind in _JSON_TYPES else _ANY_VALUE


_JSON_TYPES = {"integer": "integer", "boolean": "boolean", "bytes": "string"}


def _value_kind(tensor: TensorSpec) -> str:
    if tensor.datatype.startswith(("FP", "BF")):
        return "number"
    if tensor.datatype.startswith(("INT", "UINT")):
        return "integer"
    return {"BOOL": "boolean", "BYTES": "bytes"}.get(tensor.datatype, "")
