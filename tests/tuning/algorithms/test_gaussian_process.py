from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from tuning.algorithms.acquisition import log_expected_improvement, polish
from tuning.algorithms.gaussian_process import (
    GaussianProcess,
    Hyperparameters,
    NegativeLogPosterior,
    fit_hyperparameters,
)
from tuning.algorithms.ranges import Array

GROUPS = (0, 1, 1)


def make_data(count: int = 25) -> tuple[Array, Array]:
    features = np.random.default_rng(1).uniform(size=(count, 3))
    values = np.sin(6.0 * features[:, 0]) + 0.5 * features[:, 1]
    return features, (values - values.mean()) / values.std()


def test_gradient_of_the_posterior() -> None:
    objective = NegativeLogPosterior(*make_data(), GROUPS)
    logs = np.log(np.array([0.3, 0.7, 1.3, 0.01]))

    _, gradient = objective.compute(logs)

    expected = optimize.approx_fprime(logs, lambda place: objective.compute(place)[0], 1e-6)
    assert gradient == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_lengths_tell_what_matters() -> None:
    fitted = fit_hyperparameters(*make_data(40), (0, 1, 2))

    assert fitted.lengths[0] < fitted.lengths[1] < fitted.lengths[2]
    assert fitted.noise < 1e-3


def test_the_mean_goes_through_values_without_noise() -> None:
    features, values = make_data()
    process = GaussianProcess(features, values, GROUPS, Hyperparameters(np.array([0.5, 1.0]), 1.0, 1e-6))

    mean, deviation = process.predict(features)

    assert mean == pytest.approx(values, abs=1e-3)
    assert deviation.max() < 2e-3
    assert process.predict_mean(features) == pytest.approx(mean)
    assert process.predict(np.full((1, 3), 9.0))[1] == pytest.approx(1.0)


def test_many_predictions_are_those_of_each_place() -> None:
    """They are made in parts."""
    process = GaussianProcess(*make_data(), GROUPS, Hyperparameters(np.array([0.4, 0.9]), 1.2, 1e-3))
    places = np.random.default_rng(3).uniform(size=(300, 3))

    means, deviations = process.predict(places)

    one_by_one = [process.predict(place[None]) for place in places]
    assert means == pytest.approx(np.concatenate([mean for mean, _ in one_by_one]))
    assert deviations == pytest.approx(np.concatenate([deviation for _, deviation in one_by_one]))


def test_gradients_of_predictions() -> None:
    process = GaussianProcess(*make_data(), GROUPS, Hyperparameters(np.array([0.4, 0.9]), 1.2, 1e-3))
    places = np.array([[0.31, 0.62, 0.17], [0.9, 0.2, 0.4]])

    means, deviations, of_means, of_deviations = process.predict_with_gradients(places)

    expected = process.predict(places)
    assert means == pytest.approx(expected[0])
    assert deviations == pytest.approx(expected[1])
    for place, of_mean, of_deviation in zip(places, of_means, of_deviations, strict=True):
        for found, kind in ((of_mean, 0), (of_deviation, 1)):
            slopes = optimize.approx_fprime(
                place, lambda one, kind=kind: process.predict(one[None])[kind][0], 1e-6
            )
            assert found == pytest.approx(slopes, abs=1e-4)


def test_expected_improvement_of_places_that_are_hopeless() -> None:
    """Its logarithm still tells which is less so."""
    means = np.array([1.0, 0.0, -1.0, -10.0, -100.0, -1e4, -1e6])

    logs = log_expected_improvement(means, np.ones(7), 0.0, 0.0)

    assert np.isfinite(logs).all()
    assert (np.diff(logs) < 0).all()
    density, below = np.exp(-0.5) / np.sqrt(2 * np.pi), 0.158655253931457
    assert np.exp(logs[0]) == pytest.approx(1 - below + density)
    assert np.exp(logs[2]) == pytest.approx(density - below)


def test_polishing_climbs_along_free_features() -> None:
    process = GaussianProcess(*make_data(), GROUPS, Hyperparameters(np.array([0.4, 0.9]), 1.2, 1e-3))
    starts = np.array([[0.5, 0.5, 0.5], [0.2, 0.3, 0.4]])
    free = np.array([[True, True, False], [False, True, True]])

    found = polish(process, starts, free, 1.0)

    before, after = (
        log_expected_improvement(*process.predict(places), 1.0, process.noise) for places in (starts, found)
    )
    assert (after > before).all()
    assert (found[~free] == starts[~free]).all()
    assert ((found >= 0) & (found <= 1)).all()


@pytest.mark.parametrize("noise", [1e-5, 0.05])
def test_polishing_ends_where_the_slope_does(noise: float) -> None:
    """Its gradient is that of the gain."""
    process = GaussianProcess(*make_data(), GROUPS, Hyperparameters(np.array([0.4, 0.9]), 1.2, noise))

    [found] = polish(process, np.array([[0.4, 0.5, 0.6]]), np.full((1, 3), True), 1.0)

    def compute(place: Array) -> float:
        return float(log_expected_improvement(*process.predict(place[None]), 1.0, process.noise)[0])

    slope = optimize.approx_fprime(found, compute, 1e-7)
    inside = (found > 1e-6) & (found < 1.0 - 1e-6)
    assert np.abs(slope[inside]).max(initial=0.0) < 0.05


def test_noise_makes_what_is_known_less_worth() -> None:
    mean, deviation = np.zeros(2), np.array([0.01, 0.5])

    quiet, noisy = (log_expected_improvement(mean, deviation, 0.0, noise) for noise in (0.0, 0.3))

    assert quiet[1] - noisy[1] < 1.0 < quiet[0] - noisy[0]
