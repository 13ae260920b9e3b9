"""Bodies as the log of requests has them: JSON as it is, all others as JSON that holds their bytes.

`{"b64": "...", "contentType": "application/x-npy"}`; `jsonBytes` is the length of JSON in front of tensors.
"""

from __future__ import annotations

import base64

import orjson

from serving.gateway.proxy.node_client import NodeReply
from serving.http_headers import CONTENT_TYPE, JSON_BYTES
from serving.media_types import BINARY, JSON, PROTOBUF, strip_parameters
from serving.protocols import DEFAULT_METADATA, Dialect, RequestMetadata
from serving.protocols.errors import GRPC_STATUS

_GRPC = frozenset({Dialect.TENSORFLOW_GRPC, Dialect.INFERENCE_GRPC})


def encode_request_body(call: RequestMetadata, body: bytes) -> bytes:
    """The body of a request."""
    if call is DEFAULT_METADATA:
        return body
    if call.dialect in _GRPC:
        return _wrap_bytes(body, PROTOBUF)
    if call.json_bytes is not None:
        return _wrap_bytes(body, BINARY, call.json_bytes)
    return _wrap_bytes(body, call.content_type) if call.content_type else body


def encode_reply_body(call: RequestMetadata, reply: NodeReply) -> bytes:
    """The body of an answer; a refusal over gRPC is its text."""
    if call is DEFAULT_METADATA:
        return reply.body
    told = dict(reply.headers)
    if call.dialect in _GRPC:
        return reply.body if GRPC_STATUS in told else _wrap_bytes(reply.body, PROTOBUF)
    content_type = told.get(CONTENT_TYPE, b"").decode("latin-1")
    if not content_type or strip_parameters(content_type) == JSON:
        return reply.body
    json_bytes = told.get(JSON_BYTES)
    return _wrap_bytes(reply.body, content_type, None if json_bytes is None else int(json_bytes))


def _wrap_bytes(body: bytes, content_type: str, json_bytes: int | None = None) -> bytes:
    held = {"b64": base64.b64encode(body).decode(), "contentType": content_type}
    return orjson.dumps(held if json_bytes is None else {**held, "jsonBytes": json_bytes})
