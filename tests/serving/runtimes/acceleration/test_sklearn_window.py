from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.runtimes.acceleration.sklearn.window import Layout, Windows


@given(st.integers(1, 40), st.integers(1, 100), st.integers(1, 80), st.data())
def test_a_window_shows_the_number_of_its_tree_and_the_row(
    trees: int, width: int, count: int, data: st.DataObject
) -> None:
    """For every row and tree, whatever their numbers: column 0 and the shifted features."""
    layout = Layout(trees, width)
    windows = Windows(layout, np.float64)
    rows = np.random.default_rng(0).normal(size=(count, width))
    tree, feature = data.draw(st.integers(0, trees - 1)), data.draw(st.integers(0, width - 1))
    column = layout.shift(tree) + feature

    assert windows.through(rows, lambda view: view[:, 0].copy()).tolist() == [
        [float(number)] * count for number in range(trees)
    ]
    np.testing.assert_array_equal(
        windows.through(rows, lambda view: view[:, column].copy())[tree], rows[:, feature]
    )
