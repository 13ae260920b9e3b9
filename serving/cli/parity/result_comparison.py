"""Compares online and batch predictions of the same rows, by the rule of `serving.runtimes.output_equality`.

JSON does not say what type a number had. An output is held to be float32 if all its numbers could be the
shortest texts of float32 values, which are what answers carry: they have nine digits at most, as numbers of
float64 do only where they are as good as whole. What is compared then is the float32 values they stand for.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # start-up time of the other commands
    from numpy.typing import NDArray

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


_Path = tuple[str | int, ...]
_Leaves = Mapping[_Path, Any]
"""The values inside an answer, by the keys and positions that lead to them."""


def check_parity(
    online: RowResults, batch: RowResults, regrouped: Callable[[], Sequence[RowResults]] | None
) -> ParityResult:
    """Compare the answers to the same rows.

    `regrouped` predicts online again, in `output_equality.BATCH_SIZES`, if that is needed; None where nothing
    may differ.
    """
    outputs: Mapping[str, _OutputTolerance] = {}
    if regrouped is not None and any(_is_different(*pair) for pair in zip(online, batch, strict=True)):
        outputs = _measure_tolerances([online, batch], regrouped())
    equal = refused = 0
    largest = 0.0
    for row, (one, other) in enumerate(zip(online, batch, strict=True)):
        if isinstance(one, RowRefusal) and isinstance(other, RowRefusal):
            refused += 1
            continue
        distance = _measure_difference(one, other, outputs)
        if distance is None:
            return ParityResult(equal, refused, RowDifference(row, one, other), largest)
        equal += 1
        largest = max(largest, distance)
    return ParityResult(equal, refused, None, largest)


@dataclass(frozen=True, slots=True)
class _OutputTolerance:
    """By how much the numbers of an output may differ, once they are values of its type."""

    is_float32: bool
    allowed: float

    def measure_distance(self, numbers: Sequence[float], others: Sequence[float]) -> float:
        """The largest difference of numbers in the same place."""
        apart = _to_array(numbers, is_float32=self.is_float32) - _to_array(others, is_float32=self.is_float32)
        return float(abs(apart).max())


def _measure_tolerances(
    compared: Sequence[RowResults], regrouped: Sequence[RowResults]
) -> Mapping[str, _OutputTolerance]:
    """What may differ in each output; the regrouped answers show how far the model differs from itself."""
    from serving.runtimes import output_equality  # noqa: PLC0415  start-up time of the other commands

    groups = [[_list_leaves(answer) for answer in answers] for answers in (*compared, *regrouped)]
    numbers = _collect_numbers(leaves for group in groups for leaves in group)
    float32 = {output for output, values in numbers.items() if _are_float32(values)}
    everything = _to_arrays(numbers, float32)
    # Where the model refuses a row in some batch, or answers in another shape, there is nothing to measure.
    alike = [rows for rows in zip(*groups[len(compared) :], strict=True) if _have_same_form(rows)]
    own = [_to_arrays(_collect_numbers(group), float32) for group in zip(*alike, strict=True)]
    spread = output_equality.measure_spread(own[0], own[1:]) if own else {}
    allowed = output_equality.compute_tolerance(everything, spread, exact=False)
    return {output: _OutputTolerance(output in float32, limit) for output, limit in allowed.items()}


def _measure_difference(
    one: RowResult, other: RowResult, outputs: Mapping[str, _OutputTolerance]
) -> float | None:
    """The largest difference of two answers to a row; None if they differ by more than is allowed."""
    if not _is_different(one, other):
        return 0.0
    leaves, others = _list_leaves(one), _list_leaves(other)
    if not outputs or not _have_same_form((leaves, others)):
        return None
    if any(value != others[path] for path, value in leaves.items() if not isinstance(value, float)):
        return None
    numbers, other_numbers = _collect_numbers([leaves]), _collect_numbers([others])
    largest = 0.0
    for name, values in numbers.items():
        distance = outputs[name].measure_distance(values, other_numbers[name])
        if distance > outputs[name].allowed:
            return None
        largest = max(largest, distance)
    return largest


def _is_different(one: RowResult, other: RowResult) -> bool:
    """Whether two answers are not the same to the bit: 1 is not 1.0, nor 0.0 -0.0."""
    if isinstance(one, RowRefusal) or isinstance(other, RowRefusal):
        return not (isinstance(one, RowRefusal) and isinstance(other, RowRefusal))
    return json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True)


def _list_leaves(answer: RowResult, path: _Path = ()) -> dict[_Path, Any]:
    """The values inside an answer; objects and lists that hold none are such values too."""
    members: Iterable[tuple[str | int, Any]] = ()
    match answer:
        case dict():
            members = answer.items()
        case list():
            members = enumerate(answer)
    found: dict[_Path, Any] = {}
    for key, value in members:
        found |= _list_leaves(value, (*path, key))
    return found or {path: answer}


def _have_same_form(rows: Sequence[_Leaves]) -> bool:
    """Whether values of the same types are in the same places."""
    forms = [{path: type(value) for path, value in leaves.items()} for leaves in rows]
    return all(form == forms[0] for form in forms)


def _name_output(path: _Path) -> str:
    """The output that a value belongs to: the keys that lead to it, without the positions in lists."""
    return ".".join(key for key in path if isinstance(key, str))


def _collect_numbers(rows: Iterable[_Leaves]) -> Mapping[str, list[float]]:
    """The floats of some rows by output."""
    numbers: defaultdict[str, list[float]] = defaultdict(list)
    for leaves in rows:
        for path, value in leaves.items():
            if isinstance(value, float):
                numbers[_name_output(path)].append(value)
    return numbers


def _to_arrays(numbers: Mapping[str, Sequence[float]], float32: Collection[str]) -> dict[str, NDArray[Any]]:
    return {output: _to_array(values, is_float32=output in float32) for output, values in numbers.items()}


def _to_array(numbers: Sequence[float], *, is_float32: bool) -> NDArray[Any]:
    import numpy as np  # noqa: PLC0415  start-up time of the other commands

    return np.array(numbers, np.float32 if is_float32 else np.float64)


def _are_float32(numbers: Sequence[float]) -> bool:
    """Whether all may be shortest texts of float32 values, or all are such values with all their digits."""
    import numpy as np  # noqa: PLC0415  start-up time of the other commands

    with np.errstate(over="ignore"):
        single = _to_array(numbers, is_float32=True)
    if not np.isfinite(single).all():
        return False
    return all(float(f"{number:.{_DIGITS}g}") == number for number in numbers) or bool(
        (single == np.array(numbers)).all()
    )
