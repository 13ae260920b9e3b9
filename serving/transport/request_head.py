"""Heads of requests, and the memory of those that come again and again.

Most clients send the same head with every request on a connection. One that has been read once, byte for byte
the same, need not be taken apart again: it says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.errors import ServingError
from serving.http_headers import Headers
from serving.protocols.paths import PredictionPath, parse_prediction_path
from serving.transport.content_encoding import parse_content_encoding

# Headers that predictions heed: what a request is called, its trace, the seconds it may take, whether a node
# alone is to tell how long things took, what its body is and what that of the answer is to be, and the bytes
# of JSON in front of binary tensors.
REQUEST_ID, TRACEPARENT = b"x-request-id", b"traceparent"
TIMEOUT, WANTS_TIMING_HEADER = b"x-request-timeout", b"x-pilotlight-timing"
CONTENT_TYPE, ACCEPT = b"content-type", b"accept"
JSON_BYTES = b"inference-header-content-length"
# How its body is packed, and the verb that is meant where a client cannot send it.
CONTENT_ENCODING, METHOD_OVERRIDE = b"content-encoding", b"x-http-method-override"
_PREDICTION_HEADERS = frozenset(
    {
        REQUEST_ID, TRACEPARENT, TIMEOUT, WANTS_TIMING_HEADER, CONTENT_TYPE, ACCEPT, JSON_BYTES, CONTENT_ENCODING,
        METHOD_OVERRIDE,
    }
)  # fmt: skip
# Heads that are remembered, and the longest of them in bytes.
_MAX_CACHED_HEADS, _MAX_CACHED_HEAD_BYTES = 256, 1024
_MAX_METHOD_LENGTH = 32


class RequestHead:
    """What a request says before its body comes.

    `length` is that of the body, 0 if it is not told. `told` has the headers that predictions heed, by name.
    `encoding` is what its body is packed with, and `override` another verb that a header tells; "" mostly.
    `known` is what who answers it wants to remember of it, for the next one that says the same. With a
    `refusal` nobody is asked: it is answered with that. All answers have the headers `answer_headers` too.
    """

    __slots__ = (
        "response_headers",
        "encoding",
        "headers",
        "handler_cache",
        "length",
        "method",
        "method_override",
        "path",
        "rejection",
        "prediction_headers",
        "version",
    )

    def __init__(
        self,
        method: str,
        path: str,
        headers: Headers,
        *,
        length: int = 0,
        version: str = "1.1",
        rejection: ServingError | None = None,
        response_headers: Headers = (),
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.length = length
        self.version = version
        self.rejection = rejection
        self.response_headers = response_headers
        self.handler_cache: Any = None
        self.prediction_headers: Mapping[bytes, bytes] = {
            name: value for name, value in reversed(headers) if name in _PREDICTION_HEADERS
        }
        self.encoding = ""
        override = self.prediction_headers.get(METHOD_OVERRIDE, b"").decode("latin-1")
        self.method_override = "" if override == method else override
        if CONTENT_ENCODING in self.prediction_headers:
            self.encoding = parse_content_encoding(
                value for name, value in headers if name == CONTENT_ENCODING
            )

    @property
    def prediction_path(self) -> PredictionPath | None:
        """The prediction that it asks for; None if it asks for none."""
        return parse_prediction_path(self.path)

    @property
    def effective_method(self) -> str:
        """The verb that it means."""
        return (
            self.method_override[:_MAX_METHOD_LENGTH]
            if self.method_override and self.method == "POST"
            else self.method
        )


class RequestHeadCache:
    """The memory; `get` finds a head by its bytes, up to and with the empty line."""

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}
        self.get = self._heads.get

    def remember(self, raw: bytes, head: RequestHead) -> None:
        """Remember one that asks for its connection to be kept and tells the length of its body.

        Not where the bytes can be read in two ways: each header must be a line, and lines end in one way.
        """
        if (
            len(raw) <= _MAX_CACHED_HEAD_BYTES
            and raw.count(b"\n") == raw.count(b"\r\n") == len(head.headers) + 2
        ):
            if len(self._heads) >= _MAX_CACHED_HEADS:
                self._heads.clear()
            self._heads[raw] = head

    def __len__(self) -> int:
        return len(self._heads)
