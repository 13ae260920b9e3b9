from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from serving.acceleration.sklearn import joined_trees
from serving.acceleration.sklearn.joined_trees import WindowBuffers, WindowLayout


@given(st.integers(1, 40), st.integers(1, 100), st.integers(1, 80), st.data())
def test_a_window_shows_the_number_of_its_tree_and_the_row(
    trees: int, width: int, count: int, data: st.DataObject
) -> None:
    """For every row and tree, whatever their numbers: column 0 and the shifted features."""
    layout = WindowLayout(trees, width)
    windows = WindowBuffers(layout, np.float64)
    rows = np.random.default_rng(0).normal(size=(count, width))
    tree, feature = data.draw(st.integers(0, trees - 1)), data.draw(st.integers(0, width - 1))
    column = layout.column_shift(tree) + feature

    assert windows.find_leaves(rows, lambda view: view[:, 0].copy()).tolist() == [
        [float(number)] * count for number in range(trees)
    ]
    np.testing.assert_array_equal(
        windows.find_leaves(rows, lambda view: view[:, column].copy())[tree], rows[:, feature]
    )


def test_many_rows_go_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many at once as the buffer may hold."""
    monkeypatch.setattr(joined_trees, "_BYTES", 8 * (2 * 3 + 2) * 5)
    windows = WindowBuffers(WindowLayout(3, 2), np.float64)
    rows = np.arange(24.0).reshape(12, 2)
    parts: list[int] = []

    def walk(view: NDArray[Any]) -> NDArray[Any]:
        parts.append(len(view) // 3)
        return view[:, 3].copy()

    assert windows.find_leaves(rows, walk)[0].tolist() == rows[:, 0].tolist()
    assert parts == [5, 5, 2]
