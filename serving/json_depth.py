"""JSON parsing with a limit of nesting."""

from __future__ import annotations

from typing import Any

import orjson

# orjson's own fixed limit.
ORJSON_MAX_DEPTH = 1024
# The limit where there is no setting for it.
DEFAULT_MAX_DEPTH = 100

# Bytes up to which counting brackets is cheaper than the parse that it saves.
_CHEAP_SCAN_BYTES = 4096


class TooDeepError(ValueError):
    """Lists and objects are nested deeper than the limit."""

    def __init__(self, levels: int) -> None:
        super().__init__(
            f"The request body is nested too deeply: more than {levels} levels (setting max_json_depth)."
        )


def parse_json(body: bytes | bytearray, max_depth: int) -> Any:
    """The value of a JSON text, nested at most `max_depth` levels deep, the outermost counted.

    Raises TooDeepError, or orjson.JSONDecodeError.
    """
    try:
        return _parse_within_depth(body, max_depth)
    except orjson.JSONDecodeError as error:
        if "depth limit" in error.msg:
            raise TooDeepError(min(max_depth, ORJSON_MAX_DEPTH)) from error
        raise


def _parse_within_depth(body: bytes | bytearray, max_depth: int) -> Any:
    if _is_surely_shallow(body, max_depth):
        return orjson.loads(body)
    # Wrapping the text in lists makes orjson's limit ours: nothing else is as fast and as exact.
    wrappers = ORJSON_MAX_DEPTH - max_depth
    try:
        value = orjson.loads(b"[" * wrappers + body + b"]" * wrappers)
        for _ in range(wrappers):
            (value,) = value
    except ValueError:
        orjson.loads(body)  # raises the error with its position in the original text
        raise TooDeepError(max_depth) from None
    return value


def _is_surely_shallow(body: bytes | bytearray, max_depth: int) -> bool:
    """Whether a cheap scan shows that a text cannot be too deep."""
    if max_depth >= ORJSON_MAX_DEPTH or len(body) < 2 * max_depth:
        return True
    return len(body) < _CHEAP_SCAN_BYTES and body.count(b"[") + body.count(b"{") <= max_depth
