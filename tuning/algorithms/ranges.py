"""Numbers along the scale of their parameter, from 0 to 1; right for all ranges that floats can have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tuning.space import Parameter, ParameterKind, Scale, Value

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]


def encode_numbers(parameter: Parameter, values: Sequence[Value]) -> Array:
    """Values of a range."""
    if parameter.kind is ParameterKind.INTEGER:
        offsets = [float(int(value) - int(parameter.minimum)) for value in values]
        return place_whole_offsets(parameter, np.array(offsets, dtype=np.float64))
    return to_unit(parameter, np.array(values, dtype=np.float64))


def find_whole_offsets(parameter: Parameter, units: Array) -> Array:
    """How far the nearest whole numbers are above the minimum."""
    count = _count_whole(parameter)
    if parameter.scale is Scale.LINEAR:
        offsets = np.floor(units * count)
    else:
        offsets = np.round(from_unit(parameter, units)) - parameter.minimum
    return np.clip(offsets, 0.0, count - 1.0)


def place_whole_offsets(parameter: Parameter, offsets: Array) -> Array:
    """The middle of the share that a whole number has of the range."""
    if parameter.scale is Scale.LINEAR:
        return np.asarray((offsets + 0.5) / _count_whole(parameter))
    return to_unit(parameter, parameter.minimum + offsets)


def _count_whole(parameter: Parameter) -> float:
    return float(int(parameter.maximum) - int(parameter.minimum) + 1)


def to_unit(parameter: Parameter, values: Array) -> Array:
    low, high = _find_bounds(parameter)
    if low == high:
        return 0.0 * values + 0.5
    match parameter.scale:
        case Scale.LINEAR:
            share = _find_share(low, high)
            return np.asarray((values * share - low * share) / (high * share - low * share))
        case Scale.LOG:
            return np.asarray(_log_ratio(values, low) / _log_ratio(high, low))
        case Scale.REVERSE_LOG:
            return np.asarray(1.0 - _log_ratio(low + (high - values), low) / _log_ratio(high, low))


def from_unit(parameter: Parameter, units: Array) -> Array:
    low, high = _find_bounds(parameter)
    # Just above the greatest float there is none.
    with np.errstate(over="ignore"):
        match parameter.scale:
            case Scale.LINEAR:
                share = _find_share(low, high)
                values = (low * share + units * (high * share - low * share)) / share
            case Scale.LOG:
                values = _grow(low, high, units)
            case Scale.REVERSE_LOG:
                values = low + (high - np.minimum(_grow(low, high, 1.0 - units), high))
    return np.clip(values, low, high)


def _find_bounds(parameter: Parameter) -> tuple[np.float64, np.float64]:
    """What 0 and 1 stand for: of whole numbers each has the same share, the outermost ones too."""
    if parameter.kind is ParameterKind.INTEGER:
        return np.float64(parameter.minimum - 0.5), np.float64(parameter.maximum + 0.5)
    if parameter.kind is ParameterKind.DISCRETE:
        return np.float64(parameter.values[0]), np.float64(parameter.values[-1])
    return np.float64(parameter.minimum), np.float64(parameter.maximum)


def _find_share(low: np.float64, high: np.float64) -> float:
    """What bounds are multiplied by, so that their difference is a float."""
    with np.errstate(over="ignore"):
        return 1.0 if np.isfinite(high - low) else 0.5


def _log_ratio(values: Array | np.float64, low: np.float64) -> Array:
    """log(values / low), also where the quotient is no float."""
    with np.errstate(over="ignore"):
        ratio = values / low
    return np.where(np.isfinite(ratio), np.log(ratio), np.log(values) - np.log(low))


def _grow(low: np.float64, high: np.float64, units: Array) -> Array:
    """From low to high, by equal factors for equal steps."""
    with np.errstate(over="ignore"):
        ratio = high / low
    if np.isfinite(ratio):
        return np.asarray(low * ratio**units)
    return np.asarray(np.exp(np.log(low) + units * (np.log(high) - np.log(low))))
