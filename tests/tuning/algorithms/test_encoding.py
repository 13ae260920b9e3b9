from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuning import spaces
from tuning.algorithms.encoding import Column, SpaceEncoding
from tuning.algorithms.features import FeatureMap
from tuning.space import (
    Parameter,
    ParameterKind,
    Point,
    Scale,
    SearchSpace,
    check_point,
    iterate_points,
)


@given(spaces.spaces | st.just(spaces.EVERYTHING), st.integers(0, 2**32))
def test_every_row_is_a_valid_point_and_reads_back(space: SearchSpace, seed: int) -> None:
    encoding = SpaceEncoding(space)
    rows = encoding.snap(np.random.default_rng(seed).uniform(size=(8, len(encoding.columns))))
    points = [encoding.decode(row) for row in rows]

    for point in points:
        check_point(space, point)
    assert np.allclose(encoding.encode(points), rows, atol=1e-9)
    assert np.allclose(encoding.snap(rows), rows, atol=1e-9)


@pytest.mark.parametrize(
    ("parameter", "unit", "value"),
    [
        (spaces.RATE, 0.0, 1e-4),
        (spaces.RATE, 0.5, 1e-2),
        (spaces.RATE, 1.0, 1.0),
        (spaces.MOMENTUM, 0.0, 0.1),
        (spaces.MOMENTUM, 1.0, 0.999),
        (spaces.LAYERS, 0.0, 1),
        (spaces.LAYERS, 0.5, 2),
        (spaces.LAYERS, 0.99, 3),
        (spaces.SIZE, 0.5, 32.0),
        (spaces.DECAY, 0.0, 0.001),
        (spaces.DECAY, 0.37, 0.01),
        (spaces.KIND, 0.1, "linear"),
        (spaces.KIND, 1.0, "boosted"),
    ],
)
def test_values_along_their_scale(parameter: Parameter, unit: float, value: float | str) -> None:
    decoded = Column.build(parameter).decode(unit)

    assert decoded == pytest.approx(value) if not isinstance(value, str) else decoded == value
    assert type(decoded) is type(value)


def test_a_reverse_logarithmic_scale_has_most_values_near_the_maximum() -> None:
    assert Column.build(spaces.MOMENTUM).decode(0.5) == pytest.approx(0.1 + 0.999 - (0.1 * 0.999) ** 0.5)


def test_whole_numbers_have_equal_shares() -> None:
    units = (np.arange(3000) + 0.5) / 3000
    column = Column.build(spaces.LAYERS)
    counts = np.bincount([int(column.decode(float(unit))) for unit in units])

    assert counts.tolist() == [0, 1000, 1000, 1000]


def test_a_range_of_one_value_is_in_the_middle() -> None:
    space = SearchSpace((Parameter(name="x", kind=spaces.RATE.kind, minimum=2.0, maximum=2.0),))

    assert Column.build(space.parameters[0]).encode([2.0]).tolist() == [0.5]
    assert SpaceEncoding(space).decode(np.array([0.9])) == {"x": 2.0}


def test_values_of_a_category_are_equally_far_from_each_other() -> None:
    encoding = SpaceEncoding(spaces.FINITE)
    features = FeatureMap.build(encoding)
    points: list[Point] = [
        {"layers": 2, "kind": "forest", "trees": 11},
        {"layers": 2, "kind": "boosted", "trees": 11, "depth": 1},
    ]
    rows = features.compute(encoding.encode(points))
    of_kind = np.array(features.groups) == 1

    assert ((rows[0] - rows[1])[of_kind] ** 2).sum() == pytest.approx(1.0)


def test_what_is_not_active_makes_no_difference() -> None:
    encoding = SpaceEncoding(spaces.FINITE)
    rows = encoding.encode([{"layers": 1, "kind": "linear"}] * 2)
    rows[1, 2:] = 0.9

    assert np.array_equal(encoding.snap(rows)[0], encoding.snap(rows)[1])
    assert encoding.find_active(rows).tolist() == [[True, True, False, False]] * 2


def test_all_points_of_a_finite_space_are_different_rows() -> None:
    rows = SpaceEncoding(spaces.FINITE).encode(iterate_points(spaces.FINITE))

    assert len(np.unique(rows, axis=0)) == 30


def test_values_that_a_scale_does_not_tell_apart_are_different_rows() -> None:
    values = (1e-300, 1.0, 2.0, 1e300)
    for scale in Scale:
        column = Column.build(Parameter(name="x", kind=ParameterKind.DISCRETE, scale=scale, values=values))

        assert [column.decode(float(unit)) for unit in column.encode(values)] == list(values)


def test_children_belong_to_the_exact_value_of_their_parent() -> None:
    """Also where values lie close together on the parent's scale."""
    child = Parameter(name="child", kind=ParameterKind.INTEGER, maximum=3, parent_values=(2.0,))
    parent = Parameter(
        name="parent",
        kind=ParameterKind.DISCRETE,
        scale=Scale.LOG,
        values=(1.0, 1.0 + 1e-12, 2.0, 1e300),
        children=(child,),
    )
    encoding = SpaceEncoding(SearchSpace((parent,)))
    points: list[Point] = [{"parent": 1.0}, {"parent": 1.0 + 1e-12}, {"parent": 2.0, "child": 3}]

    assert encoding.find_active(encoding.encode(points))[:, 1].tolist() == [False, False, True]
