"""What is expected of points, given the trials of a study."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuning.algorithms.acquisition import log_expected_improvement, polish
from tuning.algorithms.features import FeatureMap
from tuning.algorithms.gaussian_process import GaussianProcess, Hyperparameters, fit_hyperparameters
from tuning.algorithms.history import History
from tuning.algorithms.objectives import DEFAULT_CLIP, compute_scores
from tuning.algorithms.random_search import make_seed
from tuning.algorithms.ranges import Array, Indices

# Trials that hyperparameters are fitted to, and those that the process goes through: time grows with the
# third power of their number.
_MOST_FITTED, _MOST_KNOWN = 300, 1000
# Distances that a fit holds in memory: of all pairs of trials, by each parameter.
_MOST_DISTANCES = 10_000_000
# Of studies with more trials: the process goes through the best ones, the newest and a random rest.
_REDUCED = 500
# Of pending and of infeasible trials, each: the newest.
_MOST_UNMEASURED = 250
# From so many trials on, hyperparameters are fitted anew with every so many more.
_OFTEN_FITTED, _FIT_EVERY = 25, 5
# How far around infeasible trials others are expected to be infeasible too, per column.
_INFEASIBLE_RADIUS = 0.15


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
        gain = log_expected_improvement(*self.process.predict(features), self.best, self.process.noise)
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


def fit_to_trials(history: History, weights: Array, clip: float = DEFAULT_CLIP) -> Hyperparameters:
    """The hyperparameters for scores with these weights."""
    count = len(history.completed)
    settled = count if count < _OFTEN_FITTED else count - count % _FIT_EVERY
    scores = compute_scores(history.study.metrics, history.objectives[:settled], weights, clip)
    random = np.random.default_rng(make_seed(history.study, settled))
    most = min(_MOST_FITTED, math.isqrt(_MOST_DISTANCES // len(history.encoding.columns)))
    chosen = choose_trials(scores, most, most, random)
    features = FeatureMap.build(history.encoding)
    rows = features.compute(history.completed[chosen])
    return _fit(rows.tobytes(), scores[chosen].tobytes(), len(chosen), features.groups)


@functools.lru_cache(maxsize=64)
def _fit(features: bytes, scores: bytes, count: int, groups: Sequence[int]) -> Hyperparameters:
    """The last fits are kept, as most suggestions share theirs with the one before."""
    rows = np.frombuffer(features).reshape(count, -1)
    return fit_hyperparameters(rows, np.frombuffer(scores), groups)


def build_model(
    history: History, scores: Array, parameters: Hyperparameters, random: np.random.Generator
) -> SearchModel:
    """What the trials tell, and what is believed of those that tell nothing, so that others go elsewhere.

    Pending trials are believed to bring what the process expects of them, infeasible ones at most the median.
    """
    features = FeatureMap.build(history.encoding)
    used = choose_trials(scores, _MOST_KNOWN, _REDUCED, random)
    known, values = features.compute(history.completed[used]), scores[used]
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


def choose_trials(scores: Array, limit: int, size: int, random: np.random.Generator) -> Indices:
    """All trials up to the limit; of more, `size` of them: a third each the best, the newest, random."""
    count = len(scores)
    if count <= limit:
        return np.arange(count)
    third = size // 3
    chosen = {*np.argsort(-scores, kind="stable")[:third].tolist(), *range(count - third, count)}
    others = [index for index in range(count) if index not in chosen]
    drawn = random.choice(others, size - len(chosen), replace=False)
    return np.sort(np.array([*chosen, *drawn.tolist()]))
