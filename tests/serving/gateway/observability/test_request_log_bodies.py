"""What the log of requests has of bodies that are not JSON."""

from __future__ import annotations

import base64

import orjson
import pytest

from serving.gateway.observability.request_log import encode_reply_body, encode_request_body
from serving.gateway.proxy.node_client import NodeReply
from serving.http_headers import Headers
from serving.protocols import DEFAULT_METADATA, Dialect, RequestMetadata

BYTES = bytes(range(256))
B64 = base64.b64encode(BYTES).decode()
INFERENCE = RequestMetadata(Dialect.INFERENCE, "infer", "m")
NPY = "application/x-npy"


@pytest.mark.parametrize(
    "call", [DEFAULT_METADATA, RequestMetadata(accept=NPY), RequestMetadata(Dialect.TENSORFLOW), INFERENCE]
)
def test_json_is_kept_as_it_is(call: RequestMetadata) -> None:
    """Whatever its protocol; nothing of it is read."""
    body, answer = b'{"instances": [', NodeReply(200, (), b'{"predictions": [1]}')

    assert encode_request_body(call, body) is body
    assert encode_reply_body(call, answer) is answer.body
    typed = NodeReply(200, ((b"content-type", b"application/json; charset=utf-8"),), answer.body)
    assert encode_reply_body(call, typed) is answer.body


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        (RequestMetadata(content_type=NPY), {"contentType": NPY}),
        (
            RequestMetadata(content_type="application/octet-stream", json_bytes=7),
            {"contentType": "application/octet-stream", "jsonBytes": 7},
        ),
        (
            RequestMetadata(Dialect.INFERENCE, "infer", "m", json_bytes=9),
            {"contentType": "application/octet-stream", "jsonBytes": 9},
        ),
        (RequestMetadata(Dialect.TENSORFLOW_GRPC, model="m"), {"contentType": "application/x-protobuf"}),
        (RequestMetadata(Dialect.INFERENCE_GRPC, "infer", "m"), {"contentType": "application/x-protobuf"}),
    ],
)
def test_bytes_are_held_by_json(call: RequestMetadata, fields: dict[str, object]) -> None:
    """With what they are."""
    assert orjson.loads(encode_request_body(call, BYTES)) == {"b64": B64, **fields}


@pytest.mark.parametrize(
    ("call", "headers", "fields"),
    [
        (RequestMetadata(accept=NPY), [(b"content-type", NPY.encode())], {"contentType": NPY}),
        (
            INFERENCE,
            [(b"content-type", b"application/octet-stream"), (b"inference-header-content-length", b"12")],
            {"contentType": "application/octet-stream", "jsonBytes": 12},
        ),
        (RequestMetadata(Dialect.TENSORFLOW_GRPC), [], {"contentType": "application/x-protobuf"}),
    ],
)
def test_so_are_answers(call: RequestMetadata, headers: Headers, fields: dict[str, object]) -> None:
    """By what their headers say."""
    assert orjson.loads(encode_reply_body(call, NodeReply(200, headers, BYTES))) == {"b64": B64, **fields}


def test_a_refusal_over_grpc_is_its_text() -> None:
    """It is no message."""
    refused = NodeReply(400, ((b"grpc-status", b"3"),), b"Invalid inputs")

    assert encode_reply_body(RequestMetadata(Dialect.TENSORFLOW_GRPC), refused) == b"Invalid inputs"
