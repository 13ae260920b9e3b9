"""Lines of numbers as paths of SVG, with axes and a table of the same. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 600
HEIGHT: Final = 200
_EDGE: Final = 6
_NO_VALUE: Final = "-"
# About how many parts the axis of values has, and rows the table.
_PARTS, _ROWS = 3, 10
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """`path` is for the attribute `d`; `last` is the last value as text, with its unit."""

    name: str
    path: str
    last: str


@dataclass(frozen=True, slots=True)
class AxisTick:
    """`at` is where it is in the picture."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class ChartTableRow:
    """The values of all lines in a part of the axis, which ends at `label`."""

    label: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines on common axes. Ticks of values come from the top, those across from the left, evenly apart."""

    title: str
    lines: tuple[ChartLine, ...]
    up: tuple[AxisTick, ...]
    across: tuple[AxisTick, ...]
    rows: tuple[ChartTableRow, ...]


def draw_chart(
    title: str,
    series: Mapping[str, Points],
    *,
    base: float = math.inf,
    least_step: float = 0.0,
    unit: str = "",
    format_across: Callable[[float], str] = lambda value: f"{value:.6g}",
    format_row: Callable[[float], str] | None = None,
    parts_across: int = 2,
    summarize: Callable[[Sequence[float]], float] = lambda values: values[-1],
) -> LineChart:
    """`series` has points by the names of lines: at least one whose value is finite.

    A line is broken where a value is NaN. The axis of values begins at `base` at the latest, and its ticks
    are `least_step` apart at least; `unit` follows each value. `summarize` makes one number of those of a
    part of the axis, for the table.
    """
    drawn = {name: sorted(points) for name, points in series.items() if points}
    across = [x for points in drawn.values() for x, _ in points]
    values = [y for points in drawn.values() for _, y in points if not math.isnan(y)]
    left, right = min(across), max(across)
    up = _choose_ticks(min(base, *values), max(values), least_step)
    low, high = up[0], up[-1]

    def place_point(x: float, y: float) -> tuple[float, float]:
        return _place(x, left, right, WIDTH), HEIGHT - _place(y, low, high, HEIGHT)

    lines = tuple(
        ChartLine(name, _draw_path([place_point(*one) for one in points]), _format_value(points[-1][1], unit))
        for name, points in drawn.items()
    )
    places = sorted(set(across))
    ends = places if len(places) <= _ROWS else _divide(left, right, _ROWS)[1:]
    starts = [-math.inf, *ends]
    return LineChart(
        title,
        lines,
        tuple(AxisTick(place_point(left, one)[1], _format_value(one, unit)) for one in reversed(up)),
        tuple(
            AxisTick(_place(one, left, right, WIDTH), format_across(one))
            for one in _divide(left, right, parts_across)
        ),
        tuple(
            ChartTableRow(
                (format_row or format_across)(end),
                tuple(_summarize_part(points, start, end, summarize, unit) for points in drawn.values()),
            )
            for start, end in zip(starts, ends, strict=False)
        ),
    )


def place_across(x: float, left: float, right: float) -> float:
    """Where a value is on the horizontal axis of a chart with these ends."""
    return _place(x, left, right, WIDTH)


def _choose_ticks(low: float, high: float, least_step: float) -> list[float]:
    """Round values, the first no higher than `low` and the last no lower than `high`."""
    if low == high == 0:
        high = 1.0
    span = high - low
    if not (math.isfinite(span) and span > abs(low) * 1e-9):
        return [low, high] if low != high else [low]
    size = 10.0 ** math.floor(math.log10(span / _PARTS))
    step = next(one * size for one in _STEPS if one * size * _PARTS >= span * (1 - 1e-9))
    step = max(step, least_step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _divide(left: float, right: float, parts: int) -> list[float]:
    """The ends of so many equal parts; one number where there is no room between."""
    if left == right:
        return [left]
    # Shares of each, because the difference of two large numbers may be infinite.
    return [left * (1 - part / parts) + right * (part / parts) for part in range(parts + 1)]


def _summarize_part(
    points: Points, start: float, end: float, summarize: Callable[[Sequence[float]], float], unit: str
) -> str:
    values = [y for x, y in points if start < x <= end and not math.isnan(y)]
    return _format_value(summarize(values) if values else math.nan, unit)


def _format_value(value: float, unit: str) -> str:
    return _NO_VALUE if math.isnan(value) else f"{value:.6g}{unit}"


def _place(value: float, low: float, high: float, length: int) -> float:
    if high == low:
        return length / 2
    # Halves, because the difference of two large numbers may be infinite.
    share = (value / 2 - low / 2) / (high / 2 - low / 2)
    return _EDGE + share * (length - 2 * _EDGE)


def _draw_path(points: Points) -> str:
    return "".join(
        _draw_segment(list(segment))
        for is_gap, segment in itertools.groupby(points, lambda point: math.isnan(point[1]))
        if not is_gap
    )


def _draw_segment(points: Points) -> str:
    """One point alone is a line without length, of which its round ends are seen."""
    if len(points) == 1:
        points = [*points, *points]
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
