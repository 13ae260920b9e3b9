"""Request metadata over HTTP, from path and headers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from serving.errors import InvalidArgument
from serving.http_headers import (
    ACCEPT,
    BINARY,
    CONTENT_TYPE,
    JSON,
    JSON_BYTES,
    NPY,
    negotiate_media_type,
    strip_parameters,
)
from serving.protocols import DEFAULT_METADATA, Dialect, RequestMetadata
from serving.protocols.paths import PredictionPath

# Content types of AI Platform's route besides JSON, which all others are taken for: clients send many types
# for it, curl that of a form.
_BINARY_TYPES = frozenset({NPY, BINARY})
_RESPONSE_TYPES = (JSON, NPY, BINARY)
# Of the longest length that can be meant.
_MAX_LENGTH_DIGITS = 18
# Cached metadata of AI Platform's requests, unless the headers are long: clients repeat the same few.
_CACHE_SIZE, _MAX_CACHED_LENGTH = 256, 512


def parse_request_metadata(
    path: PredictionPath, headers: Mapping[bytes, bytes], version: str = ""
) -> RequestMetadata:
    """Return the metadata of a request; `DEFAULT_METADATA` itself for an ordinary one.

    `version` is the protocol's name of the version that answers. Of the headers only what makes a difference
    is kept: `content_type` is "" for JSON, and `accept` is the type that the response must have, "" for JSON.
    Raises InvalidArgument for headers that cannot be parsed, NotAcceptable if no response type is acceptable.
    """
    match path.dialect:
        case Dialect.AI_PLATFORM:
            given, accept = headers.get(CONTENT_TYPE, b""), headers.get(ACCEPT)
            short = len(given) + len(accept or b"") <= _MAX_CACHED_LENGTH
            call = (_parse_ai_platform_cached if short else _parse_ai_platform)(
                given, accept, headers.get(JSON_BYTES)
            )
            # Only these responses of this dialect contain the version.
            named = call.accept == BINARY
            return msgspec.structs.replace(call, model=path.model, version=version) if named else call
        case Dialect.INFERENCE:
            json_bytes = _parse_json_bytes(headers.get(JSON_BYTES))
            return RequestMetadata(path.dialect, path.verb, path.model, version, json_bytes=json_bytes)
        case _:
            return RequestMetadata(path.dialect, path.verb, path.model, version)


def _parse_ai_platform(given: bytes, accept: bytes | None, length: bytes | None) -> RequestMetadata:
    content_type = strip_parameters(given.decode("latin-1"))
    wanted = JSON if accept is None else negotiate_media_type(accept.decode("latin-1"), _RESPONSE_TYPES)
    if content_type not in _BINARY_TYPES:
        return DEFAULT_METADATA if wanted == JSON else RequestMetadata(accept=wanted)
    json_bytes = _parse_json_bytes(length) if content_type == BINARY else None
    return RequestMetadata(
        content_type=content_type, accept="" if wanted == JSON else wanted, json_bytes=json_bytes
    )


_parse_ai_platform_cached = lru_cache(_CACHE_SIZE)(_parse_ai_platform)


def _parse_json_bytes(given: bytes | None) -> int | None:
    if given is None:
        return None
    if not given.isdigit() or len(given) > _MAX_LENGTH_DIGITS:
        raise InvalidArgument(
            "The header Inference-Header-Content-Length must be a number of bytes: that of the JSON in front "
            "of the binary tensors."
        )
    return int(given)
