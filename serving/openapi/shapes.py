"""What a model takes and answers as JSON Schema: the bodies of AI Platform's predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from serving.schema import Schema, Signature, Tensor

Json = dict[str, Any]

_B64: Json = {
    "type": "object",
    "properties": {"b64": {"type": "string"}},
    "required": ["b64"],
    "additionalProperties": False,
}
_ANYTHING: Json = {}
# In a document for many; `:schema` has the longer ones.
_LONGEST_EXAMPLE = 4096
_GRAPHS = "tensorflow_savedmodel"


def request(schema: Schema) -> Json:
    """The body of a prediction."""
    signature = _default(schema)
    rows = fixed_rows(signature)
    instances: Json = {
        "type": "array",
        "items": instance(schema),
        "minItems": rows or 1,
        **({"maxItems": rows} if rows else {}),
    }
    properties: Json = {"instances": instances}
    required = ["instances"]
    if schema.platform == _GRAPHS:
        names = [schema.default] if schema.default else list(schema.signatures)
        properties["signature_name"] = {"type": "string", "enum": names}
        required += [] if schema.default else ["signature_name"]
    body: Json = {"type": "object", "properties": properties, "required": required}
    return body if not schema.strict else {**body, "additionalProperties": False}


def instance(schema: Schema) -> Json:
    """One row of a request."""
    signature = _default(schema)
    if signature is None or not signature.inputs or not schema.strict:
        return _ANYTHING
    if schema.platform == _GRAPHS:
        return _of_graph(signature.inputs)
    values = [_row(tensor, _taken(tensor, schema.platform)) for tensor in signature.inputs]
    if len(signature.inputs) == 1 and signature.inputs[0].name == "instances":
        return values[0]
    count = len(values)
    row: Json = {"type": "array", "prefixItems": values, "items": False, "minItems": count, "maxItems": count}
    if signature.inputs[0].name == "column-0":
        return row
    return {"anyOf": [_object([tensor.name for tensor in signature.inputs], values), row]}


def answer(schema: Schema) -> Json:
    """The body of the answer to such a request."""
    signature = _default(schema)
    item = _ANYTHING
    if signature is not None and signature.outputs and schema.strict:
        values = [_row(tensor, _given(tensor)) for tensor in signature.outputs]
        named = schema.platform == _GRAPHS
        item = _object([tensor.name for tensor in signature.outputs], values) if named else values[0]
    return {
        "type": "object",
        "properties": {"predictions": {"type": "array", "items": item}},
        "required": ["predictions"],
        "additionalProperties": False,
    }


def example(schema: Schema) -> Json | None:
    """A request that was answered; None where none is known, or it is long."""
    if schema.example is None or len(msgspec.json.encode(schema.example)) > _LONGEST_EXAMPLE:
        return None
    return {"instances": [schema.example] * (fixed_rows(_default(schema)) or 1)}


def example_answer(schema: Schema) -> Json | None:
    """The answer to it."""
    if schema.answer is None or len(msgspec.json.encode(schema.answer)) > _LONGEST_EXAMPLE:
        return None
    return {"predictions": [schema.answer] * (fixed_rows(_default(schema)) or 1)}


def fixed_rows(signature: Signature | None) -> int | None:
    """How many instances a request must have, None where any number will do."""
    firsts = (tensor.shape[0] for tensor in (signature.inputs if signature else ()) if tensor.shape)
    return next((first for first in firsts if first >= 0), None)


def _default(schema: Schema) -> Signature | None:
    return schema.signatures.get(schema.default)


def _of_graph(inputs: Sequence[Tensor]) -> Json:
    values = [_row(tensor, _taken(tensor, _GRAPHS)) for tensor in inputs]
    named = _object([tensor.name for tensor in inputs], values)
    return {"anyOf": [values[0], named]} if len(inputs) == 1 else named


def _object(names: Sequence[str], values: Sequence[Json]) -> Json:
    return {
        "type": "object",
        "properties": dict(zip(names, values, strict=True)),
        "required": list(names),
        "additionalProperties": False,
    }


def _row(tensor: Tensor, leaf: Json) -> Json:
    """One row of a tensor."""
    if tensor.shape is None:
        return _ANYTHING
    value = leaf
    for size in reversed(tensor.shape[1:]):
        value = {
            "type": "array",
            "items": value,
            **({"minItems": size, "maxItems": size} if size >= 0 else {}),
        }
    return value


def _taken(tensor: Tensor, platform: str) -> Json:
    match _kind(tensor):
        case "number":
            # What is missing is a value for trees.
            return {"type": ["number", "null"]} if platform == "xgboost" else {"type": "number"}
        case "bytes" if platform == _GRAPHS:
            return {"anyOf": [{"type": "string"}, _B64]}
        case kind:
            return {"type": _JSON[kind]} if kind in _JSON else _ANYTHING


def _given(tensor: Tensor) -> Json:
    match _kind(tensor):
        case "number":  # NaN and infinities are null
            return {"type": ["number", "null"]}
        case "bytes":
            return _ANYTHING  # text, base64, or any JSON
        case kind:
            return {"type": _JSON[kind]} if kind in _JSON else _ANYTHING


_JSON = {"integer": "integer", "boolean": "boolean", "bytes": "string"}


def _kind(tensor: Tensor) -> str:
    if tensor.datatype.startswith(("FP", "BF")):
        return "number"
    if tensor.datatype.startswith(("INT", "UINT")):
        return "integer"
    return {"BOOL": "boolean", "BYTES": "bytes"}.get(tensor.datatype, "")
