"""Many trees as one: a single call of the library's own loop finds the leaves of all rows in all trees.

Going down a tree takes some 30 ns, the call that does it 2 µs, so an ensemble of a hundred trees spends its
time on calls. Here the trees stand below one *selector*, a tree of its own that looks at column 0 for the
number of the tree that is meant. What the library is given is each row once per tree, with that number in
front, and none of these is written down: they are windows on one buffer, which begin one cell apart and have
their columns as many cells apart as there are rows. With three trees, and the rows x and y of two features:

    buffer            0  0  1  1  2  2 | x0 y0 x1 y1
    row x in tree 0   ^     .     .      .     .        x0 is in column 3
    row y in tree 0      ^     .     .      .     .     y0 is in column 3
    row x in tree 1         ^     .      .     .        x0 is in column 2

So tree t looks for feature f in column 3 - t + f, whatever the number of rows. All rows go through one tree
before the next, whose nodes are then at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

# In one call, so that the buffer stays small.
_ROWS = 256
_BYTES = 4 << 20

# Takes windows, one to a row, and gives one number for each.
FindLeaves = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class WindowLayout:
    """Where in a window the features of a row are, for so many trees and features."""

    trees: int
    width: int

    @property
    def window_width(self) -> int:
        """The width of a window."""
        return self.trees + self.width

    def column_shift(self, tree: int) -> int:
        """By how many columns the features of a tree are shifted."""
        return self.trees - tree


class WindowBuffers:
    """The buffer, and the windows on it: for one thread at a time."""

    def __init__(self, layout: WindowLayout, dtype: type[np.floating[Any]]) -> None:
        self._layout = layout
        self._dtype = dtype
        self._single_row_buffer = self._last_buffer = _WindowBuffer(layout, dtype, 1)
        self._max_rows = max(1, min(_ROWS, _BYTES // self._single_row_buffer.size))

    def find_leaves(self, rows: NDArray[Any], find: FindLeaves) -> NDArray[Any]:
        """What `find` returns for each row in each tree, as (trees, rows) in C order.

        The rows are rounded to the dtype of the buffer.
        """
        most = self._max_rows
        if len(rows) <= most:
            return self._find_in_chunk(rows, find)
        starts = range(0, len(rows), most)
        return np.concatenate(
            [self._find_in_chunk(rows[start : start + most], find) for start in starts], axis=1
        )

    def _find_in_chunk(self, rows: NDArray[Any], find: FindLeaves) -> NDArray[Any]:
        count = len(rows)
        if count == 1:
            buffer = self._single_row_buffer
        else:
            if count != self._last_buffer.count:
                self._last_buffer = _WindowBuffer(self._layout, self._dtype, count)
            buffer = self._last_buffer
        buffer.features[:] = rows.T
        return find(buffer.windows).reshape(self._layout.trees, count)


class _WindowBuffer:
    """For so many rows: their `features`, to be written as (features, rows), and the `windows` on them.

    `size` is what it takes, in bytes.
    """

    def __init__(self, layout: WindowLayout, dtype: type[np.floating[Any]], count: int) -> None:
        trees = layout.trees
        self.count = count
        # The last window reaches far beyond the features, if only in columns that no tree looks at.
        cells = np.zeros((layout.window_width + trees, count), dtype)
        cells[:trees] = np.arange(trees)[:, None]
        self.features = cells[trees : layout.window_width]
        self.windows = as_strided(
            cells, (trees * count, layout.window_width), (cells.itemsize, count * cells.itemsize)
        )
        self.size = cells.nbytes


@dataclass(frozen=True, slots=True)
class NodeFields:
    """What the parts of a node are called in an array of nodes, and which of the nodes are no leaves."""

    left: str
    right: str
    feature: str
    threshold: str
    is_inner: Callable[[NDArray[Any]], NDArray[np.bool_]]


def join_trees(trees: Sequence[NDArray[Any]], fields: NodeFields, layout: WindowLayout) -> NDArray[Any]:
    """The nodes of one tree: the `trees` below a selector, their features where the windows have them.

    The first `len(trees) - 1` nodes are the selector's, then come those of the trees, in order.
    """
    selecting = len(trees) - 1
    sizes = np.array([len(tree) for tree in trees])
    roots = selecting + np.cumsum(sizes) - sizes
    nodes = np.zeros(selecting + sizes.sum(), trees[0].dtype)
    # Tree by tree: what is in hand then is small.
    for number, tree in enumerate(trees):
        own = nodes[roots[number] : roots[number] + len(tree)]
        own[:] = tree
        inner = fields.is_inner(tree)
        for name, further in (
            (fields.left, roots[number]),
            (fields.right, roots[number]),
            (fields.feature, layout.column_shift(number)),
        ):
            own[name] += np.where(inner, further, 0).astype(own.dtype[name])
    _write_selector(nodes, fields, roots)
    return nodes


def _write_selector(nodes: NDArray[Any], fields: NodeFields, roots: NDArray[Any]) -> None:
    """Make the first nodes a tree that leads to root r where column 0 holds r."""
    made = 0

    def add_selector_node(first: int, last: int) -> int:
        """The node that leads to the roots from `first` to `last`."""
        nonlocal made
        if first == last:
            return int(roots[first])
        number, middle = made, (first + last) // 2
        made += 1
        nodes[fields.feature][number] = 0
        nodes[fields.threshold][number] = middle
        nodes[fields.left][number] = add_selector_node(first, middle)
        nodes[fields.right][number] = add_selector_node(middle + 1, last)
        return number

    add_selector_node(0, len(roots) - 1)
