"""Whether the text of a LightGBM tree describes a tree.

LightGBM follows the children, features and categories of nodes wherever they lead: around in a circle, or
beyond its own memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

_CATEGORICAL = 1


def check_tree(text: str, width: int) -> None:
    """Raises ValueError, and KeyError for a field that is missing; `width` is the number of features."""
    lines = [line.split("=", 1) for line in text.splitlines() if "=" in line]
    fields = dict(lines)
    if len(fields) < len(lines):
        raise ValueError("a field of a tree is there twice")
    leaves = int(fields["num_leaves"])
    if leaves < 1:
        raise ValueError(f"a tree has {leaves} leaves")
    if leaves > 1:
        _check_children(_read_numbers(fields, "left_child"), _read_numbers(fields, "right_child"), leaves)
        features = _read_numbers(fields, "split_feature")
        if len(features) != leaves - 1 or not _are_within(features, width):
            raise ValueError("a node asks for a feature that is not there")
        _check_categories(fields, leaves)
        if not _are_within(_read_numbers(fields, "leaf_features"), width):
            raise ValueError("a leaf asks for a feature that is not there")


def _check_children(left: NDArray[np.int64], right: NDArray[np.int64], leaves: int) -> None:
    """Node 0 is the root; a child is a node, or minus the number of a leaf minus 1."""
    children = np.concatenate((left, right))
    inner, reached = np.sort(children[children >= 0]), ~children[children < 0]
    if len(left) != leaves - 1 or len(right) != leaves - 1 or not _are_within(reached, leaves):
        raise ValueError("a node has a child that is not there")
    # Each node but the root is the child of one: there is no way back to a node.
    if not np.array_equal(inner, np.arange(1, leaves - 1)):
        raise ValueError("its nodes are no tree")


def _check_categories(fields: Mapping[str, str], leaves: int) -> None:
    """The threshold of a node for categories is the number of a set of bits."""
    types, thresholds = _read_numbers(fields, "decision_type"), fields["threshold"].split()
    if len(types) != leaves - 1 or len(thresholds) != leaves - 1:
        raise ValueError("a node has no threshold")
    sets = [int(float(thresholds[node])) for node in np.flatnonzero(types & _CATEGORICAL)]
    count = int(fields.get("num_cat", "0"))
    if not count and not sets:
        return
    ends, words = _read_numbers(fields, "cat_boundaries"), len(fields["cat_threshold"].split())
    if count < 0 or len(ends) != count + 1 or ends[0] != 0 or ends[-1] != words or np.any(np.diff(ends) < 0):
        raise ValueError("a set of categories is not there")
    if not _are_within(np.array(sets, np.int64), count):
        raise ValueError("a node asks for a set of categories that is not there")


def _read_numbers(fields: Mapping[str, str], name: str) -> NDArray[np.int64]:
    """None where there is no such field."""
    try:
        return np.array(fields.get(name, "").split(), np.int64)
    except OverflowError as error:
        raise ValueError(f"{name} has a number that is too large") from error


def _are_within(numbers: NDArray[np.int64], end: int) -> bool:
    return not numbers.size or bool(numbers.min() >= 0 and numbers.max() < end)
