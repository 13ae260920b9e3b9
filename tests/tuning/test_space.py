from __future__ import annotations

import functools
import time

import msgspec
import pytest

from serving.errors import InvalidArgument
from tuning.space import (
    MAX_DEPTH,
    MOST_COUNTED,
    Parameter,
    ParameterKind,
    Point,
    Scale,
    SearchSpace,
    check_point,
    check_space,
    count_points,
    format_value,
    iterate_points,
    make_key,
    parse_value,
)

RATE = Parameter(name="rate", kind=ParameterKind.DOUBLE, scale=Scale.LOG, minimum=1e-4, maximum=1.0)
LAYERS = Parameter(name="layers", kind=ParameterKind.INTEGER, minimum=1, maximum=3)
SIZE = Parameter(name="size", kind=ParameterKind.DISCRETE, values=(16.0, 32.0, 64.5))
TREES = Parameter(
    name="trees", kind=ParameterKind.INTEGER, minimum=10, maximum=12, parent_values=("forest", "boosted")
)
DEPTH = Parameter(name="depth", kind=ParameterKind.INTEGER, minimum=1, maximum=2, parent_values=("boosted",))
KIND = Parameter(
    name="kind",
    kind=ParameterKind.CATEGORICAL,
    values=("linear", "forest", "boosted"),
    children=(TREES, DEPTH),
)


TEXTS = tuple(f"{number:03}" for number in range(1000))
# What takes longer than this is no longer linear; it takes about a tenth.
LINEAR_SECONDS = 1.0


def change(parameter: Parameter, **changes: object) -> Parameter:
    return msgspec.structs.replace(parameter, **changes)


def test_a_record_reads_back() -> None:
    space = SearchSpace((RATE, LAYERS, SIZE, KIND))

    assert msgspec.json.decode(msgspec.json.encode(space), type=SearchSpace) == space


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ((), "at least one parameter"),
        ((change(RATE, name=""),), "has no name"),
        ((RATE, RATE), 'the name "rate"'),
        ((change(RATE, minimum=0.0),), "a minimum above 0, not 0.0"),
        ((change(RATE, minimum=2.0),), r"minimum \(2.0\) must not be greater than the maximum \(1.0\)"),
        ((change(RATE, maximum=float("inf")),), "must be finite"),
        ((change(RATE, values=("a",)),), "has a range, no values"),
        ((change(RATE, children=(DEPTH,)),), "has no children"),
        ((change(LAYERS, minimum=0.5),), "whole numbers"),
        ((change(SIZE, values=()),), "needs values"),
        ((change(SIZE, values=(2.0, 1.0)),), "increasing order"),
        ((change(SIZE, values=("a", "b")),), "finite numbers"),
        ((change(SIZE, values=tuple(map(float, range(1001)))),), "at most 1000"),
        ((change(SIZE, scale=Scale.LOG, values=(0.0, 1.0)),), "values above 0"),
        ((change(KIND, values=(1.0, "forest", "boosted")),), "are texts"),
        ((change(KIND, values=("forest", "boosted", "forest")),), "is there twice"),
        ((change(KIND, scale=Scale.LOG),), "has no scale"),
        ((change(KIND, values=("linear", "forest")),), "\"kind\" has no value 'boosted'"),
        ((change(KIND, children=(change(DEPTH, parent_values=()),)),), "must be named"),
        ((change(KIND, children=(DEPTH, change(TREES, name="depth"))),), 'the name "depth"'),
        ((change(KIND, children=(change(DEPTH, name="kind"),)),), 'the name "kind"'),
    ],
)
def test_an_invalid_space_is_refused(parameters: tuple[Parameter, ...], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        check_space(SearchSpace(parameters))


def test_children_that_are_never_active_together_share_a_name() -> None:
    children = (change(DEPTH, parent_values=("forest",)), DEPTH)

    check_space(SearchSpace((change(KIND, children=children),)))


def test_a_range_of_one_value_is_allowed() -> None:
    space = SearchSpace((change(RATE, minimum=1.0),))

    check_space(space)

    assert list(iterate_points(space)) == [{"rate": 1.0}]


def test_a_point_has_the_active_parameters() -> None:
    space = SearchSpace((KIND, RATE))

    points: tuple[Point, ...] = (
        {"kind": "linear", "rate": 0.5},
        {"kind": "boosted", "trees": 10, "depth": 2, "rate": 0.5},
    )
    for point in points:
        check_point(space, point)
        assert space.contains(point)

    assert [one.name for one in space.list_active({"kind": "forest", "rate": 1.0})] == [
        "kind",
        "trees",
        "rate",
    ]
    assert [one.name for one in space.list_all()] == ["kind", "trees", "depth", "rate"]


@pytest.mark.parametrize(
    ("point", "problem"),
    [
        ({"kind": "linear"}, '"rate": a value is missing'),
        ({"kind": "forest", "rate": 0.5}, '"trees": a value is missing'),
        ({"kind": "linear", "trees": 10, "rate": 0.5}, '"trees" is not active with these values'),
        ({"kind": "linear", "rat": 0.5}, '"rat" is not in the search space'),
        ({"kind": "linear", "rate": 2.0}, "no number from 0.0001 to 1.0"),
        ({"kind": "linear", "rate": "fast"}, "no number"),
        ({"kind": "forest", "trees": 10.5, "rate": 0.5}, "no whole number from 10 to 12"),
        ({"kind": "svm", "rate": 0.5}, "none of the values"),
    ],
)
def test_an_invalid_point_is_refused(point: dict[str, float | str], problem: str) -> None:
    space = SearchSpace((KIND, RATE))

    assert not space.contains(point)
    with pytest.raises(InvalidArgument, match=problem):
        check_point(space, point)


@pytest.mark.parametrize(
    ("parameter", "value", "text"),
    [
        (RATE, 0.0609819896050862, "0.0609819896050862"),
        (RATE, 1.0, "1"),
        (LAYERS, 2, "2"),
        (SIZE, 16.0, "16"),
        (SIZE, 64.5, "64.5"),
        (KIND, "linear", "linear"),
    ],
)
def test_values_read_back_from_their_text(parameter: Parameter, value: float | str, text: str) -> None:
    assert format_value(value) == text
    assert parse_value(parameter, text) == value


@pytest.mark.parametrize(("parameter", "text"), [(RATE, "2"), (RATE, "x"), (LAYERS, "1.5"), (SIZE, "17")])
def test_text_outside_the_parameter_is_refused(parameter: Parameter, text: str) -> None:
    with pytest.raises(InvalidArgument, match=f'"{parameter.name}": "{text}" is no'):
        parse_value(parameter, text)


def nest(depth: int, values: tuple[str, ...]) -> Parameter:
    """Parameters with these values, each active with all values of the one before."""
    levels = [
        Parameter(name=f"p{level}", kind=ParameterKind.CATEGORICAL, values=values, parent_values=values)
        for level in range(1, depth)
    ]
    root = Parameter(name="p0", kind=ParameterKind.CATEGORICAL, values=values)
    return functools.reduce(
        lambda child, parent: change(parent, children=(child,)), reversed([root, *levels])
    )


def test_parameters_are_nested_up_to_the_limit() -> None:
    check_space(SearchSpace((nest(MAX_DEPTH, ("a", "b")),)))

    with pytest.raises(InvalidArgument, match=f"nested more than {MAX_DEPTH} deep"):
        check_space(SearchSpace((nest(MAX_DEPTH + 1, ("a", "b")),)))


def test_many_children_with_many_parent_values_are_checked_in_linear_time() -> None:
    children = tuple(
        Parameter(name=f"c{place}", kind=ParameterKind.DOUBLE, maximum=1, parent_values=TEXTS)
        for place in range(199)
    )
    parent = Parameter(name="p", kind=ParameterKind.CATEGORICAL, values=TEXTS, children=children)
    start = time.thread_time()

    check_space(SearchSpace((parent,)))

    assert time.thread_time() - start < LINEAR_SECONDS


def test_deep_spaces_are_counted_in_linear_time() -> None:
    start = time.thread_time()

    assert count_points(SearchSpace((nest(4, TEXTS),))) == 1000**4
    assert count_points(SearchSpace((nest(MAX_DEPTH, TEXTS),))) == MOST_COUNTED
    assert time.thread_time() - start < LINEAR_SECONDS


@pytest.mark.parametrize(
    ("parameters", "count"),
    [
        ((LAYERS, SIZE), 9),
        ((KIND,), 1 + 3 + 3 * 2),
        ((KIND, LAYERS), 30),
        ((RATE,), None),
        ((LAYERS, RATE), None),
    ],
)
def test_points_are_counted(parameters: tuple[Parameter, ...], count: int | None) -> None:
    assert count_points(SearchSpace(parameters)) == count


def test_children_without_end_make_the_space_infinite() -> None:
    child = change(RATE, parent_values=("linear",))

    assert count_points(SearchSpace((change(KIND, children=(child,)),))) is None


def test_huge_ranges_are_counted_without_listing_them() -> None:
    wide = change(LAYERS, maximum=2**62)
    child = change(DEPTH, parent_values=(1,))

    assert count_points(SearchSpace((change(wide, children=(child,)),))) == 2**62 + 1


def test_every_point_is_listed_once_and_is_valid() -> None:
    space = SearchSpace((KIND, LAYERS))

    points = list(iterate_points(space))

    assert len({make_key(point) for point in points}) == len(points) == count_points(space)
    for point in points:
        check_point(space, point)
