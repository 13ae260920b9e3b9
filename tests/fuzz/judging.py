"""What an attempt is held against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from serving.errors import ServingError, error_to_json, http_status


def refused(does: Callable[[], Any]) -> bool:
    """Whether it was refused, as bad input is to be; anything else that it raises is a crash."""
    try:
        does()
    except ServingError as error:
        assert 400 <= http_status(error) < 500 or http_status(error) == 501, (
            f"{type(error).__name__}: {error}"
        )
        orjson.dumps(error_to_json(error))
        return True
    return False


def same(one: Any, other: Any) -> None:
    """Two batches with the same values, types and shapes; Python's values come from one parser only."""
    assert type(one) is type(other), (one, other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            same(one[name], other[name])
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), (one, other)
        if one.dtype.kind == "O":
            assert one.tolist() == other.tolist()
        else:
            assert one.tobytes() == other.tobytes(), (one, other)
