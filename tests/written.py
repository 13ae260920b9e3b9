"""What JSON answers hold of a library's predictions."""

from __future__ import annotations

from typing import Any

import orjson


def as_written(predictions: Any) -> Any:
    """The numbers of an array as they are read from an answer: of float32 those with the fewest digits."""
    return orjson.loads(orjson.dumps(predictions, option=orjson.OPT_SERIALIZE_NUMPY))
