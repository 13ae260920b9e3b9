"""Request heads, and a cache of them.

Most clients send the same head with every request of a connection; an identical one is not parsed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.errors import ServingError
from serving.http_headers import (
    ACCEPT,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    JSON_BYTES,
    METHOD_OVERRIDE,
    REQUEST_ID,
    TIMEOUT,
    TRACEPARENT,
    WANTS_TIMING_HEADER,
    Headers,
)
from serving.protocols.paths import PredictionPath, parse_prediction_path
from serving.transport.content_encoding import parse_content_encoding

# Headers that predictions read.
_PREDICTION_HEADERS = frozenset(
    {
        REQUEST_ID,
        TRACEPARENT,
        TIMEOUT,
        WANTS_TIMING_HEADER,
        CONTENT_TYPE,
        ACCEPT,
        JSON_BYTES,
        CONTENT_ENCODING,
        METHOD_OVERRIDE,
    }
)
# Number of cached heads, and the longest one that is cached, in bytes.
_MAX_CACHED_HEADS, _MAX_CACHED_HEAD_BYTES = 256, 1024
_MAX_METHOD_LENGTH = 32


class RequestHead:
    """What a request says before its body.

    `length` is that of the body, 0 if not given. `prediction_headers` are the headers that predictions read,
    by name. `encoding` is the Content-Encoding, "" for none; `method_override` the method of
    X-HTTP-Method-Override. `handler_cache` is what the handler parsed of it, for the next equal head. A
    request with a `rejection` is answered with that error. `response_headers` are added to every response.
    """

    __slots__ = (
        "encoding",
        "handler_cache",
        "headers",
        "length",
        "method",
        "method_override",
        "path",
        "prediction_headers",
        "rejection",
        "response_headers",
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
        """The prediction that the path names, None if it names none."""
        return parse_prediction_path(self.path)

    @property
    def effective_method(self) -> str:
        return (
            self.method_override[:_MAX_METHOD_LENGTH]
            if self.method_override and self.method == "POST"
            else self.method
        )


class RequestHeadCache:
    """`get` finds a head by its bytes, including the empty line."""

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}
        self.get = self._heads.get

    def remember(self, raw: bytes, head: RequestHead) -> None:
        """Cache a head that keeps its connection open and gives the length of its body.

        Skips bytes that could be parsed in two ways: each header must be one line, and lines must end alike.
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
