"""Search spaces: their parameters, which points lie within, values as text. Imports nothing heavy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from serving.errors import InvalidArgument

# float for DOUBLE and DISCRETE, int for INTEGER, str for CATEGORICAL.
Value = float | int | str
# A value for each active parameter.
Point = Mapping[str, Value]
PointKey = tuple[tuple[str, Value], ...]

MAX_DISCRETE_VALUES = 1000
# Children of children, and so on.
MAX_DEPTH = 10
# Points are counted no further.
MOST_COUNTED = 2**63


class ParameterKind(StrEnum):
    DOUBLE = "DOUBLE"
    INTEGER = "INTEGER"
    CATEGORICAL = "CATEGORICAL"
    DISCRETE = "DISCRETE"


class Scale(StrEnum):
    """How values are spread over the range: LOG has more near the minimum, REVERSE_LOG near the maximum."""

    LINEAR = "LINEAR"
    LOG = "LOG"
    REVERSE_LOG = "REVERSE_LOG"


class Parameter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`minimum` and `maximum` (both included) are those of DOUBLE and INTEGER, whole numbers for the latter.

    `values` are those of CATEGORICAL (texts) and DISCRETE (numbers that increase). A child is active when
    its parent is and has one of the child's `parent_values`.
    """

    name: str
    kind: ParameterKind
    scale: Scale = Scale.LINEAR
    minimum: float | int = 0
    maximum: float | int = 0
    values: tuple[Value, ...] = ()
    children: tuple[Parameter, ...] = ()
    parent_values: tuple[Value, ...] = ()

    def contains(self, value: Value) -> bool:
        match self.kind:
            case ParameterKind.DOUBLE:
                return not isinstance(value, str) and self.minimum <= value <= self.maximum
            case ParameterKind.INTEGER:
                return isinstance(value, int) and self.minimum <= value <= self.maximum
            case ParameterKind.DISCRETE:
                return not isinstance(value, str) and value in self.values
            case ParameterKind.CATEGORICAL:
                return value in self.values

    def list_active_children(self, value: Value) -> list[Parameter]:
        return [child for child in self.children if value in child.parent_values]


class SearchSpace(msgspec.Struct, frozen=True):
    parameters: tuple[Parameter, ...]

    def list_active(self, point: Point) -> list[Parameter]:
        """The parameters that a point must have, parents before their children.

        Children of a parameter that is missing are left out.
        """
        return list(_iterate_active(self.parameters, point))

    def contains(self, point: Point) -> bool:
        """Whether a point has a valid value for each active parameter, and no other; see `check_point`."""
        active = self.list_active(point)
        # Those that are active have different names.
        return len(active) == len(point) and all(
            parameter.name in point and parameter.contains(point[parameter.name]) for parameter in active
        )

    def list_all(self) -> list[Parameter]:
        """Every parameter; of children with one name, each."""
        return list(_iterate_all(self.parameters))


def _iterate_active(parameters: Sequence[Parameter], point: Point) -> Iterator[Parameter]:
    for parameter in parameters:
        yield parameter
        if parameter.children and parameter.name in point:
            yield from _iterate_active(parameter.list_active_children(point[parameter.name]), point)


def _iterate_all(parameters: Sequence[Parameter]) -> Iterator[Parameter]:
    for parameter in parameters:
        yield parameter
        yield from _iterate_all(parameter.children)


# ---- checks


def check_space(space: SearchSpace) -> None:
    """Raises InvalidArgument, which names the parameter."""
    if not space.parameters:
        raise InvalidArgument("A search space needs at least one parameter.")
    _check_siblings(space.parameters, 1)


def _check_siblings(parameters: Sequence[Parameter], depth: int) -> set[str]:
    """Check parameters and all below them; their names."""
    if parameters and depth > MAX_DEPTH:
        raise InvalidArgument(f"Parameters are nested more than {MAX_DEPTH} deep.")
    # With which values of the parent a name is active; no values without a parent.
    taken: dict[str, frozenset[Value]] = {}
    for parameter in parameters:
        _check_parameter(parameter)
        below = _check_siblings(parameter.children, depth + 1)
        if parameter.name in below:
            raise _fail_twice(parameter.name)
        values = frozenset(parameter.parent_values)
        for name in sorted(below | {parameter.name}):
            if name in taken and not (values and taken[name].isdisjoint(values)):
                raise _fail_twice(name)
            taken[name] = taken[name] | values if name in taken else values
    return set(taken)


def _fail_twice(name: str) -> InvalidArgument:
    return InvalidArgument(
        f'Two parameters have the name "{name}". Only children with other parent values may.'
    )


def _check_parameter(parameter: Parameter) -> None:
    if not parameter.name:
        raise InvalidArgument("A parameter has no name.")
    if parameter.kind in (ParameterKind.DOUBLE, ParameterKind.INTEGER):
        _check_range(parameter)
    else:
        _check_values(parameter)
    for child in parameter.children:
        _check_parent_values(parameter, child)


def _fail(parameter: Parameter, problem: str) -> InvalidArgument:
    return InvalidArgument(f'Parameter "{parameter.name}": {problem}')


def _check_range(parameter: Parameter) -> None:
    low, high = parameter.minimum, parameter.maximum
    if not (math.isfinite(low) and math.isfinite(high)):
        raise _fail(parameter, "the minimum and the maximum must be finite numbers.")
    if parameter.kind is ParameterKind.INTEGER and not (isinstance(low, int) and isinstance(high, int)):
        raise _fail(parameter, f"the minimum ({low}) and the maximum ({high}) must be whole numbers.")
    if low > high:
        raise _fail(parameter, f"the minimum ({low}) must not be greater than the maximum ({high}).")
    if parameter.scale is not Scale.LINEAR and low <= 0:
        raise _fail(parameter, f"a logarithmic scale needs a minimum above 0, not {low}.")
    if parameter.values:
        raise _fail(parameter, f"a parameter of kind {parameter.kind} has a range, no values.")


def _check_values(parameter: Parameter) -> None:
    values = parameter.values
    if not values:
        raise _fail(parameter, f"a parameter of kind {parameter.kind} needs values.")
    if parameter.kind is ParameterKind.CATEGORICAL:
        if not all(isinstance(value, str) for value in values):
            raise _fail(parameter, "the values of a categorical parameter are texts.")
        if len(set(values)) < len(values):
            raise _fail(parameter, "a value is there twice.")
        if parameter.scale is not Scale.LINEAR:
            raise _fail(parameter, "a categorical parameter has no scale.")
        return
    numbers = [value for value in values if not isinstance(value, str) and math.isfinite(value)]
    if len(numbers) < len(values):
        raise _fail(parameter, "discrete values must be finite numbers.")
    if any(low >= high for low, high in itertools.pairwise(numbers)):
        raise _fail(parameter, "discrete values must be in increasing order.")
    if len(numbers) > MAX_DISCRETE_VALUES:
        raise _fail(
            parameter, f"at most {MAX_DISCRETE_VALUES} discrete values are allowed, not {len(numbers)}."
        )
    if parameter.scale is not Scale.LINEAR and numbers[0] <= 0:
        raise _fail(parameter, f"a logarithmic scale needs values above 0, not {numbers[0]}.")


def _check_parent_values(parent: Parameter, child: Parameter) -> None:
    if parent.kind is ParameterKind.DOUBLE:
        raise _fail(parent, "a parameter of kind DOUBLE has no children.")
    if not child.parent_values:
        raise _fail(child, f'values of its parent "{parent.name}" must be named.')
    listed = frozenset(parent.values)
    for value in child.parent_values:
        if value not in listed and not (parent.kind is ParameterKind.INTEGER and parent.contains(value)):
            raise _fail(child, f'its parent "{parent.name}" has no value {value!r}.')


def check_point(space: SearchSpace, point: Point) -> None:
    """Raises InvalidArgument unless the point has a valid value for each active parameter, and no other."""
    active = space.list_active(point)
    surplus = point.keys() - {parameter.name for parameter in active}
    # A misspelt name comes before the one that is missing for it.
    if surplus and (unknown := surplus - {parameter.name for parameter in space.list_all()}):
        raise InvalidArgument(f'Parameter "{min(unknown)}" is not in the search space.')
    for parameter in active:
        if parameter.name not in point:
            raise _fail(parameter, "a value is missing.")
        if not parameter.contains(point[parameter.name]):
            raise _fail(parameter, f"{point[parameter.name]!r} {_describe_expected(parameter)}.")
    if surplus:
        raise InvalidArgument(f'Parameter "{min(surplus)}" is not active with these values.')


def _describe_expected(parameter: Parameter) -> str:
    match parameter.kind:
        case ParameterKind.INTEGER:
            return f"is no whole number from {parameter.minimum} to {parameter.maximum}"
        case ParameterKind.DOUBLE:
            return f"is no number from {parameter.minimum} to {parameter.maximum}"
        case _:
            return "is none of the values"


# ---- values as text


def format_value(value: Value) -> str:
    """The text that stands in arguments of programs and in answers: the shortest that reads back.

    Whole floats up to 2**53 have no ".0", for programs that read integers.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return str(int(value))
    return str(value)


def parse_value(parameter: Parameter, text: str) -> Value:
    """Undo `format_value`. Raises InvalidArgument for what the parameter cannot be."""
    try:
        value = _read_value(parameter.kind, text)
    except ValueError:
        value = None
    if value is None or not parameter.contains(value):
        raise _fail(parameter, f'"{text}" {_describe_expected(parameter)}.')
    return value


def _read_value(kind: ParameterKind, text: str) -> Value:
    match kind:
        case ParameterKind.CATEGORICAL:
            return text
        case ParameterKind.INTEGER:
            return int(text)
        case _:
            return float(text)


# ---- finite spaces


def count_points(space: SearchSpace) -> int | None:
    """How many points there are, at most MOST_COUNTED; None for infinitely many.

    A DOUBLE with minimum = maximum is one value. Takes time in proportion to the size of the space's
    description, however many points it has.
    """
    product = 1
    for parameter in space.parameters:
        count = _count_of(parameter)
        if count is None:
            return None
        product = min(product * count, MOST_COUNTED)
    return product


def _count_of(parameter: Parameter) -> int | None:
    """The number of values of a parameter, each times the points of the children that it makes active."""
    size = _count_values(parameter)
    below: dict[Value, int] = {}
    for child in parameter.children:
        count = _count_of(child)
        if size is None or count is None:
            return None
        for value in frozenset(child.parent_values):
            below[value] = min(below.get(value, 1) * count, MOST_COUNTED)
    return size if size is None else min(size - len(below) + sum(below.values()), MOST_COUNTED)


def _count_values(parameter: Parameter) -> int | None:
    match parameter.kind:
        case ParameterKind.DOUBLE:
            return 1 if parameter.minimum == parameter.maximum else None
        case ParameterKind.INTEGER:
            return int(parameter.maximum) - int(parameter.minimum) + 1
        case _:
            return len(parameter.values)


def iterate_points(space: SearchSpace) -> Iterator[dict[str, Value]]:
    """All points of a finite space, the last parameter changing fastest."""
    return _iterate_products(space.parameters, {})


def _iterate_products(parameters: Sequence[Parameter], point: dict[str, Value]) -> Iterator[dict[str, Value]]:
    """Copies of a point with all values of further parameters; the point is as before at the end."""
    if not parameters:
        yield dict(point)
        return
    first, *others = parameters
    for value in _iterate_values(first):
        point[first.name] = value
        yield from _iterate_products((*first.list_active_children(value), *others), point)
    del point[first.name]


def _iterate_values(parameter: Parameter) -> Iterator[Value]:
    match parameter.kind:
        case ParameterKind.DOUBLE:
            yield parameter.minimum
        case ParameterKind.INTEGER:
            yield from range(int(parameter.minimum), int(parameter.maximum) + 1)
        case _:
            yield from parameter.values


def make_key(point: Point) -> PointKey:
    """What equal points have in common, and different ones not; for sets and maps."""
    return tuple(sorted(point.items()))
