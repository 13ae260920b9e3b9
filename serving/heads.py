"""Heads of requests, and the memory of those that come again and again.

Most clients send the same head with every request on a connection. One that has been read once, byte for byte
the same, need not be taken apart again: it says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.content_encoding import encoding_of
from serving.errors import ServingError
from serving.protocols.paths import Path, parse
from serving.wire import Headers

# Headers that predictions heed: what a request is called, its trace, the seconds it may take, whether a node
# alone is to tell how long things took, what its body is and what that of the answer is to be, and the bytes
# of JSON in front of binary tensors.
REQUEST_ID, TRACEPARENT = b"x-request-id", b"traceparent"
TIMEOUT, TIMING = b"x-request-timeout", b"x-pilotlight-timing"
CONTENT_TYPE, ACCEPT = b"content-type", b"accept"
JSON_BYTES = b"inference-header-content-length"
# How its body is packed, and the verb that is meant where a client cannot send it.
CONTENT_ENCODING, METHOD_OVERRIDE = b"content-encoding", b"x-http-method-override"
_HEEDED = frozenset(
    {
        REQUEST_ID, TRACEPARENT, TIMEOUT, TIMING, CONTENT_TYPE, ACCEPT, JSON_BYTES, CONTENT_ENCODING,
        METHOD_OVERRIDE,
    }
)  # fmt: skip
# Heads that are remembered, and the longest of them in bytes.
_MANY, _LONG = 256, 1024
_LONGEST_VERB = 32


class Head:
    """What a request says before its body comes.

    `length` is that of the body, 0 if it is not told. `told` has the headers that predictions heed, by name.
    `encoding` is what its body is packed with, and `override` another verb that a header tells; "" mostly.
    `known` is what who answers it wants to remember of it, for the next one that says the same. With a
    `refusal` nobody is asked: it is answered with that. All answers have the headers `answer_headers` too.
    """

    __slots__ = (
        "answer_headers",
        "encoding",
        "headers",
        "known",
        "length",
        "method",
        "override",
        "path",
        "refusal",
        "told",
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
        refusal: ServingError | None = None,
        answer_headers: Headers = (),
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.length = length
        self.version = version
        self.refusal = refusal
        self.answer_headers = answer_headers
        self.known: Any = None
        self.told: Mapping[bytes, bytes] = {
            name: value for name, value in reversed(headers) if name in _HEEDED
        }
        self.encoding = ""
        override = self.told.get(METHOD_OVERRIDE, b"").decode("latin-1")
        self.override = "" if override == method else override
        if CONTENT_ENCODING in self.told:
            self.encoding = encoding_of(value for name, value in headers if name == CONTENT_ENCODING)

    @property
    def asked(self) -> Path | None:
        """The prediction that it asks for; None if it asks for none."""
        return parse(self.path)

    @property
    def wanted_method(self) -> str:
        """The verb that it means."""
        return self.override[:_LONGEST_VERB] if self.override and self.method == "POST" else self.method


class Heads:
    """The memory; `get` finds a head by its bytes, up to and with the empty line."""

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}
        self.get = self._known.get

    def keep(self, raw: bytes, head: Head) -> None:
        """Remember one that asks for its connection to be kept and tells the length of its body.

        Not where the bytes can be read in two ways: each header must be a line, and lines end in one way.
        """
        if len(raw) <= _LONG and raw.count(b"\n") == raw.count(b"\r\n") == len(head.headers) + 2:
            if len(self._known) >= _MANY:
                self._known.clear()
            self._known[raw] = head

    def __len__(self) -> int:
        return len(self._known)
