"""How much a point may bring: the logarithm of the expected improvement, and where it is greatest."""

from __future__ import annotations

import numpy as np
from scipy import optimize, special

from tuning.algorithms.gaussian_process import GaussianProcess
from tuning.algorithms.ranges import Array, Mask

_LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)
_POLISH_STEPS = 40


def log_expected_improvement(mean: Array, deviation: Array, best: float, noise: float) -> Array:
    """Exact where the improvement itself is too small for a float. After Ament et al., 2023.

    Discounted where more is known already than one trial with this standard deviation of the noise tells.
    After Huang et al., 2006.
    """
    z = (mean - best) / deviation
    whole = np.hypot(deviation, noise)
    # The logarithm of 1 - noise / whole.
    discount = 2.0 * np.log(deviation) - np.log(whole) - np.log(whole + noise)
    return np.asarray(_log_h(z) + np.log(deviation) + discount)


def _log_h(z: Array) -> Array:
    """log(φ(z) + z Φ(z))."""
    log_density = -0.5 * z**2 - _LOG_SQRT_2PI
    near = np.maximum(z, -1.0)
    direct = np.log(np.exp(-0.5 * near**2 - _LOG_SQRT_2PI) + near * special.ndtr(near))
    far = np.minimum(z, -1.0)
    # φ(z) + z Φ(z) = φ(z) (1 - |z| m) with Mills' ratio m, which tends to 1 / z² times φ(z).
    ratio = np.sqrt(np.pi / 2.0) * special.erfcx(-far / np.sqrt(2.0)) * -far
    rest = np.where(far > -1e3, np.log1p(-np.minimum(ratio, 1.0 - 1e-16)), -2.0 * np.log(-far))
    return np.asarray(np.where(z > -1.0, direct, log_density + rest))


def polish(process: GaussianProcess, starts: Array, free: Mask, best: float) -> Array:
    """Climb from places to the nearest maxima, all at once, moving their `free` features from 0 to 1."""
    noise = process.noise

    def compute(parts: Array) -> tuple[float, Array]:
        places = starts.copy()
        places[free] = parts
        mean, deviation, of_mean, of_deviation = process.predict_with_gradients(places)
        z = (mean - best) / deviation
        log_h = _log_h(z)
        gain = log_expected_improvement(mean, deviation, best, noise)
        whole = np.hypot(deviation, noise)
        by_deviation = 3.0 / deviation - deviation / whole**2 - deviation / (whole * (whole + noise))
        # The derivatives of φ(z) + z Φ(z) are Φ(z) by z; both over the value itself.
        by_z = np.exp(special.log_ndtr(z) - log_h) / deviation
        of_gain = by_z[:, None] * of_mean + (by_deviation - by_z * z)[:, None] * of_deviation
        return -float(gain.sum()), -of_gain[free]

    found = optimize.minimize(
        compute,
        starts[free],
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * int(free.sum()),
        options={"maxiter": _POLISH_STEPS},
    )
    polished = starts.copy()
    polished[free] = found.x
    return polished
