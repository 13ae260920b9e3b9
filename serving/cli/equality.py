"""Whether two ways to the same predictions agree. The rule is that of `serving.node.probe`.

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

# The sizes of the batches that show how far the model agrees with itself.
BATCHES = (1, 2, 64)

_ULPS = 4
# With so many significant digits, any float32 can be told from all others.
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Refused:
    """A row without a prediction, and why."""

    reason: str


Answer = Any  # what JSON can hold, or Refused
Answers = Sequence[Answer]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two ways disagree: the row, counted from 0, and what each of them says."""

    row: int
    online: Answer
    batch: Answer


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many rows got equal predictions, how many both ways refuse, and the first difference.

    `largest` is the largest difference that was allowed; 0 if all is identical to the bit.
    """

    equal: int
    refused: int
    difference: Difference | None = None
    largest: float = 0.0


def judge(online: Answers, batch: Answers, regrouped: Callable[[], Sequence[Answers]] | None) -> Verdict:
    """Compare the answers to the same rows.

    `regrouped` asks online again, in BATCHES; None where nothing may differ. It is only called when needed.
    """
    meant: Sequence[Answers] = [online, batch]
    tolerance = Tolerance()
    if regrouped is not None and any(_differ(*pair) for pair in zip(online, batch, strict=True)):
        meant = _meant([online, batch, *regrouped()])
        tolerance = Tolerance.learned(meant[:2], meant[2:])
    equal = refused = 0
    largest = 0.0
    for row, (one, other) in enumerate(zip(meant[0], meant[1], strict=True)):
        if isinstance(one, Refused) and isinstance(other, Refused):
            refused += 1
            continue
        if not tolerance.allows(one, other):
            return Verdict(equal, refused, Difference(row, online[row], batch[row]), largest)
        equal += 1
        largest = max([largest, *_distances(one, other)])
    return Verdict(equal, refused, None, largest)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """By how much the numbers of each output may differ; what is not named, not at all."""

    allowed: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def learned(cls, ways: Sequence[Answers], regrouped: Sequence[Answers]) -> Tolerance:
        """From the answers that are compared, and those of the model to the same rows in BATCHES."""
        numbers: defaultdict[str, list[float]] = defaultdict(list)
        for answer in (answer for answers in (*ways, *regrouped) for answer in answers):
            for output, value in _iterate_leaves(answer):
                if isinstance(value, float):
                    numbers[output].append(value)
        spread: defaultdict[str, float] = defaultdict(float)
        first, *others = regrouped or [()]
        for answers in others:
            for one, other in zip(first, answers, strict=True):
                for output, distance in _distances_by_output(one, other):
                    spread[output] = max(spread[output], distance)
        return cls({output: max(_ULPS * _ulp(found), spread[output]) for output, found in numbers.items()})

    def allows(self, one: Answer, other: Answer) -> bool:
        """Whether two answers to a row are equal."""
        if not _differ(one, other):
            return True
        if _shape(one) != _shape(other):
            return False
        return all(
            _same_number(first, second, self.allowed.get(output, 0.0))
            for (output, first), (_, second) in zip(_iterate_leaves(one), _iterate_leaves(other), strict=True)
        )


def _meant(ways: Sequence[Answers]) -> Sequence[Answers]:
    """The answers with the numbers of float32 outputs as what their texts stand for."""
    written = {
        (output, value)
        for answers in ways
        for answer in answers
        for output, value in _iterate_leaves(answer)
        if isinstance(value, float)
    }
    longer = {output for output, value in written if _single(value) is None}
    return [[_exact(answer, longer) for answer in answers] for answers in ways]


def _exact(answer: Answer, longer: Collection[str], output: str = "") -> Answer:
    match answer:
        case dict():
            return {key: _exact(value, longer, f"{output}.{key}") for key, value in answer.items()}
        case list():
            return [_exact(value, longer, output) for value in answer]
        case float() if output not in longer:
            return _single(answer)
        case _:
            return answer


def _single(number: float) -> float | None:
    """The float32 whose shortest text this number may be; None if it has too many digits, or is too large."""
    if float(f"{number:.{_DIGITS}g}") != number:
        return None
    try:
        (single,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        return None
    return float(single)


def _differ(one: Answer, other: Answer) -> bool:
    """Whether two answers are not the same to the bit: 1 is not 1.0, nor 0.0 -0.0."""
    if isinstance(one, Refused) or isinstance(other, Refused):
        return not (isinstance(one, Refused) and isinstance(other, Refused))
    return json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True)


def _same_number(one: Any, other: Any, allowed: float) -> bool:
    if isinstance(one, float) and isinstance(other, float) and allowed:
        return abs(one - other) <= allowed
    return not _differ(one, other)


def _iterate_leaves(answer: Answer, output: str = "") -> Iterator[tuple[str, Any]]:
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


def _shape(answer: Answer) -> Any:
    """The answer without its values."""
    match answer:
        case dict():
            return {key: _shape(value) for key, value in answer.items()}
        case list():
            return [_shape(value) for value in answer]
        case Refused():
            return Refused
        case _:
            return None


def _distances_by_output(one: Answer, other: Answer) -> Iterable[tuple[str, float]]:
    """How far numbers in the same place are from each other."""
    if _shape(one) != _shape(other):
        return
    for (output, first), (_, second) in zip(_iterate_leaves(one), _iterate_leaves(other), strict=True):
        if isinstance(first, float) and isinstance(second, float):
            yield output, abs(first - second)


def _distances(one: Answer, other: Answer) -> Iterator[float]:
    for _, distance in _distances_by_output(one, other):
        yield distance


def _ulp(numbers: Iterable[float]) -> float:
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
