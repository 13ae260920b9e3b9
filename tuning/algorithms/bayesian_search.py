"""Points that a Gaussian process expects to bring most; the default algorithm."""

from __future__ import annotations

import numpy as np

from tuning.algorithms import random_search
from tuning.algorithms.history import History
from tuning.algorithms.objectives import compute_scores, draw_weights
from tuning.algorithms.ranges import Array
from tuning.algorithms.search_model import SearchModel, build_model, fit_to_trials
from tuning.space import Value, count_points, iterate_points

# The first trials, as many as columns and one more, are random; of wide spaces not more than this.
_MOST_RANDOM = 12
_SPREAD_CANDIDATES, _LOCAL_CANDIDATES, _CENTERS = 1024, 500, 5
# A finite space with at most so many points is looked at whole.
_MOST_LISTED = 2000
# Of each group of candidates.
_POLISHED = 2


def propose_point(history: History, number: int) -> dict[str, Value] | None:
    """The next trial's point; None if none was found that is new."""
    if len(history.completed) < min(len(history.encoding.columns) + 1, _MOST_RANDOM):
        return random_search.propose_point(history, number)
    random = np.random.default_rng(random_search.make_seed(history.study, number))
    metrics = history.study.metrics
    weights = draw_weights(metrics, random)
    scores = compute_scores(metrics, history.objectives, weights)
    model = build_model(history, scores, fit_to_trials(history, weights), random)
    groups = [rows for rows in _list_candidates(history, scores, random) if len(rows)]
    if not groups:
        return random_search.propose_point(history, number)
    best = np.concatenate([_choose_best(model, rows) for rows in groups])
    polished = history.filter_new(history.encoding.snap(model.polish(best)))
    finalists = np.concatenate([best, polished])
    point = history.encoding.decode(finalists[int(model.compute_gain(finalists).argmax())])
    # Rows that differ may be one point, where a range has few floats.
    return random_search.propose_point(history, number) if history.has(point) else point


def _choose_best(model: SearchModel, rows: Array) -> Array:
    return np.asarray(rows[np.argsort(-model.compute_gain(rows), kind="stable")[:_POLISHED]])


def _list_candidates(history: History, scores: Array, random: np.random.Generator) -> list[Array]:
    """New ones in groups.

    Around the best there are so many good ones that none from elsewhere would be polished.
    """
    count = count_points(history.study.space)
    if count is not None and count <= _MOST_LISTED:
        points = iterate_points(history.study.space)
        return [history.encoding.encode([point for point in points if not history.has(point)])]
    spread = random_search.draw_rows(history.encoding, int(random.integers(2**63)), _SPREAD_CANDIDATES)
    return [history.filter_new(rows) for rows in (spread, _draw_around_best(history, scores, random))]


def _draw_around_best(history: History, scores: Array, random: np.random.Generator) -> Array:
    """Steps of all sizes from the best trials, in some of the columns; in a few, values by chance."""
    best = history.completed[np.argsort(-scores, kind="stable")[:_CENTERS]]
    centers = best[random.integers(len(best), size=_LOCAL_CANDIDATES)]
    sizes = 10.0 ** random.uniform(-3.0, -0.3, size=(len(centers), 1))
    moved = centers + sizes * random.standard_normal(centers.shape)
    shares = random.uniform(size=(len(centers), 1))
    rows = np.where(random.uniform(size=centers.shape) < shares, moved, centers)
    fresh = random.uniform(size=centers.shape) < 0.3 / np.sqrt(centers.shape[1])
    return history.encoding.snap(np.where(fresh, random.uniform(size=centers.shape), rows))
