"""The rule of equality, on answers as JSON has them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from serving.cli.parity.result_comparison import (
    ParityResult,
    RowDifference,
    RowRefusal,
    check_parity,
)


def float32(number: float) -> float:
    """The float32 nearest to a number."""
    (value,) = struct.unpack("f", struct.pack("f", number))
    return float(value)


THIRD = float32(1 / 3)
UNIT32 = 2.0**-25  # of a float32 from 1/4 to 1/2
UNIT64 = 2.0**-54


def unanimous(answers: Sequence[Any]) -> list[Sequence[Any]]:
    """What a model says in batches of 1, 2 and 64 that gives the same in all."""
    return [answers] * 3


@pytest.mark.parametrize(
    ("online", "batch"),
    [
        (1, 1.0),
        (0.0, -0.0),
        (1, True),
        (None, 0.0),
        ("a", "b"),
        ([1.0], [1.0, 1.0]),
        ({"a": 1.0}, {"b": 1.0}),
        ({"a": "x", "b": 0.1}, {"a": "y", "b": 0.1}),
        (1.0, [1.0]),
        (1.0, RowRefusal("no")),
        (RowRefusal("no"), 1.0),
    ],
)
def test_what_is_no_float_is_identical_or_different(online: Any, batch: Any) -> None:
    """Types, labels and shapes must be the same, and so must be what is refused."""
    verdict = check_parity([[2], online], [[2], batch], None)

    assert verdict == ParityResult(1, 0, RowDifference(1, online, batch))
    if (online, batch) != (0.0, -0.0):
        assert check_parity([online], [batch], lambda: unanimous([online])).difference is not None


def test_the_order_of_keys_says_nothing() -> None:
    """Objects are equal when their members are."""
    assert check_parity([{"a": 1, "b": [2.5]}], [{"b": [2.5], "a": 1}], None) == ParityResult(1, 0)


def test_rows_that_both_refuse() -> None:
    """They are counted apart, whatever the reasons."""
    verdict = check_parity([1, RowRefusal("x"), 2], [1, RowRefusal("y"), 2], None)

    assert verdict == ParityResult(2, 1)


def test_nothing_may_differ_where_answers_are_exact() -> None:
    """One bit is a difference."""
    assert check_parity([THIRD], [THIRD + UNIT32], None).difference == RowDifference(0, THIRD, THIRD + UNIT32)


def test_four_units_of_float32() -> None:
    """Where all numbers are float32 values, the unit is theirs."""
    within = check_parity([THIRD], [THIRD + 4 * UNIT32], lambda: unanimous([THIRD]))
    beyond = check_parity([THIRD], [THIRD + 5 * UNIT32], lambda: unanimous([THIRD]))

    assert within == ParityResult(1, 0, None, 4 * UNIT32)
    assert beyond == ParityResult(0, 0, RowDifference(0, THIRD, THIRD + 5 * UNIT32))


def text32(number: float) -> float:
    """A float32 as an answer has it: by its fewest digits."""
    return float(str(np.float32(number)))


@pytest.mark.parametrize("start", [1 / 3, 0.7, 1000.1, 2.0**-140, 3.4e38])
def test_four_units_of_float32_by_their_texts(start: float) -> None:
    """Texts are not evenly spaced; what counts is the numbers that they stand for."""
    first = np.float32(start)
    unit = float(np.spacing(first))
    written, four, five = (text32(float(first) - steps * unit) for steps in (0, 4, 5))

    within = check_parity([written], [four], lambda: unanimous([written]))
    beyond = check_parity([written], [five], lambda: unanimous([written]))

    assert within == ParityResult(1, 0, None, 4 * unit)
    assert beyond == ParityResult(0, 0, RowDifference(0, written, five))


def test_four_units_of_float64() -> None:
    """One number that is no float32 value makes its output float64."""
    number = 1 / 3
    within = check_parity([number], [number + 4 * UNIT64], lambda: unanimous([number]))
    beyond = check_parity([number], [number + 6 * UNIT64], lambda: unanimous([number]))
    mixed = check_parity([number, THIRD], [number, THIRD + UNIT32], lambda: unanimous([number, THIRD]))

    assert within.difference is None
    assert beyond.difference is not None
    assert mixed.difference == RowDifference(1, THIRD, THIRD + UNIT32)


def test_the_unit_is_that_of_the_largest_number_of_the_output() -> None:
    """A number near zero is what is left of large ones."""
    large, small = float32(1000.1), float32(0.001)
    moved = float32(small + 0.0001)

    assert check_parity([large, small], [large, moved], lambda: unanimous([large, small])).difference is None
    apart = [{"a": large, "b": small}], [{"a": large, "b": moved}]
    assert check_parity(*apart, lambda: unanimous(apart[0])).difference is not None


def test_what_the_model_itself_shows() -> None:
    """A model that changes with the size of its batches may differ by as much, in that output only."""

    def answer(value: float) -> list[Any]:
        return [{"a": [value, 1.5], "b": THIRD}]

    groupings = [answer(0.5), answer(0.5), answer(0.5 + 0.001)]
    within = check_parity(answer(0.5), answer(0.5 + 0.0009), lambda: groupings)
    beyond = check_parity(answer(0.5), answer(0.5 + 0.0011), lambda: groupings)
    elsewhere = check_parity(answer(0.5), [{"a": [0.5, 1.5], "b": THIRD + 0.0009}], lambda: groupings)

    assert within.difference is None
    assert 0.00089 < within.largest_difference < 0.00091
    assert beyond.difference is not None
    assert elsewhere.difference is not None


def test_rows_that_the_model_refuses_in_some_batches() -> None:
    """They say nothing of how far it differs from itself; the others do."""
    groupings: list[Sequence[Any]] = [[0.5, 0.25], [RowRefusal("x"), 0.25], [0.6, 0.2501]]

    within = check_parity([0.5, 0.25], [0.5, 0.25009], lambda: groupings)
    beyond = check_parity([0.5, 0.25], [0.5, 0.2502], lambda: groupings)

    assert within.difference is None
    assert beyond.difference == RowDifference(1, 0.25, 0.2502)


def test_the_model_is_asked_again_only_when_something_differs() -> None:
    """Most are equal to the bit, and three times the requests are saved."""

    def never() -> list[Sequence[Any]]:
        raise AssertionError("asked again")

    assert check_parity([0.1, RowRefusal("x")], [0.1, RowRefusal("y")], never) == ParityResult(1, 1)


def test_numbers_beyond_float32() -> None:
    """They are float64."""
    assert check_parity([1e300], [1e300], None) == ParityResult(1, 0)
    assert (
        check_parity([1e300, THIRD], [1.1e300, THIRD], lambda: unanimous([1e300, THIRD])).difference
        is not None
    )
