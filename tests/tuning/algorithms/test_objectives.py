from __future__ import annotations

import numpy as np
import pytest

from tuning.algorithms.objectives import clip_bad_values, compute_scores, draw_weights, standardize
from tuning.study import Goal, Metric

ACCURACY, LOSS = Metric("accuracy"), Metric("loss", Goal.MINIMIZE)


ONE = np.ones(1)


def test_scores_are_greater_for_better_trials() -> None:
    values = np.array([[1.0], [3.0], [2.0]])

    assert compute_scores((ACCURACY,), values, ONE).argmax() == 1
    assert compute_scores((LOSS,), values, ONE).argmax() == 0


def test_bad_values_are_cut_off() -> None:
    scores = np.array([-1e9, -3.0, 0.0, 1.0, 2.0])

    assert clip_bad_values(scores).tolist() == [-3.0, -3.0, 0.0, 1.0, 2.0]
    assert clip_bad_values(np.array([-5.0, 2.0, 2.0])).tolist() == [-5.0, 2.0, 2.0]


@pytest.mark.parametrize("values", [[1e308, -1e308, 0.0], [5.0, 5.0], [1e-300, 2e-300], [3.0]])
def test_any_numbers_become_scores(values: list[float]) -> None:
    scores = standardize(np.array(values))

    assert np.isfinite(scores).all()
    assert abs(scores.mean()) < 1e-9
    assert scores.std() == pytest.approx(1.0) or np.allclose(scores, 0.0)


def test_weights_of_several_metrics_change_what_is_best() -> None:
    """A trial that is worse in all metrics never is."""
    values = np.array([[0.9, 9.0], [0.7, 5.0], [0.5, 1.0], [0.4, 9.5]])
    metrics, random = (ACCURACY, LOSS), np.random.default_rng(0)

    best = [int(compute_scores(metrics, values, draw_weights(metrics, random)).argmax()) for _ in range(50)]

    assert set(best) == {0, 1, 2}
