"""Rows for tests of faster ways, and what is expected of the answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray


def assert_same_bits(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tolist() == other.tolist() if one.dtype.hasobject else one.tobytes() == other.tobytes()


@st.composite
def rows_like(
    draw: st.DrawFn, known: NDArray[Any], *, splits: tuple[float, ...] = (), missing: bool = False
) -> NDArray[Any]:
    """Some of the `known` rows with numbers of any kind in places: also `splits`, and what lies next to them.

    Now and then they are integers; with `missing` some are NaN.
    """
    rows = known[draw(st.lists(st.integers(0, len(known) - 1), min_size=1, max_size=70))].astype(np.float64)
    largest = float(np.finfo(np.float32).max)
    numbers = [st.floats(-largest, largest), st.floats(-1e3, 1e3, width=32)]
    if splits:
        near = st.sampled_from([value for split in splits for value in neighbours(split)])
        numbers += [near, near, near]
    if missing:
        numbers.append(st.just(float("nan")))
    for _ in range(draw(st.integers(0, 12))):
        row, column = draw(st.integers(0, len(rows) - 1)), draw(st.integers(0, rows.shape[1] - 1))
        rows[row, column] = draw(st.one_of(numbers))
    if draw(st.integers(0, 4)) == 0 and not np.isnan(rows).any():
        return np.clip(rows, -(2.0**62), 2.0**62).astype(np.int64)
    return rows


def neighbours(split: float) -> list[float]:
    """The numbers about a split that rounding to float32 may lead over it."""
    narrow = np.float32(split)
    beside = [float(np.nextafter(narrow, np.float32(side))) for side in (-np.inf, np.inf)]
    return [
        split,
        float(narrow),
        *beside,
        *(float(np.nextafter(split, side)) for side in (-np.inf, np.inf)),
        *((one + float(narrow)) / 2 for one in beside),
    ]
