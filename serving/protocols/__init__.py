"""Other people's protocols: TensorFlow Serving's and the Open Inference Protocol, over HTTP and gRPC.

Here is what gateway and node must agree on, and what the gateway needs: where calls are sent, what crosses
the channel with them, how errors are told, and what is known of models. No numbers are read here: bodies are
read and answers are written by the node, in `serving.node.codecs`.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from serving.errors import InvalidArgument
from serving.http_headers import Headers

# Most bytes of what a call says of itself.
MAX_METADATA_BYTES = 1 << 14


class Dialect(enum.StrEnum):
    """How a body is to be read and answered; each is a file of `serving.node.codecs`."""

    AI_PLATFORM = "ai-platform"  # AI Platform's JSON, and binary bodies on its route
    VERTEX = "vertex"  # that of Vertex AI's containers, whose arguments are in `parameters`
    TENSORFLOW = "tensorflow"  # TensorFlow Serving's REST API
    TENSORFLOW_GRPC = "tensorflow-grpc"
    INFERENCE = "inference"  # the Open Inference Protocol over REST, with binary tensors
    INFERENCE_GRPC = "inference-grpc"


class RequestMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the node must know of a request besides its body.

    `verb` is what is asked for: predict, classify, regress, multi-inference or infer. `model` is what its
    client calls the model, and `version` what the protocol calls the version that answers, for answers that
    tell: a number where it has one, else its id. `content_type` and `accept` are the client's, "" where it
    gave none; `json_bytes` is the length of the JSON in front of binary tensors, if it was told.
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
    """An answer. It is JSON unless the first of `headers` is its content type.

    Over gRPC the first of the headers of a refusal is `grpc-status`, and its body is the message as text.
    """

    status: int
    body: bytes
    headers: Headers = ()


def encode_metadata(call: RequestMetadata) -> bytes:
    """A call as it crosses the channel; b"" for an ordinary one. Raises InvalidArgument if it is too long."""
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
    """The call that has crossed the channel; the same object for the same bytes. Raises ValueError."""
    return msgspec.json.decode(about, type=RequestMetadata) if about else DEFAULT_METADATA
