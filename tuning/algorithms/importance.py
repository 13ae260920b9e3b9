"""How much each parameter matters, as far as the trials tell."""

from __future__ import annotations

import math

import numpy as np

from tuning.algorithms import random_search
from tuning.algorithms.history import History
from tuning.algorithms.objectives import compute_scores
from tuning.algorithms.search_model import build_model, fit_to_trials
from tuning.messages import ImportanceAnswer, ImportanceRequest

_SAMPLES = 512
# Bad values count, too: late trials are all close to the best.
_CLIP = math.inf


def measure_importance(request: ImportanceRequest) -> ImportanceAnswer:
    """Total effects of a fitted Gaussian process, for the first metric (Sobol indices, after Jansen).

    The effect of a parameter is half the mean squared difference of the expected score between points that
    differ in it alone. Children with one name count together.
    """
    study = request.study
    history = History.build(study, request.trials)
    if len(history.completed) < len(history.encoding.columns) + 2:
        return ImportanceAnswer({})
    random = np.random.default_rng(random_search.make_seed(study, 0))
    weights = np.eye(1, len(study.metrics))[0]
    scores = compute_scores(study.metrics, history.objectives, weights, _CLIP)
    model = build_model(history, scores, fit_to_trials(history, weights, _CLIP), random)
    rows = random_search.draw_rows(history.encoding, random_search.make_seed(study, 0), _SAMPLES)
    mean = model.process.predict_mean(model.features.compute(rows))
    effects: dict[str, float] = {}
    for index, column in enumerate(history.encoding.columns):
        changed = rows.copy()
        changed[:, index] = random.permutation(rows[:, index])
        changed = history.encoding.snap(changed)
        difference = model.process.predict_mean(model.features.compute(changed)) - mean
        name = column.parameter.name
        effects[name] = effects.get(name, 0.0) + 0.5 * float((difference**2).mean())
    total = sum(effects.values())
    return ImportanceAnswer({name: effect / total if total else 0.0 for name, effect in effects.items()})
