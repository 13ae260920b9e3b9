"""Points as rows of numbers: one column per parameter, each from 0 to 1 along its scale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tuning.algorithms import ranges
from tuning.algorithms.ranges import Array, Mask
from tuning.space import Parameter, ParameterKind, Point, Scale, SearchSpace, Value

_ROOT = -1
# Listed values on a scale are at least so far apart, or apart by a small share of their ranks.
_LEAST_GAP, _RANK_SHARE = 1e-9, 1e-5


@dataclass(frozen=True, eq=False)
class Column:
    """A parameter. The place of a value is its rank among those listed, or how far it is above the minimum.

    It is active where its parent's column has one of `parent_places`, which are sorted. `units` has where
    listed values lie; none of them in the same place.
    """

    parameter: Parameter
    parent: int
    parent_values: frozenset[Value]
    parent_places: Array
    units: Array
    ranks: Mapping[Value, int]

    @classmethod
    def build(cls, parameter: Parameter, index: int = _ROOT, parent: Column | None = None) -> Self:
        """`index` is that of the parent's column."""
        values = frozenset(parameter.parent_values)
        places = [] if parent is None else sorted(map(parent.find_place, values))
        return cls(
            parameter,
            index,
            parent_values=values,
            parent_places=np.array(places, dtype=np.float64),
            units=_place_listed(parameter),
            ranks={value: rank for rank, value in enumerate(parameter.values)},
        )

    @property
    def is_categorical(self) -> bool:
        return self.parameter.kind is ParameterKind.CATEGORICAL

    @property
    def is_continuous(self) -> bool:
        """Whether small steps make sense."""
        return self.parameter.kind in (ParameterKind.DOUBLE, ParameterKind.INTEGER)

    @property
    def levels(self) -> int:
        """The number of values, 0 for those of a range."""
        return len(self.units)

    def find_place(self, value: Value) -> float:
        """Not for DOUBLE."""
        return self.ranks[value] if self.levels else float(int(value) - int(self.parameter.minimum))

    def find_places(self, units: Array) -> Array:
        """Places of the values that are nearest. Not for DOUBLE."""
        if self.levels:
            return np.asarray(np.searchsorted((self.units[1:] + self.units[:-1]) / 2.0, units))
        return ranges.find_whole_offsets(self.parameter, units)

    def encode(self, values: Sequence[Value]) -> Array:
        """Where values lie from 0 to 1."""
        if self.levels:
            return np.asarray(self.units[[self.ranks[value] for value in values]])
        return ranges.encode_numbers(self.parameter, values)

    def decode(self, unit: float) -> Value:
        """The nearest value."""
        match self.parameter.kind:
            case ParameterKind.DOUBLE:
                return float(ranges.from_unit(self.parameter, np.array(unit)))
            case ParameterKind.INTEGER:
                offset = int(self.find_places(np.array(unit)))
                return min(int(self.parameter.minimum) + offset, int(self.parameter.maximum))
            case _:
                return self.parameter.values[int(self.find_places(np.array(unit)))]

    def snap(self, units: Array) -> Array:
        """Move them to the nearest values."""
        match self.parameter.kind:
            case ParameterKind.DOUBLE:
                return units
            case ParameterKind.INTEGER:
                return ranges.place_whole_offsets(self.parameter, self.find_places(units))
            case _:
                return np.asarray(self.units[self.find_places(units)])


def _place_listed(parameter: Parameter) -> Array:
    """Units of listed values, which increase."""
    count = len(parameter.values)
    # By rank also DISCRETE ones without a scale: sizes as 16, 32, 64, ... are rarely meant to be far apart.
    by_rank = (np.arange(count) + 0.5) / max(count, 1)
    if not count or parameter.scale is Scale.LINEAR:
        return by_rank
    units = ranges.to_unit(parameter, np.array(parameter.values, dtype=np.float64))
    if np.diff(units).min(initial=1.0) >= _LEAST_GAP:
        return units
    # Those that the scale does not tell apart are told apart by their ranks.
    return np.asarray((1.0 - _RANK_SHARE) * units + _RANK_SHARE * by_rank)


class SpaceEncoding:
    """Rows have shape (points, columns). In columns of parameters that are not active anything may stand."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.columns: list[Column] = []
        self._add_columns(space.parameters, _ROOT)

    def _add_columns(self, parameters: Sequence[Parameter], parent: int) -> None:
        for parameter in parameters:
            above = None if parent == _ROOT else self.columns[parent]
            self.columns.append(Column.build(parameter, parent, above))
            self._add_columns(parameter.children, len(self.columns) - 1)

    def encode(self, points: Iterable[Point]) -> Array:
        """Rows of points. Where a parameter is not active stands 0.5."""
        listed = list(points)
        rows = np.full((len(listed), len(self.columns)), 0.5)
        active: list[Sequence[int]] = []
        for index, column in enumerate(self.columns):
            active.append(self._list_active(column, listed, active))
            values = [listed[place][column.parameter.name] for place in active[index]]
            rows[list(active[index]), index] = column.encode(values)
        return rows

    def _list_active(
        self, column: Column, points: Sequence[Point], active: Sequence[Sequence[int]]
    ) -> Sequence[int]:
        """In which of the points a parameter is active, given the same of the columns before."""
        if column.parent == _ROOT:
            return range(len(points))
        parent = self.columns[column.parent].parameter.name
        return [place for place in active[column.parent] if points[place][parent] in column.parent_values]

    def decode(self, row: Array) -> dict[str, Value]:
        """The point that is nearest to a row."""
        values: list[Value | None] = []
        for column, unit in zip(self.columns, row, strict=True):
            active = column.parent == _ROOT or values[column.parent] in column.parent_values
            values.append(column.decode(float(unit)) if active else None)
        pairs = zip(self.columns, values, strict=True)
        return {column.parameter.name: value for column, value in pairs if value is not None}

    def snap(self, rows: Array) -> Array:
        """Move rows to the nearest points: to whole numbers, and to listed values."""
        snapped = np.clip(rows, 0.0, 1.0)
        for index, column in enumerate(self.columns):
            snapped[:, index] = column.snap(snapped[:, index])
        return np.where(self.find_active(snapped), snapped, 0.5)

    def find_active(self, rows: Array) -> Mask:
        """Which parameters are active, of rows that are points."""
        active = np.ones(rows.shape, dtype=np.bool_)
        places: dict[int, Array] = {}
        for index, column in enumerate(self.columns):
            parent = column.parent
            if parent != _ROOT:
                if parent not in places:
                    places[parent] = self.columns[parent].find_places(rows[:, parent])
                active[:, index] = active[:, parent] & np.isin(places[parent], column.parent_places)
        return active
