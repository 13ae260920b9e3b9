"""Rows on which a wrong equivalent of a scikit-learn model would show, made from the model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.runtimes.acceleration.sklearn import linear, parts, trees
from serving.runtimes.acceleration.sklearn.window import Fields
from serving.runtimes.finite import LARGEST, is_finite
from serving.runtimes.frames import made_up

# Rows of a kind, splits of the trees, borders between classes: fewer where rows are wide.
_MOST, _FEWEST = 160, 8
_NUMBERS = 125_000  # in the rows of a kind
_EXTREMES = (0.0, -0.0, LARGEST, -LARGEST, 1e-40, -1e-310, 5e-324, 1.0 + 2.0**-24, 16777217.0, 2.0**53 + 2)
_WHOLE = (0, 1, -1, 2**24 + 1, 2**31, 2**53 + 1, -(2**62) - 1, 2**63 - 1)


def probes(estimator: Any, width: int, *, missing: bool) -> list[NDArray[Any]]:
    """Batches of float64 and int64 rows; with `missing` also such that lack values.

    Rows are made in front of the last step and led back through those before it, as far as these can.
    Those that become infinite on the way forward are left out.
    """
    transformers, last = parts(estimator)
    random = np.random.default_rng(0)
    inner = getattr(last, "n_features_in_", width)
    most = max(_FEWEST, min(_MOST, _NUMBERS // max(width, inner)))
    special = [*_special(last, inner, most, random)]
    batches = [_led_back(transformers, rows, width) for rows in special]
    typical = np.concatenate([*(batch[:most] for batch in batches), made_up(most, width)])
    batches.append(typical)
    batches.append(np.clip(np.rint(typical), -(2.0**62), 2.0**62).astype(np.int64))
    batches.append(_with(_EXTREMES, typical, random))
    batches.append(_with(_WHOLE, batches[-2], random))
    if missing:
        lacking = typical.copy()
        lacking[random.random(lacking.shape) < 0.3] = np.nan
        batches.append(lacking)
    kept = [_accepted(batch, transformers, missing) for batch in batches]
    return [batch for batch in kept if len(batch)]


def _accepted(rows: NDArray[Any], transformers: Sequence[Any], missing: bool) -> NDArray[Any]:
    """The rows that stay finite through all of these steps."""
    with np.errstate(all="ignore"):
        if _passes(rows, transformers, missing):
            return rows
        return rows[[_passes(row[None], transformers, missing) for row in rows]]


def _passes(rows: NDArray[Any], transformers: Sequence[Any], missing: bool) -> bool:
    if not is_finite(rows, missing=missing):
        return False
    for one in transformers:
        try:
            rows = one.transform(rows)
        except ValueError:  # it has found a row wanting
            return False
        if not is_finite(rows, missing=missing):
            return False
    return True


def _special(last: Any, width: int, most: int, random: np.random.Generator) -> Iterator[NDArray[Any]]:
    """Rows at the borders between the answers of a model, all float64."""
    kind = trees.kind_of(last)
    if kind is not None:
        yield around_splits(kind.nodes(last), kind.fields, width, most, random)
    elif linear.is_linear(last) and isinstance(last.coef_, np.ndarray):
        yield from on_borders(np.atleast_2d(last.coef_), np.ravel(last.intercept_), most, random)


# Trees.


def around_splits(
    nodes: Sequence[NDArray[Any]], fields: Fields, width: int, most: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """Rows that reach a split and lie on its threshold, and on both sides as near as can be."""
    chosen = itertools.islice(_chosen(nodes, fields, random), most)
    found = [row for tree, node in chosen for row in _around(tree, node, fields, width)]
    return np.array(found).reshape(-1, width)


def _chosen(
    nodes: Sequence[NDArray[Any]], fields: Fields, random: np.random.Generator
) -> Iterator[tuple[NDArray[Any], int]]:
    """Splits by chance, as many of one feature as of another while there are any."""
    inner = [np.flatnonzero(fields.inner(tree)) for tree in nodes]
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


def _around(tree: NDArray[Any], node: int, fields: Fields, width: int) -> Iterator[NDArray[np.float64]]:
    low, high = np.full(width, -np.inf), np.full(width, np.inf)
    for parent, to_left in _path(tree, node, fields):
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
    for value in _neighbours(threshold):
        row[tree[fields.feature][node]] = value
        yield row.copy()


def _path(tree: NDArray[Any], node: int, fields: Fields) -> Iterator[tuple[int, bool]]:
    """The splits above a node, and whether the way goes on to the left."""
    inner = np.flatnonzero(fields.inner(tree))
    left, right = tree[fields.left][inner], tree[fields.right][inner]
    while node:
        from_left = np.flatnonzero(left == node)
        parent = int(inner[from_left[0] if len(from_left) else np.flatnonzero(right == node)[0]])
        yield parent, bool(len(from_left))
        node = parent


def _neighbours(threshold: float) -> list[float]:
    """A threshold, the float64 and float32 values next to it, and one between each two of the latter."""
    if abs(threshold) >= LARGEST:
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
    return [float(np.clip(value, -LARGEST, LARGEST)) for value in values]


# Linear models.


def on_borders(
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


def _with(values: Sequence[float], rows: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    """Each of the values as a whole row, and in one place of an ordinary row."""
    alike = np.repeat(np.array(values, rows.dtype)[:, None], rows.shape[1], axis=1)
    single = rows[: len(values)].copy()
    single[np.arange(len(single)), random.integers(0, rows.shape[1], len(single))] = values[: len(single)]
    return np.concatenate([alike, single])


def _led_back(transformers: Sequence[Any], rows: NDArray[Any], width: int) -> NDArray[Any]:
    """Rows that these steps would make about those `rows` of; any rows where it cannot be said."""
    count = len(rows)
    try:
        for one in reversed(transformers):
            rows = one.inverse_transform(rows)
    except (AttributeError, ValueError, NotImplementedError):
        return made_up(count, width)
    return rows if rows.shape[1] == width else made_up(count, width)
