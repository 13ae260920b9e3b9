"""Whether numbers are such that a library's own search for NaN and infinities would find none."""

from __future__ import annotations

from typing import Any

import numpy as np

# What is larger becomes infinite in the float32 that trees compute with.
MAX_FLOAT32 = float(np.finfo(np.float32).max)


def is_finite(rows: Any, *, allow_nan: bool = False) -> bool:
    """Whether it is an array of numbers that are finite in float32 too; with `allow_nan` some may be NaN."""
    if not isinstance(rows, np.ndarray) or not rows.size:
        return False
    if rows.dtype.kind in "iu":
        return True
    # The sum of the squares is a third of the cost of the largest, and small only if all of them are.
    if rows.dtype == np.float64 and np.vdot(rows, rows) <= MAX_FLOAT32:
        return True
    numbers = np.abs(rows)
    if allow_nan:  # of these alone, the largest is NaN
        return not np.fmax.reduce(numbers, axis=None) > MAX_FLOAT32
    return bool(np.maximum.reduce(numbers, axis=None) <= MAX_FLOAT32)
