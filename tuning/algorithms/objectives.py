"""Objectives of trials as scores: the greater, the better."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuning.algorithms.ranges import Array
from tuning.study import Goal, Metric

# Values further below the median than this many times the distance from the median to the best are cut off.
DEFAULT_CLIP = 1.5
# The share of the plain sum in a scalarisation: without it points that are better in some metric only tie.
_SUM_SHARE = 0.05


def draw_weights(metrics: Sequence[Metric], random: np.random.Generator) -> Array:
    """Weights of the metrics by chance, so that over many suggestions all of the Pareto front is searched."""
    return random.dirichlet(np.ones(len(metrics)))


def compute_scores(
    metrics: Sequence[Metric], objectives: Array, weights: Array, clip: float = DEFAULT_CLIP
) -> Array:
    """One score per trial, of mean 0 and variance 1. `objectives` has the shape (trials, metrics)."""
    signs = np.array([1.0 if metric.goal is Goal.MAXIMIZE else -1.0 for metric in metrics])
    scores = np.column_stack(
        [standardize(clip_bad_values(column, clip)) for column in (objectives * signs).T]
    )
    if len(metrics) == 1:
        return np.asarray(scores[:, 0])
    below_best = (scores - scores.max(axis=0)) * weights
    return standardize(below_best.min(axis=1) + _SUM_SHARE * below_best.sum(axis=1))


def clip_bad_values(scores: Array, most: float = DEFAULT_CLIP) -> Array:
    """Cut off the worst ones: how bad they are must not decide what the good ones look like."""
    middle, best = float(np.median(scores)), float(scores.max())
    if middle == best:  # half of all or more
        return scores
    return np.maximum(scores, middle - most * (best - middle))


def standardize(scores: Array) -> Array:
    # Scaled down first: the squares of huge values would be infinite.
    largest = np.abs(scores).max()
    scaled = scores / largest if largest > 0 else scores
    deviation = scaled.std()
    return np.asarray((scaled - scaled.mean()) / (deviation if deviation > 1e-12 else 1.0))
