"""Renders errors in the form of each protocol."""

from __future__ import annotations

import orjson

from serving.errors import (
    RPC_CODES,
    BodyTooLarge,
    ModelError,
    ResourceExhausted,
    ServingError,
    error_to_json,
    http_status,
)
from serving.http_headers import error_headers
from serving.protocols import Dialect, Reply

# Marks errors over gRPC.
GRPC_STATUS = b"grpc-status"

# As TensorFlow Serving says it. KServe's client reads errors of no other type, such as one with a charset.
JSON_WITHOUT_CHARSET = (b"content-type", b"application/json")


def render_error(error: ServingError, dialect: Dialect = Dialect.AI_PLATFORM) -> Reply:
    """Over gRPC the reply's status is that of HTTP all the same, for metrics."""
    status, more = http_status(error), error_headers(error)
    match dialect:
        case Dialect.AI_PLATFORM | Dialect.VERTEX:
            return Reply(status, orjson.dumps(error_to_json(error)), more)
        case Dialect.TENSORFLOW | Dialect.INFERENCE:
            return Reply(status, orjson.dumps({"error": _error_text(error)}), (JSON_WITHOUT_CHARSET, *more))
        case Dialect.TENSORFLOW_GRPC | Dialect.INFERENCE_GRPC:
            # gRPC itself has this code for messages that are too long.
            name = ResourceExhausted.status if isinstance(error, BodyTooLarge) else error.status
            code = (GRPC_STATUS, b"%d" % RPC_CODES[name])
            return Reply(status, _error_text(error).encode(errors="replace"), (code, *more))


def _error_text(error: ServingError) -> str:
    """The message without the categories that only AI Platform's clients look for."""
    return error.detail if isinstance(error, ModelError) else error.message
