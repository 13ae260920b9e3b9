"""When two answers to the same rows are equal: the one rule of acceleration, merging and comparison.

Labels, trees and user code: identical to the bit, form, type and shape included. Elsewhere the numbers of an
output may differ by the larger of 4 units in the last place of its largest one, and what the library itself
shows when it is given the same rows in batches of 1, 2 and 64. Where there are no recorded rows it is asked
with made-up ones, of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from serving.runtimes import Runtime
from serving.runtimes.instance_batch import Batch, concatenate_batches, count_bytes, count_rows, take_rows

# The batches that show how far the library agrees with itself.
BATCH_SIZES = (1, 2, 64)

_ULPS = 4

T = TypeVar("T")

Tolerance = Mapping[str, float]
"""The largest difference allowed, by output; 0.0: identical to the bit."""

# Bytes of made-up rows. Libraries hold them several times over, as other types and between layers, and a
# process keeps much of what it once had: of images of a megabyte a few must do.
_MAX_SYNTHETIC_BYTES = 4 << 20
# What can show whether rows influence each other.
_MIN_SYNTHETIC_ROWS = 2


def predict_in_batches(predict: Callable[[Any], Batch], rows: Batch, size: int) -> Batch:
    """The answers to all rows, asked for that many at a time."""
    return run_generator(predict_stepwise(predict, rows, size))


def predict_stepwise(predict: Callable[[Any], Batch], rows: Batch, size: int) -> Generator[None, None, Batch]:
    """The same, with a pause after each call."""
    answers: list[Batch] = []
    for start in range(0, count_rows(rows), size):
        answers.append(predict(take_rows(rows, slice(start, start + size))))
        yield
    return concatenate_batches(answers)


def run_generator(steps: Generator[None, None, T]) -> T:
    """What comes of work with pauses, done without them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def measure_spread(answers: Batch, regrouped: Iterable[Batch]) -> Tolerance:
    """How far answers to the same rows, grouped in other ways, lie apart, by output; 0.0 for labels."""
    found = dict.fromkeys(_name_outputs(answers), 0.0)
    for other in regrouped:
        others = _name_outputs(other)
        for name, values in _name_outputs(answers).items():
            if values.dtype.kind == "f":
                found[name] = max(found[name], _max_distance(values, others[name]))
    return found


def describe_dependence(answers: Batch, spread: Tolerance) -> str:
    """By how much answers differ between groupings, in words, where that is more than rounding; "" elsewhere.

    What rounding changes is in the second half of a number's digits: rows that differ in the first half have
    influenced each other.
    """
    for name, values in _name_outputs(answers).items():
        if values.dtype.kind == "f" and spread.get(name, 0.0) > _largest_rounding(values):
            return f"output {name or 'of the model'} by {spread[name]:.3g}"
    return ""


def zero_tolerance(answers: Batch) -> Tolerance:
    """Not a single bit may differ."""
    return dict.fromkeys(_name_outputs(answers), 0.0)


def compute_tolerance(answers: Batch, library_spread: Tolerance, *, exact: bool) -> Tolerance:
    """What may differ from `answers`, where the library differs from itself by `library_spread`."""
    if exact:
        return zero_tolerance(answers)
    return {
        name: max(library_spread.get(name, 0.0), _ULPS * _largest_ulp(values))
        if values.dtype.kind == "f"
        else 0.0
        for name, values in _name_outputs(answers).items()
    }


def describe_difference(answers: Batch, other: Batch, allowed: Tolerance) -> str:
    """What of `other` differs by more than is allowed, in words; "" when nothing does."""
    if type(answers) is not type(other):
        return f"the answer is of the type {type(other).__name__}, not {type(answers).__name__}"
    expected, found = _name_outputs(answers), _name_outputs(other)
    if expected.keys() != found.keys():
        return f"the outputs are {', '.join(found)}, not {', '.join(expected)}"
    for name, values in expected.items():
        words = _describe_array_difference(values, found[name], allowed[name])
        if words:
            return f"output {name or 'of the model'} {words}"
    return ""


def _describe_array_difference(values: NDArray[Any], other: NDArray[Any], allowed: float) -> str:
    if values.dtype != other.dtype:
        return f"is {other.dtype}, not {values.dtype}"
    if values.shape != other.shape:
        return f"has the shape {other.shape}, not {values.shape}"
    if allowed:
        same = np.isclose(values, other, rtol=0.0, atol=allowed, equal_nan=True)
        limit = f"by more than {allowed:g}"
    else:
        same = _compare_bits(values, other)
        limit = "in some bit"
    if bool(np.all(same)):
        return ""
    first = np.argwhere(~np.atleast_1d(same))[0]
    place = int(first[0])
    one, two = np.atleast_1d(values)[tuple(first)], np.atleast_1d(other)[tuple(first)]
    return f"differs {limit}: {two!r}, not {one!r}, for row {place}"


def _compare_bits(values: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Element by element; one NaN is as good as another, but 0.0 is not -0.0."""
    if values.dtype.kind == "f":
        same = (values == other) & (np.signbit(values) == np.signbit(other))
        return np.asarray(same | (np.isnan(values) & np.isnan(other)))
    if values.dtype.kind == "O":
        pairs = zip(values.flat, other.flat, strict=True)
        return np.array([_is_same_value(*pair) for pair in pairs], bool).reshape(values.shape)
    return np.asarray(values == other)


def _is_same_value(one: Any, other: Any) -> bool:
    both_nan = isinstance(one, float) and isinstance(other, float) and one != one and other != other  # noqa: PLR0124
    return type(one) is type(other) and (both_nan or bool(np.all(one == other)))


def _max_distance(values: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest difference of finite numbers."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(values - other)
    finite = apart[np.isfinite(apart)]
    return float(np.max(finite, initial=0.0))


def _largest_ulp(values: NDArray[Any]) -> float:
    finite = values[np.isfinite(values)]
    return float(np.spacing(np.max(np.abs(finite)))) if finite.size else 0.0


def _largest_rounding(values: NDArray[Any]) -> float:
    finite = values[np.isfinite(values)]
    return float(np.sqrt(np.finfo(values.dtype).eps) * np.max(np.abs(finite), initial=0.0))


def _name_outputs(batch: Batch) -> Mapping[str, NDArray[Any]]:
    if isinstance(batch, dict):
        return batch
    return {"": np.asarray(batch)}


def make_synthetic_batch(runtime: Runtime, max_rows: int) -> Batch | None:
    """Up to `max_rows` made-up rows, fewer where they are large; None when none can be made."""
    one = runtime.make_synthetic_rows(1)
    if one is None or max_rows == 1:
        return one
    row = count_bytes(one) // max(1, count_rows(one))
    fitting = max(_MIN_SYNTHETIC_ROWS, _MAX_SYNTHETIC_BYTES // row) if row else max_rows
    return runtime.make_synthetic_rows(min(max_rows, fitting))
