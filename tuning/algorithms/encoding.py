"""Points as rows of numbers: one column per parameter, each from 0 to 1 along its scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuning.space import Parameter, ParameterKind, Point, Scale, SearchSpace, Value

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]

_ROOT = -1


@dataclass(frozen=True)
class Column:
    """A parameter, and the column of its parent."""

    parameter: Parameter
    parent: int

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
        return 0 if self.is_continuous else len(self.parameter.values)


class SpaceEncoding:
    """Rows have shape (points, columns). In columns of parameters that are not active anything may stand."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.columns: list[Column] = []
        self._add_columns(space.parameters, _ROOT)

    def _add_columns(self, parameters: Sequence[Parameter], parent: int) -> None:
        for parameter in parameters:
            self.columns.append(Column(parameter, parent))
            self._add_columns(parameter.children, len(self.columns) - 1)

    def encode(self, points: Iterable[Point]) -> Array:
        """Rows of points. Where a parameter is not active stands 0.5."""
        return np.array([self._encode_point(point) for point in points]).reshape(-1, len(self.columns))

    def _encode_point(self, point: Point) -> list[float]:
        row = [0.5] * len(self.columns)
        active: list[bool] = []
        for index, column in enumerate(self.columns):
            active.append(column.parent == _ROOT or self._is_child_active(column, point, active))
            if active[index]:
                row[index] = encode_value(column.parameter, point[column.parameter.name])
        return row

    def _is_child_active(self, column: Column, point: Point, active: Sequence[bool]) -> bool:
        parent = self.columns[column.parent].parameter
        return active[column.parent] and point[parent.name] in column.parameter.parent_values

    def decode(self, row: Array) -> dict[str, Value]:
        """The point that is nearest to a row."""
        values: list[Value | None] = []
        for column, unit in zip(self.columns, row, strict=True):
            active = column.parent == _ROOT or values[column.parent] in column.parameter.parent_values
            values.append(decode_value(column.parameter, float(unit)) if active else None)
        pairs = zip(self.columns, values, strict=True)
        return {column.parameter.name: value for column, value in pairs if value is not None}

    def snap(self, rows: Array) -> Array:
        """Move rows to the nearest points: to whole numbers, and to listed values."""
        snapped = np.clip(rows, 0.0, 1.0)
        for index, column in enumerate(self.columns):
            snapped[:, index] = _SNAP[column.parameter.kind](column.parameter, snapped[:, index])
        return np.where(self.find_active(snapped), snapped, 0.5)

    def find_active(self, rows: Array) -> Mask:
        """Which parameters are active, of rows that are points."""
        active = np.ones(rows.shape, dtype=np.bool_)
        for index, column in enumerate(self.columns):
            if column.parent != _ROOT:
                parent = self.columns[column.parent].parameter
                units = [encode_value(parent, value) for value in column.parameter.parent_values]
                near = np.abs(rows[:, column.parent, None] - np.array(units)).min(axis=1) < _SAME_UNIT
                active[:, index] = active[:, column.parent] & near
        return active


_SAME_UNIT = 1e-9


def encode_value(parameter: Parameter, value: Value) -> float:
    """Where a value lies from 0 to 1."""
    match parameter.kind:
        case ParameterKind.CATEGORICAL:
            return (parameter.values.index(value) + 0.5) / len(parameter.values)
        case ParameterKind.DISCRETE if parameter.scale is Scale.LINEAR:
            # By rank: sizes as 16, 32, 64, ... are rarely meant to be far apart.
            return (parameter.values.index(value) + 0.5) / len(parameter.values)
        case _:
            return float(_to_unit(parameter, np.array(float(value))))


def decode_value(parameter: Parameter, unit: float) -> Value:
    match parameter.kind:
        case ParameterKind.CATEGORICAL:
            return parameter.values[_find_level(parameter, unit)]
        case ParameterKind.DISCRETE:
            units = [encode_value(parameter, value) for value in parameter.values]
            return parameter.values[int(np.argmin(np.abs(np.array(units) - unit)))]
        case ParameterKind.INTEGER:
            return min(
                max(round(float(_from_unit(parameter, np.array(unit)))), int(parameter.minimum)),
                int(parameter.maximum),
            )
        case ParameterKind.DOUBLE:
            return min(
                max(float(_from_unit(parameter, np.array(unit))), float(parameter.minimum)),
                float(parameter.maximum),
            )


def _find_level(parameter: Parameter, unit: float) -> int:
    return min(int(unit * len(parameter.values)), len(parameter.values) - 1)


def _find_bounds(parameter: Parameter) -> tuple[float, float]:
    """What 0 and 1 stand for: of whole numbers each has the same share, the outermost ones too."""
    if parameter.kind is ParameterKind.INTEGER:
        return parameter.minimum - 0.5, parameter.maximum + 0.5
    if parameter.kind is ParameterKind.DISCRETE:
        return float(parameter.values[0]), float(parameter.values[-1])
    return float(parameter.minimum), float(parameter.maximum)


def _to_unit(parameter: Parameter, values: Array) -> Array:
    low, high = _find_bounds(parameter)
    if low == high:
        return 0.0 * values + 0.5
    match parameter.scale:
        case Scale.LINEAR:
            return (values - low) / (high - low)
        case Scale.LOG:
            return np.asarray(np.log(values / low) / np.log(high / low))
        case Scale.REVERSE_LOG:
            return np.asarray(1.0 - np.log((low + high - values) / low) / np.log(high / low))


def _from_unit(parameter: Parameter, units: Array) -> Array:
    low, high = _find_bounds(parameter)
    match parameter.scale:
        case Scale.LINEAR:
            return low + units * (high - low)
        case Scale.LOG:
            return low * (high / low) ** units
        case Scale.REVERSE_LOG:
            return low + high - low * (high / low) ** (1.0 - units)


def _snap_to_whole(parameter: Parameter, units: Array) -> Array:
    whole = np.clip(np.round(_from_unit(parameter, units)), parameter.minimum, parameter.maximum)
    return np.asarray(_to_unit(parameter, whole))


def _snap_to_level(parameter: Parameter, units: Array) -> Array:
    levels = np.array([encode_value(parameter, value) for value in parameter.values])
    return np.asarray(levels[np.abs(units[:, None] - levels).argmin(axis=1)])


def _keep(_: Parameter, units: Array) -> Array:
    return units


_SNAP: dict[ParameterKind, Callable[[Parameter, Array], Array]] = {
    ParameterKind.DOUBLE: _keep,
    ParameterKind.INTEGER: _snap_to_whole,
    ParameterKind.DISCRETE: _snap_to_level,
    ParameterKind.CATEGORICAL: _snap_to_level,
}
