from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serving.runtimes.finite_check import MAX_FLOAT32, is_finite


@pytest.mark.parametrize(
    ("rows", "finite", "but_missing"),
    [
        ([[1.0, -2.0]], True, True),
        ([[1, 2**62]], True, True),
        ([[MAX_FLOAT32, -MAX_FLOAT32]], True, True),
        ([[1e30, 1e200]], False, False),
        ([[np.nan, 1.0]], False, True),
        ([[np.nan, np.nan]], False, True),
        ([[np.nan, 1e39]], False, False),
        ([[np.inf, 1.0]], False, False),
        ([[np.nan, -np.inf]], False, False),
        ([[]], False, False),
    ],
)
def test_finite_means_in_float32_too(rows: Any, finite: bool, but_missing: bool) -> None:
    """Missing values aside, where they are allowed; integers always are."""
    assert is_finite(np.array(rows)) is finite
    assert is_finite(np.array(rows), allow_nan=True) is but_missing


def test_what_is_no_array_of_numbers_is_not() -> None:
    """Lists are left to the library."""
    assert not is_finite([[1.0]])
