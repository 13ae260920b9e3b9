"""What is expected of points, given the trials of a study."""

from __future__ import annotations

import functools
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

# Trials that hyperparameters are fitted to, and that the process goes through: time grows with the third
# power of their number. Of more they are the best ones, the newest and a random rest.
_MOST_KNOWN = 300
# Of pending and of infeasible trials, each: the newest.
_MOST_UNMEASURED = 250
# Up to so many trials hyperparameters are fitted anew with each, then with so many more, and a share more.
_OFTEN_FITTED, _FIT_EVERY, _FIT_SHARE = 25, 5, 0.1
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

    def polish(self, rows: Array) -> Array:
        """Climb from each along the ranges among its active parameters."""
        columns = self.features.encoding.columns
        movable = np.array([column.is_continuous for column in columns])
        free = (movable & self.features.encoding.find_active(rows))[:, list(self.features.groups)]
        if not free.any():
            return rows
        places = polish(self.process, self.features.compute(rows), free, self.best)
        polished = rows.copy()
        for feature, column in enumerate(self.features.groups):
            polished[free[:, feature], column] = places[free[:, feature], feature]
        return polished


def fit_to_trials(history: History, weights: Array, clip: float = DEFAULT_CLIP) -> Hyperparameters:
    """The hyperparameters for scores with these weights."""
    settled = find_fitted_count(len(history.completed))
    scores = compute_scores(history.study.metrics, history.objectives[:settled], weights, clip)
    random = np.random.default_rng(make_seed(history.study, settled))
    chosen = choose_trials(scores, _MOST_KNOWN, random)
    features = FeatureMap.build(history.encoding)
    rows = features.compute(history.completed[chosen])
    return _fit(rows.tobytes(), scores[chosen].tobytes(), len(chosen), features.groups)


def find_fitted_count(count: int) -> int:
    """To how many of so many trials, the first ones, hyperparameters are fitted."""
    if count <= _OFTEN_FITTED:
        return count
    fitted = _OFTEN_FITTED
    while (following := fitted + max(_FIT_EVERY, int(fitted * _FIT_SHARE))) <= count:
        fitted = following
    return fitted


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
    used = choose_trials(scores, _MOST_KNOWN, random)
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
        # What is expected of those is no improvement for others: they look further.
        best = max(best, float(believed[0].max(initial=best)))
        values = np.concatenate([values, *believed])
        places = np.concatenate([known, pending, infeasible])
        process = GaussianProcess(places, values, features.groups, parameters)
    return SearchModel(features, process, best, known, infeasible)


def choose_trials(scores: Array, size: int, random: np.random.Generator) -> Indices:
    """At most `size` trials: of more a third each the best, the newest, random."""
    count = len(scores)
    if count <= size:
        return np.arange(count)
    third = size // 3
    chosen = {*np.argsort(-scores, kind="stable")[:third].tolist(), *range(count - third, count)}
    others = [index for index in range(count) if index not in chosen]
    drawn = random.choice(others, size - len(chosen), replace=False)
    return np.sort(np.array([*chosen, *drawn.tolist()]))
