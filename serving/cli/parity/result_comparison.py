"""Compares online and batch predictions of the same rows, by the rule of `serving.node.batch_equivalence`.

Labels, tree models and custom routines: identical to the bit. Elsewhere the numbers of an output may differ
by the larger of 4 units in the last place of its largest one, and what the model itself shows when the same
rows are predicted in batches of 1, 2 and 64.

JSON does not say what type a number had. An output is held to be float32 if all its numbers could be the
shortest texts of float32 values, which are what answers carry: they have nine digits at most, as numbers of
float64 do only where they are as good as whole. What is compared then is the float32 values they stand for.
"""

from __future__ import annotations

import json
import math
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Batch sizes that show how far the model agrees with itself.
BATCH_SIZES = (1, 2, 64)

_ULPS = 4
# With so many significant digits, any float32 can be told from all others.
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class RowRefusal:
    """A row without a prediction, and why."""

    reason: str


RowResult = Any  # a JSON value or a RowRefusal
RowResults = Sequence[RowResult]


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row, counted from 0, whose online and batch results differ."""

    row: int
    online: RowResult
    batch: RowResult


@dataclass(frozen=True, slots=True)
class ParityResult:
    """How many rows have equal predictions, how many are refused by both, and the first difference.

    `largest_difference` is the largest one that was allowed; 0 if all is identical to the bit.
    """

    equal: int
    refused: int
    difference: RowDifference | None = None
    largest_difference: float = 0.0


def compare_results(
    online: RowResults, batch: RowResults, regrouped: Callable[[], Sequence[RowResults]] | None
) -> ParityResult:
    """Compare the answers to the same rows.

    `regrouped` predicts online again, in BATCH_SIZES, if that is needed; None where nothing may differ.
    """
    compared: Sequence[RowResults] = [online, batch]
    tolerance = Tolerance()
    if regrouped is not None and any(_is_different(*pair) for pair in zip(online, batch, strict=True)):
        compared = _decode_float32_outputs([online, batch, *regrouped()])
        tolerance = Tolerance.measure(compared[:2], compared[2:])
    equal = refused = 0
    largest = 0.0
    for row, (one, other) in enumerate(zip(compared[0], compared[1], strict=True)):
        if isinstance(one, RowRefusal) and isinstance(other, RowRefusal):
            refused += 1
            continue
        if not tolerance.allows(one, other):
            return ParityResult(equal, refused, RowDifference(row, online[row], batch[row]), largest)
        equal += 1
        largest = max([largest, *_measure_distances(one, other)])
    return ParityResult(equal, refused, None, largest)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """By how much the numbers of each output may differ; what is not named, not at all."""

    allowed: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def measure(cls, compared: Sequence[RowResults], regrouped: Sequence[RowResults]) -> Tolerance:
        """From the compared answers, and those of the model to the same rows in BATCH_SIZES."""
        numbers: defaultdict[str, list[float]] = defaultdict(list)
        for answer in (answer for answers in (*compared, *regrouped) for answer in answers):
            for output, value in _iterate_leaves(answer):
                if isinstance(value, float):
                    numbers[output].append(value)
        spread: defaultdict[str, float] = defaultdict(float)
        first, *others = regrouped or [()]
        for answers in others:
            for one, other in zip(first, answers, strict=True):
                for output, distance in _measure_distances_by_output(one, other):
                    spread[output] = max(spread[output], distance)
        return cls(
            {output: max(_ULPS * _compute_ulp(found), spread[output]) for output, found in numbers.items()}
        )

    def allows(self, one: RowResult, other: RowResult) -> bool:
        """Whether two answers to a row are equal."""
        if not _is_different(one, other):
            return True
        if _strip_values(one) != _strip_values(other):
            return False
        return all(
            _is_same_number(first, second, self.allowed.get(output, 0.0))
            for (output, first), (_, second) in zip(_iterate_leaves(one), _iterate_leaves(other), strict=True)
        )


def _decode_float32_outputs(results: Sequence[RowResults]) -> Sequence[RowResults]:
    """The answers with the numbers of float32 outputs as the float32 values that their texts stand for."""
    written = {
        (output, value)
        for answers in results
        for answer in answers
        for output, value in _iterate_leaves(answer)
        if isinstance(value, float)
    }
    longer = {output for output, value in written if _to_float32(value) is None}
    return [[_decode_float32_values(answer, longer) for answer in answers] for answers in results]


def _decode_float32_values(answer: RowResult, longer: Collection[str], output: str = "") -> RowResult:
    match answer:
        case dict():
            return {
                key: _decode_float32_values(value, longer, f"{output}.{key}") for key, value in answer.items()
            }
        case list():
            return [_decode_float32_values(value, longer, output) for value in answer]
        case float() if output not in longer:
            return _to_float32(answer)
        case _:
            return answer


def _to_float32(number: float) -> float | None:
    """The float32 whose shortest text this number may be; None if it has too many digits, or is too large."""
    if float(f"{number:.{_DIGITS}g}") != number:
        return None
    try:
        (single,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        return None
    return float(single)


def _is_different(one: RowResult, other: RowResult) -> bool:
    """Whether two answers are not the same to the bit: 1 is not 1.0, nor 0.0 -0.0."""
    if isinstance(one, RowRefusal) or isinstance(other, RowRefusal):
        return not (isinstance(one, RowRefusal) and isinstance(other, RowRefusal))
    return json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True)


def _is_same_number(one: Any, other: Any, allowed: float) -> bool:
    if isinstance(one, float) and isinstance(other, float) and allowed:
        return abs(one - other) <= allowed
    return not _is_different(one, other)


def _iterate_leaves(answer: RowResult, output: str = "") -> Iterator[tuple[str, Any]]:
    """The values inside an answer, each with the name of its output: the keys that lead to it."""
    match answer:
        case dict():
            for key in sorted(answer):
                yield from _iterate_leaves(answer[key], f"{output}.{key}")
        case list():
            for value in answer:
                yield from _iterate_leaves(value, output)
        case _:
            yield output, answer


def _strip_values(answer: RowResult) -> Any:
    """The answer without its values."""
    match answer:
        case dict():
            return {key: _strip_values(value) for key, value in answer.items()}
        case list():
            return [_strip_values(value) for value in answer]
        case RowRefusal():
            return RowRefusal
        case _:
            return None


def _measure_distances_by_output(one: RowResult, other: RowResult) -> Iterable[tuple[str, float]]:
    """How far numbers in the same place are from each other."""
    if _strip_values(one) != _strip_values(other):
        return
    for (output, first), (_, second) in zip(_iterate_leaves(one), _iterate_leaves(other), strict=True):
        if isinstance(first, float) and isinstance(second, float):
            yield output, abs(first - second)


def _measure_distances(one: RowResult, other: RowResult) -> Iterator[float]:
    for _, distance in _measure_distances_by_output(one, other):
        yield distance


def _compute_ulp(numbers: Iterable[float]) -> float:
    """A unit in the last place of the largest number, in the type that all of them have."""
    numbers = list(numbers)
    largest = max(map(abs, numbers))
    if not all(map(_is_float32, numbers)):
        return math.ulp(largest)
    _, exponent = math.frexp(largest)
    return math.ldexp(1.0, max(exponent - 24, -149))


def _is_float32(number: float) -> bool:
    try:
        (single,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        return False
    return bool(single == number)
