"""Many trees as one: a single call of the library's own loop finds the leaf of a row in every tree.

Going down a tree takes some 30 ns, the call that does it 2 µs, so an ensemble of a hundred trees spends its
time on calls. Here the trees stand below one *selector*, a tree of its own that looks at column 0 for the
number of the tree that is meant. What the library is given are as many rows as there are trees, equal but for
that number, and none of them is written down: they are windows on one buffer, each a cell further on.

    buffer     0  1  2  3 | x0 x1 x2      four trees, three features
    window 0   ^ . . . . . .              its column 0 holds 0, feature f is in column 4 + f
    window 1      ^ . . . . . .           its column 0 holds 1, feature f is in column 3 + f

So tree r looks for feature f in column 4 - r + f. Windows may also begin `step` cells apart. That makes the
buffer longer, and fewer of them begin within the features, where no tree is meant; their leaves are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

_WASTED = 16  # windows per row, at most, that begin within the features
_ROWS = 32  # in one call; more take longer for each, for they leave the nearest cache
_BYTES = 1 << 18  # of the buffer, as far as one row fits


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the windows on a row are, for so many trees and features."""

    trees: int
    width: int

    @property
    def step(self) -> int:
        """The cells between the beginnings of two windows."""
        return max(1, self.width // _WASTED)

    @property
    def columns(self) -> int:
        """The width of a window."""
        return self.step * self.trees + self.width

    @property
    def windows(self) -> int:
        """The windows per row, those that are dropped among them."""
        return self.trees + -(-self.width // self.step)

    def shift(self, tree: int) -> int:
        """By how many columns the features of a tree are shifted."""
        return self.step * (self.trees - tree)


class Windows:
    """The buffer, and the windows on it: for one thread at a time."""

    def __init__(self, layout: Layout, dtype: type[np.floating[Any]]) -> None:
        step, trees, cells = layout.step, layout.trees, layout.windows * layout.step
        size = np.dtype(dtype).itemsize
        rows = min(_ROWS, max(1, _BYTES // (cells * size)))
        # One more than there are rows: the last windows reach beyond the last row.
        blocks = np.zeros((rows + 1, cells), dtype)
        blocks[:, : step * trees : step] = np.arange(trees)
        self._layout = layout
        self._features = blocks[:rows, step * trees : layout.columns]
        self._first = self._features[0]
        self._all = as_strided(blocks, (rows * layout.windows, layout.columns), (step * size, size))
        self._one = self._all[:trees]

    def through(self, rows: NDArray[Any], walk: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
        """What `walk` finds for each row in each tree, as (trees, rows).

        `walk` takes windows, one to a row, and gives one number for each. The rows are rounded to the dtype
        of the buffer.
        """
        if len(rows) == 1:
            self._first[:] = rows[0]
            return walk(self._one)[:, None]
        most = len(self._features)
        found = [self._part(rows[start : start + most], walk) for start in range(0, len(rows), most)]
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)

    def _part(self, rows: NDArray[Any], walk: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
        count, layout = len(rows), self._layout
        self._features[:count] = rows
        found = walk(self._all[: count * layout.windows])
        return found.reshape(count, layout.windows)[:, : layout.trees].T


@dataclass(frozen=True, slots=True)
class Fields:
    """What the parts of a node are called in an array of nodes, and which of the nodes are no leaves."""

    left: str
    right: str
    feature: str
    threshold: str
    inner: Callable[[NDArray[Any]], NDArray[np.bool_]]


def joined(trees: Sequence[NDArray[Any]], fields: Fields, layout: Layout) -> NDArray[Any]:
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
        inner = fields.inner(tree)
        for name, further in (
            (fields.left, roots[number]),
            (fields.right, roots[number]),
            (fields.feature, layout.shift(number)),
        ):
            own[name] += np.where(inner, further, 0).astype(own.dtype[name])
    _select(nodes, fields, roots)
    return nodes


def _select(nodes: NDArray[Any], fields: Fields, roots: NDArray[Any]) -> None:
    """Make the first nodes a tree that leads to root r where column 0 holds r."""
    made = 0

    def among(first: int, last: int) -> int:
        """The node that leads to the roots from `first` to `last`."""
        nonlocal made
        if first == last:
            return int(roots[first])
        number, middle = made, (first + last) // 2
        made += 1
        nodes[fields.feature][number] = 0
        nodes[fields.threshold][number] = middle
        nodes[fields.left][number] = among(first, middle)
        nodes[fields.right][number] = among(middle + 1, last)
        return number

    among(0, len(roots) - 1)
