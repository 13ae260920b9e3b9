"""JSON into Python values, unless it is nested too deeply."""

from __future__ import annotations

from typing import Any

import orjson

# How deep orjson follows; it takes no other limit.
ORJSON_LEVELS = 1024
# How deep a text may be where there is no setting for it.
LEVELS = 100

# Bytes up to which counting brackets is cheaper than what it saves.
_GLANCE = 4096


class TooDeepError(ValueError):
    """Lists and objects are nested deeper than is allowed."""

    def __init__(self, levels: int) -> None:
        super().__init__(
            f"The request body is nested too deeply: more than {levels} levels (setting max_json_depth)."
        )


def loads(body: bytes | bytearray, levels: int) -> Any:
    """The value of a JSON text, its lists and objects nested at most `levels` deep, the outermost counted.

    Raises TooDeepError, or orjson.JSONDecodeError as orjson does.
    """
    try:
        return _loads(body, levels)
    except orjson.JSONDecodeError as error:
        if "depth limit" in error.msg:
            raise TooDeepError(min(levels, ORJSON_LEVELS)) from error
        raise


def _loads(body: bytes | bytearray, levels: int) -> Any:
    if _shallow(body, levels):
        return orjson.loads(body)
    # The text is put so far down that orjson's own limit is ours: nothing else is as fast and as exact.
    around = ORJSON_LEVELS - levels
    try:
        value = orjson.loads(b"[" * around + body + b"]" * around)
        for _ in range(around):
            (value,) = value
    except ValueError:
        orjson.loads(body)  # tells where the error is, without what was put around
        raise TooDeepError(levels) from None
    return value


def _shallow(body: bytes | bytearray, levels: int) -> bool:
    """Whether a text cannot be too deep, as far as a glance tells."""
    if levels >= ORJSON_LEVELS or len(body) < 2 * levels:
        return True
    return len(body) < _GLANCE and body.count(b"[") + body.count(b"{") <= levels
