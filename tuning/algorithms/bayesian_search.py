"""Points that a Gaussian process expects to bring most; the default algorithm."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuning.algorithms import random_search
from tuning.algorithms.acquisition import log_expected_improvement, polish
from tuning.algorithms.encoding import Array, Indices
from tuning.algorithms.features import FeatureMap
from tuning.algorithms.gaussian_process import GaussianProcess, Hyperparameters, fit_hyperparameters
from tuning.algorithms.history import History
from tuning.algorithms.objectives import compute_scores
from tuning.space import Value, count_points, iterate_points

# The first trials, as many as columns and one more, are random; of wide spaces not more than this.
_MOST_RANDOM = 12
# Trials that hyperparameters are fitted to, and those that the process goes through: time grows with the
# third power of their number.
_MOST_FITTED, _MOST_KNOWN = 300, 1000
# Of studies with more trials: the process goes through the best ones, the newest and a random rest.
_REDUCED = 500
# Of pending and of infeasible trials, each: the newest.
_MOST_UNMEASURED = 250
_SPREAD_CANDIDATES, _LOCAL_CANDIDATES, _CENTERS = 1024, 500, 5
# A finite space with at most so many points is looked at whole.
_MOST_LISTED = 2000
_POLISHED = 4
# How far around infeasible trials others are expected to be infeasible too, per column.
_INFEASIBLE_RADIUS = 0.15


def propose_point(history: History, number: int) -> dict[str, Value]:
    """The next trial's point. Some point must be free."""
    if len(history.completed) < min(len(history.encoding.columns) + 1, _MOST_RANDOM):
        return random_search.propose_point(history, number)
    random = np.random.default_rng(random_search.make_seed(history.study, number))
    scores = compute_scores(history.study.metrics, history.objectives, random)
    model = build_model(history, scores, random)
    candidates = history.filter_new(_list_candidates(history, scores, random))
    if not len(candidates):
        return random_search.propose_point(history, number)
    gains = model.compute_gain(candidates)
    order = np.argsort(-gains, kind="stable")[:_POLISHED]
    polished = history.encoding.snap(np.array([model.polish(row) for row in candidates[order]]))
    finalists = np.concatenate([candidates[order[:1]], history.filter_new(polished)])
    return history.encoding.decode(finalists[int(model.compute_gain(finalists).argmax())])


@dataclass(frozen=True)
class SearchModel:
    """What is expected of points: scores, and feasibility. `best` is the score to improve on."""

    features: FeatureMap
    process: GaussianProcess
    best: float
    feasible: Array
    infeasible: Array

    def compute_gain(self, rows: Array) -> Array:
        features = self.features.compute(rows)
        gain = log_expected_improvement(*self.process.predict(features), self.best)
        return gain + np.log(self._estimate_feasibility(features)) if len(self.infeasible) else gain

    def _estimate_feasibility(self, features: Array) -> Array:
        """The share of feasible trials around, one more thought to be everywhere."""
        near = self._sum_nearness(features, self.feasible)
        return (1.0 + near) / (1.0 + near + self._sum_nearness(features, self.infeasible))

    def _sum_nearness(self, features: Array, others: Array) -> Array:
        squares = ((features[:, None, :] - others[None, :, :]) ** 2).sum(axis=2)
        radius = _INFEASIBLE_RADIUS**2 * len(self.features.encoding.columns)
        return np.asarray(np.exp(-0.5 * squares / radius).sum(axis=1))

    def polish(self, row: Array) -> Array:
        """Climb along the ranges among the active parameters."""
        columns = self.features.encoding.columns
        active = self.features.encoding.find_active(row[None])[0]
        movable = np.array([column.is_continuous for column in columns]) & active
        groups = np.array(self.features.groups)
        free = movable[groups]
        if not free.any():
            return row
        start = self.features.compute(row[None])[0]
        polished = row.copy()
        polished[groups[free]] = polish(self.process, start, free, self.best)[free]
        return polished


def build_model(history: History, scores: Array, random: np.random.Generator) -> SearchModel:
    """What the trials tell, and what is believed of those that tell nothing, so that others go elsewhere.

    Pending trials are believed to bring what the process expects of them, infeasible ones at most the median.
    """
    features = FeatureMap.build(history.encoding)
    completed = features.compute(history.completed)
    used = _choose_trials(scores, _MOST_KNOWN, _REDUCED, random)
    fitted = used[np.isin(used, _choose_trials(scores, _MOST_FITTED, _MOST_FITTED, random))]
    parameters = _fit(completed[fitted].tobytes(), scores[fitted].tobytes(), len(fitted), features.groups)
    known, values = completed[used], scores[used]
    process = GaussianProcess(known, values, features.groups, parameters)
    best = float(process.predict_mean(known).max())
    pending, infeasible = (
        features.compute(rows[-_MOST_UNMEASURED:]) for rows in (history.pending, history.infeasible)
    )
    if len(pending) or len(infeasible):
        believed = (
            process.predict_mean(pending),
            np.minimum(process.predict_mean(infeasible), np.median(values)),
        )
        values = np.concatenate([values, *believed])
        places = np.concatenate([known, pending, infeasible])
        process = GaussianProcess(places, values, features.groups, parameters)
    return SearchModel(features, process, best, known, infeasible)


@functools.lru_cache(maxsize=4)
def _fit(features: bytes, scores: bytes, count: int, groups: Sequence[int]) -> Hyperparameters:
    """The last fits are kept: several suggestions in one request share theirs."""
    rows = np.frombuffer(features).reshape(count, -1)
    return fit_hyperparameters(rows, np.frombuffer(scores), groups)


def _choose_trials(scores: Array, limit: int, size: int, random: np.random.Generator) -> Indices:
    """All trials up to the limit; of more, `size` of them: a third each the best, the newest, random."""
    count = len(scores)
    if count <= limit:
        return np.arange(count)
    third = size // 3
    chosen = {*np.argsort(-scores, kind="stable")[:third].tolist(), *range(count - third, count)}
    others = [index for index in range(count) if index not in chosen]
    drawn = random.choice(others, size - len(chosen), replace=False)
    return np.sort(np.array([*chosen, *drawn.tolist()]))


def _list_candidates(history: History, scores: Array, random: np.random.Generator) -> Array:
    count = count_points(history.study.space)
    if count is not None and count <= _MOST_LISTED:
        return history.encoding.encode(iterate_points(history.study.space))
    spread = random_search.draw_rows(history.encoding, int(random.integers(2**63)), _SPREAD_CANDIDATES)
    return np.concatenate([spread, _draw_around_best(history, scores, random)])


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
