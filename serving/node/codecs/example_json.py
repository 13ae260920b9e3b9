"""Features as JSON, made to serialised `tensorflow.Example` messages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import orjson

from serving.errors import InvalidInputs
from serving.node.codecs.classify_regress import check_context_size
from serving.protocols.protos import load_message_class
from serving.runtimes.input_conversion import describe_json_type, is_base64

_CONTEXT, _EXAMPLES = "context", "examples"
_MAX_INT64 = 2**63 - 1
_MAX_SHOWN = 60
_JSON_TYPES: Mapping[type, str] = {
    type(None): "Null",
    bool: "Boolean",
    int: "Number",
    float: "Number",
    str: "String",
    list: "Array",
    dict: "Object",
}


def serialize_json_examples(fields: Mapping[str, Any], verb: str) -> list[bytes]:
    """The examples of a request, each with the features of its context that it has none of itself.

    Raises InvalidInputs, in TensorFlow Serving's words.
    """
    context = _parse_features(fields[_CONTEXT], f"'{_CONTEXT}'") if _CONTEXT in fields else {}
    if _EXAMPLES not in fields:
        raise InvalidInputs(f"When method is {verb}, key '{_EXAMPLES}' is expected and was not found")
    examples = fields[_EXAMPLES]
    if not isinstance(examples, list):
        raise InvalidInputs(
            f"JSON Value: {shorten_json(examples)} Expecting '{_EXAMPLES}' value to be an list/array"
        )
    if not examples:
        raise InvalidInputs(f"'{_EXAMPLES}' value is an empty array")
    check_context_size(
        sum(len(name) + feature.ByteSize() for name, feature in context.items()), len(examples)
    )
    return [
        _serialize_example(context | _parse_features(example, f"element: {index} of '{_EXAMPLES}' list"))
        for index, example in enumerate(examples)
    ]


def shorten_json(value: Any) -> str:
    """The beginning of a value as JSON, for messages."""
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # it writes nothing as deep as it may read
        return describe_json_type(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _serialize_example(features: Mapping[str, Any]) -> bytes:
    example = load_message_class("tensorflow.Example")()
    for name, feature in features.items():
        example.features.feature[name].CopyFrom(feature)
    serialised: bytes = example.SerializeToString()
    return serialised


def _parse_features(value: Any, where: str) -> dict[str, Any]:
    """The features of an object, by name."""
    if not isinstance(value, dict):
        raise InvalidInputs(
            f"Failed to process {where}. "
            f"Error: Example must be JSON object but got JSON {_JSON_TYPES[type(value)]}"
        )
    try:
        return {name: _make_feature(name, content) for name, content in value.items()}
    except InvalidInputs as error:
        raise InvalidInputs(f"Failed to process {where}. Error: {error.detail}") from error


def _make_feature(name: str, content: Any) -> Any:
    values = content if isinstance(content, list) else [content]
    kinds = [_feature_kind(name, value) for value in values]
    feature = load_message_class("tensorflow.Feature")()
    if not kinds:
        return feature
    expected = kinds[0]
    if any(other != expected for other in kinds):
        raise InvalidInputs(f"Unexpected element type in feature: {name} expecting type: {expected}")
    match expected:
        case "float":
            feature.float_list.value.extend(values)  # what float32 does not hold is infinite
        case "int64":
            feature.int64_list.value.extend(_check_int64(name, value) for value in values)
        case _:
            feature.bytes_list.value.extend(_decode_bytes(name, value) for value in values)
    return feature


def _feature_kind(name: str, value: Any) -> str:
    """What a value is among features."""
    match value:
        case bool() | int():
            return "int64"
        case float():
            return "float"
        case str():
            return "bytes"
        case _ if is_base64(value):
            return "bytes"
        case _:
            raise InvalidInputs(
                f"Feature: {name} has element with unexpected JSON type: {_JSON_TYPES[type(value)]}"
            )


def _check_int64(name: str, value: int) -> int:
    if value > _MAX_INT64:
        raise InvalidInputs(f"Feature: {name} has uint64 element. Only int64 is supported.")
    return int(value)


def _decode_bytes(name: str, value: str | Mapping[str, str]) -> bytes:
    if isinstance(value, str):
        return value.encode()
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputs(f"Feature: {name}: unable to base64 decode: {error}.") from error
