"""Inputs and outputs of a model: its signatures, their tensors, and an instance that was really predicted.

A node determines it when it loads its version, and reports it; the gateway stores it with the version. Types
are named as in the Open Inference Protocol.
"""

from __future__ import annotations

import base64
import zlib
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from serving.frameworks import find_by_platform

T = TypeVar("T")

DEFAULT_SIGNATURE = "serving_default"
PREDICT, CLASSIFY, REGRESS = (f"tensorflow/serving/{verb}" for verb in ("predict", "classify", "regress"))


class TensorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input or an output.

    `datatype` is BOOL, UINT8 to UINT64, INT8 to INT64, FP16, BF16, FP32, FP64 or BYTES (text too). `shape`
    includes the rows, -1 for a variable size; None: the rank is unknown. `tensor` is the name inside a graph,
    "" where there is none. `classes` are the labels of an output or of its columns, if the model knows
    them. If `shape` is not `enforced`, the model may answer other shapes too.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] | None
    tensor: str = ""
    classes: tuple[Any, ...] = ()
    enforced: bool = True


class ModelSignature(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way to call a model. `method` is one of TensorFlow Serving's method names."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    method: str = PREDICT


class ModelSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The signatures of a model by name, never none.

    `default` is the one that answers when none is named, "" where one must be. `platform` is what the Open
    Inference Protocol calls the framework. `strict` says whether inputs are to be as they are declared: those
    of custom routines are only a form for what may be anything. `example` is an instance of an AI Platform
    request that was answered, `answer` its prediction; both None where none could be made. Where a signature
    takes a fixed number of rows, the request had that many of it. `bare`: an output that is the only one of
    its signature is answered without its name; see `with_bare_answers`. `method` is what of an
    estimator answers, "" for models without such; `methods` are the others that can be asked for, each with
    what it answers.
    """

    platform: str
    signatures: dict[str, ModelSignature]
    default: str = DEFAULT_SIGNATURE
    strict: bool = True
    example: Any = None
    answer: Any = None
    bare: bool = False
    method: str = ""
    methods: tuple[TensorSpec, ...] = ()


def with_bare_answers(schema: ModelSchema, *, bare: bool) -> ModelSchema:
    """The schema for AI Platform's clients; `bare`: a named output that is the only one has no name there."""
    if not bare or not find_by_platform(schema.platform).takes_named_tensors:
        return schema
    answer, default = schema.answer, schema.signatures.get(schema.default)
    if default is not None and len(default.outputs) == 1 and isinstance(answer, dict):
        answer = answer.get(default.outputs[0].name)
    return msgspec.structs.replace(schema, bare=True, answer=answer)


def schema_to_json(schema: ModelSchema) -> dict[str, Any]:
    """A schema as the API returns it; unknown parts are left out."""
    told: dict[str, Any] = {
        "platform": schema.platform,
        "strict": schema.strict,
        "defaultSignature": schema.default,
        "signatures": {
            name: {
                "method": signature.method,
                "inputs": msgspec.to_builtins(signature.inputs),
                "outputs": msgspec.to_builtins(signature.outputs),
            }
            for name, signature in schema.signatures.items()
        },
    }
    if schema.method:
        told |= {"method": schema.method, "methods": msgspec.to_builtins(schema.methods)}
    told |= {} if schema.example is None else {"example": schema.example}
    return told | ({} if schema.answer is None else {"answer": schema.answer})


def fixed_row_count(signature: ModelSignature | None) -> int | None:
    """The number of instances a request must have, None if it is variable."""
    firsts = (tensor.shape[0] for tensor in (signature.inputs if signature else ()) if tensor.shape)
    return next((first for first in firsts if first >= 0), None)


# Bytes of the text below, and of what is in it. What a version tells is kept in memory with all others'.
_MAX_PACKED_CHARACTERS, _MAX_DOCUMENT_BYTES = 1 << 15, 1 << 23
_MAX_OUTLINED_BYTES = 1 << 14


def pack_schema(schema: ModelSchema) -> str:
    """A schema as a short text, to store and send.

    The answer, and then the example, are left out if it would be too long; the signatures never are.
    """
    text = ""
    for kept in (schema, _without_fields(schema, "answer"), _without_fields(schema, "answer", "example")):
        document = msgspec.json.encode(kept)
        text = base64.b64encode(zlib.compress(document, 9)).decode()
        if len(text) <= _MAX_PACKED_CHARACTERS and len(document) <= _MAX_DOCUMENT_BYTES:
            break
    return text


def unpack_schema(text: str) -> ModelSchema:
    """The packed schema. Raises ValueError."""
    return _decode_document(_decompress_document(text), ModelSchema)


@lru_cache(maxsize=256)
def unpack_outline(text: str) -> ModelSchema:
    """As `unpack_schema`, but without a long example; cached: the same object for the same text."""
    document = _decompress_document(text)
    if len(document) <= _MAX_OUTLINED_BYTES:
        return _decode_document(document, ModelSchema)
    found = _decode_document(document, _SchemaOutline)
    return ModelSchema(
        found.platform,
        found.signatures,
        found.default,
        found.strict,
        method=found.method,
        methods=found.methods,
    )


class _SchemaOutline(msgspec.Struct):
    """A schema without its example."""

    platform: str
    signatures: dict[str, ModelSignature]
    default: str = DEFAULT_SIGNATURE
    strict: bool = True
    method: str = ""
    methods: tuple[TensorSpec, ...] = ()


def _decompress_document(text: str) -> bytes:
    try:
        return zlib.decompressobj().decompress(base64.b64decode(text), _MAX_DOCUMENT_BYTES)
    except (zlib.error, ValueError) as error:
        raise ValueError(f"Not a packed schema: {error}.") from error


def _decode_document(document: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(document, type=kind)
    except ValueError as error:
        raise ValueError(f"Not a packed schema: {error}.") from error


def _without_fields(schema: ModelSchema, *fields: str) -> ModelSchema:
    return msgspec.structs.replace(schema, **dict.fromkeys(fields))
