"""Rows on which a wrong equivalent of a tree model would show: around the numbers where trees part them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

_NODES, _NEAR, _TYPICAL, _INTEGERS = 256, 384, 256, 128
# Of a node: its threshold, the numbers on both sides of it, and no value.
_EDGES = 4
# In the rows of a kind there are no more numbers than these, so that wide rows are fewer, but not fewer than
# that many.
_NUMBERS, _FEWEST = 1 << 22, 8
# Where rows are few for being wide, `compact` makes several sets of them, over so many columns in all.
_SETS, _COLUMNS = 16, 1 << 18
_LARGEST = float(np.finfo(np.float32).max)
# Zeros, the smallest normal and denormal numbers, the largest ones, and a missing value.
_EXTREMES = (0.0, -0.0, 2.0**-126, -(2.0**-126), 2.0**-149, -(2.0**-149), _LARGEST, -_LARGEST, 1e9, np.nan)


@dataclass(frozen=True, slots=True)
class TreeNodes:
    """Nodes as parallel lists, as XGBoost keeps them: the root is node 0, a leaf's left child is -1.

    Rows go to the left where their feature is less than the threshold. Numeric nodes have a threshold, and no
    categories.
    """

    features: Sequence[int]
    thresholds: Sequence[float]
    left_children: Sequence[int]
    parents: Sequence[int]
    is_numeric: Sequence[bool]

    def threshold_nodes(self) -> Iterator[int]:
        """The nodes with a threshold."""
        return (node for node, left in enumerate(self.left_children) if left != -1 and self.is_numeric[node])


def make_verification_rows(
    trees: Sequence[TreeNodes], width: int, seed: int = 0
) -> list[NDArray[np.float64] | NDArray[np.int64]]:
    """Batches of rows, always the same ones for the same trees, of about 2,000 rows in all, or of fewer wide
    ones:

    - For every node, or many of them picked at random, rows that reach it, and there have its threshold, the
      float32 numbers on both sides of it, and no value.
    - Thresholds, their neighbours, doubles that round to one of these, extremes and missing values, mixed.
    - Typical rows: spread over what the thresholds span. And the same as integers.
    """
    random = np.random.default_rng(seed)
    most = max(_FEWEST, _NUMBERS // max(width, 1))
    by_feature = _collect_thresholds(trees, width)
    typical = np.column_stack(
        [_make_typical_values(numbers, min(_TYPICAL, most), random) for numbers in by_feature]
    )
    batches = [
        np.array(list(_make_threshold_rows(trees, typical, min(_NODES, most // _EDGES), random))),
        np.column_stack([_make_values_near(numbers, min(_NEAR, most), random) for numbers in by_feature]),
        typical,
        np.rint(typical[:_INTEGERS]).clip(-(2.0**53), 2.0**53).astype(np.int64),
    ]
    return [batch for batch in batches if batch.size]


def make_sparse_rows(trees: Sequence[TreeNodes], width: int) -> Iterator[sparse.csr_matrix]:
    """Probes that have values in those columns only that the trees split on: as many rows of a model of
    millions of columns as of a narrow one."""
    columns = np.unique([tree.features[node] for tree in trees for node in tree.threshold_nodes()]).astype(
        np.int32
    )
    if not columns.size:
        columns = np.zeros(1, np.int32)
    place_of = {int(column): place for place, column in enumerate(columns)}
    # Whatever a leaf or a categorical node has there is not asked for.
    narrow = [
        replace(tree, features=[place_of.get(feature, 0) for feature in tree.features]) for tree in trees
    ]
    rows = max(_FEWEST, _NUMBERS // len(columns))
    sets = min(-(-_NODES * _EDGES // rows), _SETS, max(1, _COLUMNS // len(columns)))
    for seed in range(sets):
        for batch in make_verification_rows(narrow, len(columns), seed):
            ends = np.arange(len(batch) + 1) * len(columns)
            yield sparse.csr_matrix(
                (batch.astype(np.float32).ravel(), np.tile(columns, len(batch)), ends),
                shape=(len(batch), width),
            )


def _collect_thresholds(trees: Sequence[TreeNodes], width: int) -> list[NDArray[np.float32]]:
    """Those of each feature, sorted."""
    found: list[set[float]] = [set() for _ in range(width)]
    for tree in trees:
        for node in tree.threshold_nodes():
            found[tree.features[node]].add(tree.thresholds[node])
    return [np.array(sorted(numbers), np.float32) for numbers in found]


def _make_threshold_rows(
    trees: Sequence[TreeNodes], typical: NDArray[np.float64], most: int, random: np.random.Generator
) -> Iterator[NDArray[np.float64]]:
    nodes = [(tree, node) for tree in trees for node in tree.threshold_nodes()]
    for place in random.permutation(len(nodes))[:most]:
        tree, node = nodes[place]
        row = typical[random.integers(len(typical))].copy()
        _route_to_node(row, tree, node)
        threshold = np.float32(tree.thresholds[node])
        for value in (threshold, _previous_float(threshold), _next_float(threshold), math.nan):
            row[tree.features[node]] = value
            yield row.copy()


def _route_to_node(row: NDArray[np.float64], tree: TreeNodes, node: int) -> None:
    """Have the row reach the node, by thresholds themselves or by the last number before them."""
    least: dict[int, float] = {}
    less_than: dict[int, float] = {}
    while node:
        child, node = node, tree.parents[node]
        feature, threshold = tree.features[node], tree.thresholds[node]
        if not tree.is_numeric[node]:
            continue
        if child == tree.left_children[node]:
            less_than[feature] = min(less_than.get(feature, math.inf), threshold)
        else:
            least[feature] = max(least.get(feature, -math.inf), threshold)
    for feature, threshold in less_than.items():
        row[feature] = _previous_float(np.float32(threshold))
    for feature, threshold in least.items():
        row[feature] = np.float32(threshold)


def _make_values_near(
    thresholds: NDArray[np.float32], count: int, random: np.random.Generator
) -> NDArray[np.float64]:
    chosen = random.permutation(thresholds)[: (_NEAR - len(_EXTREMES)) // 5]
    sides = [chosen, _previous_float(chosen), _next_float(chosen)]
    exact, before, after = (side.astype(np.float64) for side in sides)
    # A quarter of the way to the next float32: rounding makes it the threshold.
    rounded = [exact + (before - exact) / 4, exact + (after - exact) / 4]
    return random.permutation(np.resize(np.concatenate([exact, before, after, *rounded, _EXTREMES]), count))


def _make_typical_values(
    thresholds: NDArray[np.float32], count: int, random: np.random.Generator
) -> NDArray[np.float64]:
    if not thresholds.size:
        return random.standard_normal(count)
    low, high = float(thresholds[0]), float(thresholds[-1])
    margin = (high - low) / 8 or 1.0
    return random.uniform(max(low - margin, -_LARGEST), min(high + margin, _LARGEST), count)


def _previous_float(numbers: NDArray[np.float32] | np.float32) -> NDArray[np.float32]:
    return np.nextafter(numbers, np.float32(-_LARGEST))


def _next_float(numbers: NDArray[np.float32] | np.float32) -> NDArray[np.float32]:
    return np.nextafter(numbers, np.float32(_LARGEST))
