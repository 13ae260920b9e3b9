"""JSON into Python values, unless it is nested too deeply."""

from __future__ import annotations

from typing import Any

import orjson

# How deep orjson follows; it takes no other limit.
ORJSON_MAX_DEPTH = 1024
# How deep a text may be where there is no setting for it.
DEFAULT_MAX_DEPTH = 100

# Bytes up to which counting brackets is cheaper than what it saves.
_CHEAP_SCAN_BYTES = 4096


class TooDeepError(ValueError):
    """Lists and objects are nested deeper than is allowed."""

    def __init__(self, levels: int) -> None:
        super().__init__(
            f"The request body is nested too deeply: more than {levels} levels (setting max_json_depth)."
        )


def parse_json(body: bytes | bytearray, max_depth: int) -> Any:
    """The value of a JSON text, its lists and objects nested at most `levels` deep, the outermost counted.

    Raises TooDeepError, or orjson.JSONDecodeError as orjson does.
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
    # The text is put so far down that orjson's own limit is ours: nothing else is as fast and as exact.
    around = ORJSON_MAX_DEPTH - max_depth
    try:
        value = orjson.loads(b"[" * around + body + b"]" * around)
        for _ in range(around):
            (value,) = value
    except ValueError:
        orjson.loads(body)  # tells where the error is, without what was put around
        raise TooDeepError(max_depth) from None
    return value


def _is_surely_shallow(body: bytes | bytearray, max_depth: int) -> bool:
    """Whether a text cannot be too deep, as far as a glance tells."""
    if max_depth >= ORJSON_MAX_DEPTH or len(body) < 2 * max_depth:
        return True
    return len(body) < _CHEAP_SCAN_BYTES and body.count(b"[") + body.count(b"{") <= max_depth
