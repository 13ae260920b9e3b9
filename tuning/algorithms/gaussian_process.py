"""A Gaussian process: Matérn 5/2 kernel, a length scale per parameter, the likeliest ones under priors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg, optimize

from tuning.algorithms.ranges import Array

_SQRT5 = np.sqrt(5.0)
# Lognormal priors of length scales, signal and noise: median, and spread of the logarithm. Features lie
# between 0 and 1, values have a variance of 1. Lengths are held close to each other: what does not matter
# around the first good trials may matter elsewhere.
_LENGTH_MEDIAN, _LENGTH_SPREAD = 0.2, 0.3
_SIGNAL_MEDIAN, _SIGNAL_SPREAD = 1.0, 1.0
_NOISE_MEDIAN, _NOISE_SPREAD = 1e-4, 3.0
_LENGTH_RANGE, _SIGNAL_RANGE, _NOISE_RANGE = (1e-2, 1e2), (1e-2, 1e2), (1e-7, 1.0)
_MAX_STEPS = 50


@dataclass(frozen=True)
class Hyperparameters:
    """`lengths` has one length scale per group of features; `signal` and `noise` are variances."""

    lengths: Array
    signal: float
    noise: float


def fit_hyperparameters(features: Array, values: Array, groups: Sequence[int]) -> Hyperparameters:
    """The maximum a posteriori. Takes O(n³) time for n values."""
    return NegativeLogPosterior(features, values, groups).minimize()


class NegativeLogPosterior:
    """A function of the logarithms of lengths, signal and noise."""

    def __init__(self, features: Array, values: Array, groups: Sequence[int]) -> None:
        self._values = values
        size = max(groups) + 1
        self._distances = np.zeros((size, len(values), len(values)))
        for feature, group in zip(features.T, groups, strict=True):
            self._distances[group] += (feature[:, None] - feature[None, :]) ** 2
        # Median lengths grow with the dimension, as distances do.
        length = _LENGTH_MEDIAN * np.sqrt(max(size, 1))
        self._center = np.log(np.array([length] * size + [_SIGNAL_MEDIAN, _NOISE_MEDIAN]))
        self._spread = np.array([_LENGTH_SPREAD] * size + [_SIGNAL_SPREAD, _NOISE_SPREAD])
        self._bounds = np.log(np.array([_LENGTH_RANGE] * size + [_SIGNAL_RANGE, _NOISE_RANGE]))

    def minimize(self) -> Hyperparameters:
        """Start from the center of the priors."""
        options = {"maxiter": _MAX_STEPS}
        found = optimize.minimize(
            self.compute, self._center, jac=True, method="L-BFGS-B", bounds=self._bounds, options=options
        )
        return self.read(found.x)

    def read(self, logs: Array) -> Hyperparameters:
        return Hyperparameters(np.exp(logs[:-2]), float(np.exp(logs[-2])), float(np.exp(logs[-1])))

    def compute(self, logs: Array) -> tuple[float, Array]:
        """Value and gradient."""
        parameters = self.read(logs)
        weights = parameters.lengths**-2.0
        kernel, slope = _compute_matern(np.tensordot(weights, self._distances, 1), parameters.signal)
        count = len(self._values)
        covariance = kernel.copy()
        covariance.flat[:: count + 1] += parameters.noise
        try:
            factor = linalg.cholesky(covariance, lower=True, check_finite=False)
        except linalg.LinAlgError:
            return 1e25, np.zeros_like(logs)
        inverse = linalg.cho_solve((factor, True), np.eye(count), check_finite=False)
        alpha = inverse @ self._values
        z = (logs - self._center) / self._spread
        loss = 0.5 * self._values @ alpha + np.log(np.diag(factor)).sum() + 0.5 * z @ z
        pull = np.outer(alpha, alpha) - inverse
        of_lengths = np.tensordot(self._distances, pull * slope, 2) * weights
        gradient = -0.5 * np.array([*of_lengths, np.vdot(pull, kernel), np.trace(pull) * parameters.noise])
        return float(loss), gradient + z / self._spread


def _compute_matern(squares: Array, signal: float) -> tuple[Array, Array]:
    """The kernel, and its derivative by the logarithm of a length over that length's share of `squares`."""
    scaled = _SQRT5 * np.sqrt(np.maximum(squares, 0.0))
    decay = signal * np.exp(-scaled)
    return (1.0 + scaled + scaled**2 / 3.0) * decay, (5.0 / 3.0) * (1.0 + scaled) * decay


class GaussianProcess:
    """The posterior, given values at features: of the function, without the noise of values.

    `noise` is the standard deviation of the latter.
    """

    def __init__(
        self, features: Array, values: Array, groups: Sequence[int], parameters: Hyperparameters
    ) -> None:
        self._scale = 1.0 / parameters.lengths[np.array(groups)]
        self._scaled = features * self._scale
        self.noise = float(np.sqrt(parameters.noise))
        self._signal = parameters.signal
        covariance, _ = _compute_matern(_measure_squares(self._scaled, self._scaled), self._signal)
        covariance.flat[:: len(values) + 1] += parameters.noise + 1e-10 * self._signal
        self._factor = linalg.cholesky(covariance, lower=True, check_finite=False)
        self._alpha = linalg.cho_solve((self._factor, True), values, check_finite=False)

    def predict_mean(self, features: Array) -> Array:
        kernel, _ = _compute_matern(_measure_squares(features * self._scale, self._scaled), self._signal)
        return np.asarray(kernel @ self._alpha)

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Means and standard deviations."""
        kernel, _ = _compute_matern(_measure_squares(features * self._scale, self._scaled), self._signal)
        half = linalg.solve_triangular(self._factor, kernel.T, lower=True, check_finite=False)
        variance = self._signal - np.einsum("ij,ij->j", half, half)
        return kernel @ self._alpha, np.sqrt(np.maximum(variance, 1e-12 * self._signal))

    def predict_with_gradient(self, feature: Array) -> tuple[float, float, Array, Array]:
        """Mean and standard deviation at one place, and their gradients."""
        away = feature * self._scale - self._scaled
        kernel, slope = _compute_matern(np.einsum("ij,ij->i", away, away), self._signal)
        solved = linalg.cho_solve((self._factor, True), kernel, check_finite=False)
        deviation = float(np.sqrt(max(self._signal - kernel @ solved, 1e-12 * self._signal)))
        of_kernel = -slope[:, None] * away * self._scale
        return (
            float(kernel @ self._alpha),
            deviation,
            self._alpha @ of_kernel,
            -(solved @ of_kernel) / deviation,
        )


def _measure_squares(one: Array, other: Array) -> Array:
    """Squared distances of all pairs."""
    products = one @ other.T
    squares = np.einsum("ij,ij->i", one, one)[:, None] + np.einsum("ij,ij->i", other, other) - 2.0 * products
    return np.asarray(np.maximum(squares, 0.0))
