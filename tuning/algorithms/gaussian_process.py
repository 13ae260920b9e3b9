"""A Gaussian process: Matérn 5/2 kernel, a length scale per parameter, the likeliest ones under priors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg, optimize
from scipy.linalg import lapack

from tuning.algorithms.ranges import Array

# Lognormal priors of length scales, signal and noise: median, and spread of the logarithm. Features lie
# between 0 and 1, values have a variance of 1. Lengths are held close to each other: what does not matter
# around the first good trials may matter elsewhere.
_LENGTH_MEDIAN, _LENGTH_SPREAD = 0.2, 0.3
_SIGNAL_MEDIAN, _SIGNAL_SPREAD = 1.0, 1.0
_NOISE_MEDIAN, _NOISE_SPREAD = 1e-4, 3.0
_LENGTH_RANGE, _SIGNAL_RANGE, _NOISE_RANGE = (1e-2, 1e2), (1e-2, 1e2), (1e-7, 1.0)
# A fit ends when a step lowers the loss by less than this share.
_MAX_STEPS, _LEAST_PROGRESS = 50, 1e-6
# Rows that are predicted at a time.
_PREDICTED = 128


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
        self._features = features
        self._values = values
        self._groups = np.array(groups)
        size = max(groups) + 1
        # Median lengths grow with the dimension, as distances do.
        length = _LENGTH_MEDIAN * np.sqrt(max(size, 1))
        self._center = np.log(np.array([length] * size + [_SIGNAL_MEDIAN, _NOISE_MEDIAN]))
        self._spread = np.array([_LENGTH_SPREAD] * size + [_SIGNAL_SPREAD, _NOISE_SPREAD])
        self._bounds = np.log(np.array([_LENGTH_RANGE] * size + [_SIGNAL_RANGE, _NOISE_RANGE]))

    def minimize(self) -> Hyperparameters:
        """Start from the center of the priors."""
        options = {"maxiter": _MAX_STEPS, "ftol": _LEAST_PROGRESS}
        found = optimize.minimize(
            self.compute, self._center, jac=True, method="L-BFGS-B", bounds=self._bounds, options=options
        )
        return self.read(found.x)

    def read(self, logs: Array) -> Hyperparameters:
        return Hyperparameters(np.exp(logs[:-2]), float(np.exp(logs[-2])), float(np.exp(logs[-1])))

    def compute(self, logs: Array) -> tuple[float, Array]:
        """Value and gradient."""
        parameters = self.read(logs)
        scaled = self._features / parameters.lengths[self._groups]
        covariance, slope = _compute_matern(_measure_squares(scaled, scaled), parameters.signal)
        covariance.flat[:: len(covariance) + 1] += parameters.noise
        # Of a symmetric matrix the transpose has the order in which LAPACK needs no copy.
        factor, failed = lapack.dpotrf(covariance.T, lower=1, overwrite_a=1)
        if failed:
            return 1e25, np.zeros_like(logs)
        log_determinant = 2.0 * np.log(np.diag(factor)).sum()
        inverse = _invert(factor)
        alpha = inverse @ self._values
        fit = float(self._values @ alpha)
        z = (logs - self._center) / self._spread
        loss = 0.5 * (fit + log_determinant + z @ z)
        pull = np.outer(alpha, alpha) - inverse
        of_noise = float(np.trace(pull)) * parameters.noise
        # The product of pull and the covariance has the trace fit - n.
        of_signal = fit - len(self._values) - of_noise
        gradient = -0.5 * np.array([*self._sum_by_group(scaled, pull * slope), of_signal, of_noise])
        return float(loss), gradient + z / self._spread

    def _sum_by_group(self, scaled: Array, weights: Array) -> Array:
        """The weighted sums of the squared distances of all pairs, by each group; `weights` is symmetric."""
        by_feature = weights.sum(axis=1) @ scaled**2 - np.einsum("ij,ij->j", scaled, weights @ scaled)
        sums: Array = np.zeros(self._groups.max() + 1)
        np.add.at(sums, self._groups, 2.0 * by_feature)
        return sums


def _invert(factor: Array) -> Array:
    """The inverse of a matrix, given its lower factor in Fortran's order, which is overwritten."""
    lower, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
    inverse = np.tril(lower)
    inverse += np.tril(lower, -1).T
    return np.asarray(inverse)


def _compute_matern(squares: Array, signal: float) -> tuple[Array, Array]:
    """The kernel, and its derivative by the logarithm of a length over that length's share of `squares`."""
    scaled = np.sqrt(5.0 * squares)
    decay = np.exp(-scaled)
    decay *= signal
    scaled += 1.0
    scaled *= decay
    decay *= squares
    decay *= 5.0 / 3.0
    decay += scaled
    scaled *= 5.0 / 3.0
    return decay, scaled


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
        # Matrices of a part of the rows stay in the processor's cache.
        parts = [features[first : first + _PREDICTED] for first in range(0, len(features), _PREDICTED)]
        means, deviations = zip(*map(self._predict_part, parts), strict=True)
        return np.concatenate(means), np.concatenate(deviations)

    def _predict_part(self, features: Array) -> tuple[Array, Array]:
        kernel, _ = _compute_matern(_measure_squares(features * self._scale, self._scaled), self._signal)
        half = linalg.solve_triangular(self._factor, kernel.T, lower=True, check_finite=False)
        variance = self._signal - np.einsum("ij,ij->j", half, half)
        return kernel @ self._alpha, np.sqrt(np.maximum(variance, 1e-12 * self._signal))

    def predict_with_gradients(self, features: Array) -> tuple[Array, Array, Array, Array]:
        """Means and standard deviations, and the gradients of each at its place."""
        scaled = features * self._scale
        kernel, slope = _compute_matern(_measure_squares(scaled, self._scaled), self._signal)
        solved = linalg.cho_solve((self._factor, True), kernel.T, check_finite=False).T
        variance = self._signal - np.einsum("ij,ij->i", kernel, solved)
        deviations = np.sqrt(np.maximum(variance, 1e-12 * self._signal))

        def sum_slopes(weights: Array) -> Array:
            pulls = weights * slope
            return np.asarray((pulls @ self._scaled - pulls.sum(axis=1)[:, None] * scaled) * self._scale)

        of_deviations = -sum_slopes(solved) / deviations[:, None]
        return kernel @ self._alpha, deviations, sum_slopes(self._alpha), of_deviations


def _measure_squares(one: Array, other: Array) -> Array:
    """Squared distances of all pairs."""
    products = one @ other.T
    squares = np.einsum("ij,ij->i", one, one)[:, None] + np.einsum("ij,ij->i", other, other) - 2.0 * products
    return np.asarray(np.maximum(squares, 0.0))
