"""Rows on which a wrong equivalent of a scikit-learn model would show, made from the model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.acceleration.sklearn import linear_models, tree_ensembles
from serving.acceleration.sklearn.candidates import split_pipeline
from serving.acceleration.sklearn.joined_trees import NodeFields
from serving.runtimes.feature_rows import make_numeric_rows
from serving.runtimes.instance_batch import MAX_FLOAT32, is_finite_float32

# Rows of a kind, splits of the trees, borders between classes: fewer where rows are wide.
_MAX_ROWS, _MIN_ROWS = 160, 8
_MAX_NUMBERS = 125_000  # in the rows of a kind
_EXTREMES = (
    0.0,
    -0.0,
    MAX_FLOAT32,
    -MAX_FLOAT32,
    1e-40,
    -1e-310,
    5e-324,
    1.0 + 2.0**-24,
    16777217.0,
    2.0**53 + 2,
)
_EXTREME_INTEGERS = (0, 1, -1, 2**24 + 1, 2**31, 2**53 + 1, -(2**62) - 1, 2**63 - 1)


def make_verification_rows(estimator: Any, width: int, *, allow_nan: bool) -> list[NDArray[Any]]:
    """Batches of float64 and int64 rows; with `allow_nan` also rows with NaN.

    Rows are made in front of the last step and led back through those before it, as far as these can.
    Those that become infinite on the way forward are left out.
    """
    transformers, last = split_pipeline(estimator)
    random = np.random.default_rng(0)
    inner = getattr(last, "n_features_in_", width)
    most = max(_MIN_ROWS, min(_MAX_ROWS, _MAX_NUMBERS // max(width, inner)))
    special = [*_make_border_rows(last, inner, most, random)]
    batches = [_invert_transforms(transformers, rows, width) for rows in special]
    typical = np.concatenate([*(batch[:most] for batch in batches), make_numeric_rows(most, width)])
    batches.append(typical)
    batches.append(np.clip(np.rint(typical), -(2.0**62), 2.0**62).astype(np.int64))
    batches.append(_make_value_rows(_EXTREMES, typical, random))
    batches.append(_make_value_rows(_EXTREME_INTEGERS, batches[-2], random))
    if allow_nan:
        lacking = typical.copy()
        lacking[random.random(lacking.shape) < 0.3] = np.nan
        batches.append(lacking)
    kept = [_keep_finite_rows(batch, transformers, allow_nan) for batch in batches]
    return [batch for batch in kept if len(batch)]


def _keep_finite_rows(rows: NDArray[Any], transformers: Sequence[Any], allow_nan: bool) -> NDArray[Any]:
    """The rows that stay finite through all of these steps."""
    with np.errstate(all="ignore"):
        if _stays_finite(rows, transformers, allow_nan):
            return rows
        return rows[[_stays_finite(row[None], transformers, allow_nan) for row in rows]]


def _stays_finite(rows: NDArray[Any], transformers: Sequence[Any], allow_nan: bool) -> bool:
    if not is_finite_float32(rows, allow_nan=allow_nan):
        return False
    for one in transformers:
        try:
            rows = one.transform(rows)
        except ValueError:  # it has found a row wanting
            return False
        if not is_finite_float32(rows, allow_nan=allow_nan):
            return False
    return True


def _make_border_rows(
    last: Any, width: int, most: int, random: np.random.Generator
) -> Iterator[NDArray[Any]]:
    """Rows at the borders between the answers of a model, all float64."""
    kind = tree_ensembles.find_ensemble_kind(last)
    if kind is not None:
        yield make_split_rows(kind.nodes(last), kind.fields, width, most, random)
    elif linear_models.is_linear(last) and isinstance(last.coef_, np.ndarray):
        yield from make_linear_border_rows(np.atleast_2d(last.coef_), np.ravel(last.intercept_), most, random)


# Trees.


def make_split_rows(
    nodes: Sequence[NDArray[Any]], fields: NodeFields, width: int, most: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """Rows that reach a split and lie on its threshold, and on both sides as near as can be."""
    chosen = itertools.islice(_choose_splits(nodes, fields, random), most)
    found = [row for tree, node in chosen for row in _make_rows_around_threshold(tree, node, fields, width)]
    return np.array(found).reshape(-1, width)


def _choose_splits(
    nodes: Sequence[NDArray[Any]], fields: NodeFields, random: np.random.Generator
) -> Iterator[tuple[NDArray[Any], int]]:
    """Splits by chance, as many of one feature as of another while there are any."""
    inner = [np.flatnonzero(fields.is_inner(tree)) for tree in nodes]
    tree_of = np.repeat(np.arange(len(nodes)), [len(one) for one in inner])
    node_of = np.concatenate(inner)
    feature_of = np.concatenate([tree[fields.feature][one] for tree, one in zip(nodes, inner, strict=True)])
    order = random.permutation(len(node_of))
    features = feature_of[order]
    # How often its feature came before it: first all that come first.
    turn = np.empty(len(order), np.intp)
    for feature in np.unique(features):
        places = np.flatnonzero(features == feature)
        turn[places] = np.arange(len(places))
    for place in order[np.argsort(turn, kind="stable")]:
        yield nodes[tree_of[place]], int(node_of[place])


def _make_rows_around_threshold(
    tree: NDArray[Any], node: int, fields: NodeFields, width: int
) -> Iterator[NDArray[np.float64]]:
    low, high = np.full(width, -np.inf), np.full(width, np.inf)
    for parent, to_left in _walk_to_root(tree, node, fields):
        feature, threshold = tree[fields.feature][parent], tree[fields.threshold][parent]
        if to_left:
            high[feature] = min(high[feature], threshold)
        else:
            low[feature] = max(low[feature], threshold)
    # Above `low`, not above `high`: the middle if there are both.
    with np.errstate(invalid="ignore", over="ignore"):
        middle = np.where(np.isfinite(low), np.where(np.isfinite(high), low / 2 + high / 2, low + 1), high)
    row = np.where(np.isfinite(middle), middle, 0.0).astype(np.float64)
    threshold = float(tree[fields.threshold][node])
    for value in _list_neighbours(threshold):
        row[tree[fields.feature][node]] = value
        yield row.copy()


def _walk_to_root(tree: NDArray[Any], node: int, fields: NodeFields) -> Iterator[tuple[int, bool]]:
    """The splits above a node, and whether the way goes on to the left."""
    inner = np.flatnonzero(fields.is_inner(tree))
    left, right = tree[fields.left][inner], tree[fields.right][inner]
    while node:
        from_left = np.flatnonzero(left == node)
        parent = int(inner[from_left[0] if len(from_left) else np.flatnonzero(right == node)[0]])
        yield parent, bool(len(from_left))
        node = parent


def _list_neighbours(threshold: float) -> list[float]:
    """A threshold, the float64 and float32 values next to it, and one between each two of the latter."""
    if abs(threshold) >= MAX_FLOAT32:
        return [0.0]
    narrow = np.float32(threshold)
    below, above = (float(np.nextafter(narrow, np.float32(side))) for side in (-np.inf, np.inf))
    middle = float(narrow)
    values = [
        threshold,
        float(np.nextafter(threshold, -np.inf)),
        float(np.nextafter(threshold, np.inf)),
        below,
        middle,
        above,
        (below + middle) / 2,
        (middle + above) / 2,
    ]
    return [float(np.clip(value, -MAX_FLOAT32, MAX_FLOAT32)) for value in values]


# Linear models.


def make_linear_border_rows(
    coefficients: NDArray[Any], intercepts: NDArray[Any], most: int, random: np.random.Generator
) -> Iterator[NDArray[np.float64]]:
    """Rows where two classes, or the signs of one score, come out as near to each other as can be."""
    width = coefficients.shape[1]
    rows = random.standard_normal((most, width)) * 10.0 ** random.integers(-2, 4, (most, 1))
    if len(coefficients) == 1:
        slopes, offsets = coefficients, intercepts
    else:
        one = random.integers(0, len(coefficients), most)
        other = (one + random.integers(1, len(coefficients), most)) % len(coefficients)
        offsets = np.broadcast_to(intercepts, len(coefficients))
        slopes, offsets = coefficients[one] - coefficients[other], offsets[one] - offsets[other]
    lengths = (slopes**2).sum(axis=1, keepdims=True)
    distance = (rows * slopes).sum(axis=1, keepdims=True) + np.reshape(offsets, (-1, 1))
    with np.errstate(all="ignore"):
        borders = rows - distance / lengths * slopes
    yield np.where(np.isfinite(borders), borders, 0.0)


# All.


def _make_value_rows(
    values: Sequence[float], rows: NDArray[Any], random: np.random.Generator
) -> NDArray[Any]:
    """Each of the values as a whole row, and in one place of an ordinary row."""
    alike = np.repeat(np.array(values, rows.dtype)[:, None], rows.shape[1], axis=1)
    single = rows[: len(values)].copy()
    single[np.arange(len(single)), random.integers(0, rows.shape[1], len(single))] = values[: len(single)]
    return np.concatenate([alike, single])


def _invert_transforms(transformers: Sequence[Any], rows: NDArray[Any], width: int) -> NDArray[Any]:
    """Rows that these steps would make about those `rows` of; any rows where it cannot be said."""
    count = len(rows)
    try:
        for one in reversed(transformers):
            rows = one.inverse_transform(rows)
    except (AttributeError, ValueError, NotImplementedError):
        return make_numeric_rows(count, width)
    return rows if rows.shape[1] == width else make_numeric_rows(count, width)
