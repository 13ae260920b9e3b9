from __future__ import annotations

import numpy as np

from tests.tuning.algorithms.test_suggestion import X, Y, make_study
from tuning.algorithms.history import History
from tuning.algorithms.search_model import (
    build_model,
    choose_trials,
    find_fitted_count,
    fit_to_trials,
)
from tuning.messages import KnownTrial

ONE = np.ones(1)


def make_history(*trials: tuple[float, float, float | None]) -> History:
    """Trials at (x, y) with a loss, or infeasible without."""
    known = [
        KnownTrial(number, {"x": x, "y": y}, () if loss is None else (loss,), infeasible=loss is None)
        for number, (x, y, loss) in enumerate(trials, 1)
    ]
    return History.build(make_study(X, Y), known)


def test_of_many_trials_the_best_the_newest_and_some_others_are_used() -> None:
    scores = np.random.default_rng(0).normal(size=2000)

    chosen = choose_trials(scores, 500, np.random.default_rng(1))

    assert len(chosen) == len(set(chosen.tolist())) == 500
    assert {int(scores.argmax()), 1999, 1850} <= set(chosen.tolist())
    assert (np.diff(chosen) > 0).all()
    assert any(200 < index < 400 for index in chosen)


def test_up_to_the_limit_all_trials_are_used() -> None:
    assert choose_trials(np.zeros(1000), 1000, np.random.default_rng(1)).tolist() == list(range(1000))


def test_hyperparameters_are_kept_until_five_more_trials_are_completed() -> None:
    places = np.random.default_rng(0).uniform(size=(31, 2))
    trials = [(float(x), float(y), float((x - 0.4) ** 2 + y)) for x, y in places]

    fits = [fit_to_trials(make_history(*trials[:count]), ONE) for count in (25, 29, 30)]

    assert fits[0] is fits[1]
    assert fits[1] is not fits[2]


def test_fits_become_rarer_as_trials_become_many() -> None:
    fitted = [find_fitted_count(count) for count in range(1, 1001)]

    assert fitted[:25] == list(range(1, 26))
    assert all(count - 0.1 * count - 5 <= one <= count for count, one in enumerate(fitted, 1))
    assert len(set(fitted)) < 70


def test_what_lies_around_infeasible_trials_promises_less() -> None:
    trials: list[tuple[float, float, float | None]] = [(0.1, 0.5, 1.0), (0.5, 0.2, 0.9), (0.5, 0.8, 1.1)]
    history = make_history(*trials)
    with_failures = make_history(*trials, (0.9, 0.5, None), (0.85, 0.55, None))
    scores = np.array([0.0, 1.0, -1.0])
    row = history.encoding.encode([{"x": 0.88, "y": 0.5}])

    gains = [
        build_model(one, scores, fit_to_trials(history, ONE), np.random.default_rng(0)).compute_gain(row)[0]
        for one in (history, with_failures)
    ]

    assert gains[1] < gains[0] - 0.5


def test_what_a_pending_trial_is_expected_to_bring_is_no_improvement_for_others() -> None:
    """Otherwise trials at the same time would all climb the same hill."""
    history = make_history((0.1, 0.5, 4.0), (0.25, 0.5, 2.0), (0.4, 0.5, 1.0), (0.9, 0.5, 3.0))
    scores = np.array([-1.4, 0.3, 1.1, -0.5])
    parameters = fit_to_trials(history, ONE)
    without = build_model(history, scores, parameters, np.random.default_rng(0))
    rows = history.encoding.encode([{"x": x / 1000, "y": 0.5} for x in range(400, 900)])
    place = int(without.compute_gain(rows).argmax())
    pending = history.encoding.decode(rows[place])

    model = build_model(history.add_pending(pending), scores, parameters, np.random.default_rng(0))

    expected = without.process.predict_mean(without.features.compute(rows[place : place + 1]))[0]
    assert model.best == max(without.best, expected)
    assert model.compute_gain(rows)[place] < without.compute_gain(rows)[place] - 1.0
