"""Other people's protocols: TensorFlow Serving's and the Open Inference Protocol, over HTTP and gRPC.

What gateway and node must agree on, and what the gateway needs: paths of predictions, metadata that crosses
the channel with them, errors, and metadata of models. No numbers are read here: the node reads request bodies
and writes response bodies, in `serving.node.codecs`.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from serving.errors import InvalidArgument
from serving.http_headers import Headers

# Bytes of encoded metadata.
MAX_METADATA_BYTES = 1 << 14


class Dialect(enum.StrEnum):
    """The format of request and response bodies; each is a module of `serving.node.codecs`."""

    AI_PLATFORM = "ai-platform"  # AI Platform's JSON, and binary bodies on its route
    VERTEX = "vertex"  # that of Vertex AI's containers, whose arguments are in `parameters`
    TENSORFLOW = "tensorflow"  # TensorFlow Serving's REST API
    TENSORFLOW_GRPC = "tensorflow-grpc"
    INFERENCE = "inference"  # the Open Inference Protocol over REST, with binary tensors
    INFERENCE_GRPC = "inference-grpc"


class RequestMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """Metadata of a request that crosses the channel with its body.

    `verb` is predict, classify, regress, multi-inference or infer. `model` is the client's name of the model,
    and `version` the protocol's name of the version that answers, for responses that contain it: a number
    where it has one, else its id. `content_type` and `accept` are the client's, "" where it sent none;
    `json_bytes` is the length of the JSON in front of binary tensors, if the client sent it.
    """

    dialect: Dialect = Dialect.AI_PLATFORM
    verb: str = "predict"
    model: str = ""
    version: str = ""
    content_type: str = ""
    accept: str = ""
    json_bytes: int | None = None


DEFAULT_METADATA = RequestMetadata()


class Reply(NamedTuple):
    """A response. It is JSON unless the first of `headers` is its content type.

    Over gRPC the first header of an error is `grpc-status`, and its body is the message as text.
    """

    status: int
    body: bytes
    headers: Headers = ()


def encode_metadata(call: RequestMetadata) -> bytes:
    """Encode metadata for the channel, b"" for an ordinary request. Raises InvalidArgument if too long."""
    if call == DEFAULT_METADATA:
        return b""
    about = msgspec.json.encode(call)
    if len(about) > MAX_METADATA_BYTES:
        raise InvalidArgument(
            "The names and types in the head of the request are too long: they must take less than "
            f"{MAX_METADATA_BYTES} bytes."
        )
    return about


@lru_cache(maxsize=256)
def decode_metadata(about: bytes) -> RequestMetadata:
    """Decode metadata from the channel; the same object for the same bytes. Raises ValueError."""
    return msgspec.json.decode(about, type=RequestMetadata) if about else DEFAULT_METADATA
