from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuning.algorithms.encoding import Column
from tuning.space import Parameter, ParameterKind, Scale

LEAST, GREATEST = sys.float_info.min * sys.float_info.epsilon, sys.float_info.max
INT64 = 2**63


def make_column(low: float, high: float, scale: Scale = Scale.LINEAR) -> Column:
    kind = ParameterKind.INTEGER if isinstance(low, int) else ParameterKind.DOUBLE
    return Column.build(Parameter(name="x", kind=kind, scale=scale, minimum=low, maximum=high))


@pytest.mark.parametrize(
    ("low", "high", "scale"),
    [
        (-GREATEST, GREATEST, Scale.LINEAR),
        (0.0, LEAST, Scale.LINEAR),
        (1.0, 1.0 + sys.float_info.epsilon, Scale.LINEAR),
        (1.0, 1.0 + sys.float_info.epsilon, Scale.LOG),
        (LEAST, 1e-320, Scale.LOG),
        (LEAST, GREATEST, Scale.LOG),
        (LEAST, GREATEST, Scale.REVERSE_LOG),
        (1e308, GREATEST, Scale.REVERSE_LOG),
        (-INT64, INT64 - 1, Scale.LINEAR),
        (INT64 - 3, INT64 - 1, Scale.LINEAR),
        (INT64 - 3, INT64 - 1, Scale.LOG),
        (1, INT64 - 1, Scale.LOG),
        (1, INT64 - 1, Scale.REVERSE_LOG),
    ],
)
def test_extreme_ranges_are_computed(low: float, high: float, scale: Scale) -> None:
    """Without a warning too: pytest makes them errors."""
    column = make_column(low, high, scale)
    units = np.linspace(0.0, 1.0, 11)
    values = [column.decode(float(unit)) for unit in units]

    assert all(map(column.parameter.contains, values))
    assert [float(value) for value in values] == sorted(map(float, values))
    assert np.isfinite(column.snap(units)).all()
    least, most = column.encode([low, high])
    assert 0.0 <= least <= most <= 1.0


@pytest.mark.parametrize(
    ("low", "high", "scale", "middle"),
    [
        (-GREATEST, GREATEST, Scale.LINEAR, 0.0),
        (1e-300, 1e300, Scale.LOG, 1.0),
        (LEAST, 1.0, Scale.LOG, LEAST**0.5),
        (1e-300, 1e300, Scale.REVERSE_LOG, 1e300),
        (1.2e308, 1.5e308, Scale.REVERSE_LOG, 1.2e308 + (1.5e308 - 1.2e308 * 1.25**0.5)),
    ],
)
def test_the_middle_of_a_wide_range(low: float, high: float, scale: Scale, middle: float) -> None:
    column = make_column(low, high, scale)

    assert column.decode(0.5) == pytest.approx(middle, rel=1e-9)
    assert column.encode([low, high]) == pytest.approx([0.0, 1.0])


def test_a_short_range_of_huge_whole_numbers_has_all_of_them() -> None:
    column = make_column(INT64 - 3, INT64 - 1)

    assert [column.decode(unit) for unit in (0.1, 0.5, 0.9)] == [INT64 - 3, INT64 - 2, INT64 - 1]


@given(st.floats(LEAST, GREATEST), st.floats(LEAST, GREATEST), st.sampled_from(Scale), st.floats(0.0, 1.0))
def test_values_of_any_range_lie_within(one: float, other: float, scale: Scale, unit: float) -> None:
    low, high = sorted((one, other))
    column = make_column(low, high, scale)
    value = float(column.decode(unit))

    assert low <= value <= high
    assert -1e-6 <= column.encode([value])[0] <= 1.0 + 1e-6
