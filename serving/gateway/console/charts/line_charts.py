"""Lines of numbers as paths of SVG. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 600
HEIGHT: Final = 200
_EDGE: Final = 6
_NO_VALUE: Final = "-"

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """`path` is for the attribute `d`; `last` is the last value as text."""

    name: str
    path: str
    last: str


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines on common axes, whose ends are given as texts."""

    title: str
    lines: tuple[ChartLine, ...]
    low: str
    high: str
    left: str
    right: str


def draw_chart(title: str, series: Mapping[str, Points], *, base: float = math.inf) -> LineChart:
    """`series` has points by the names of lines: at least one whose value is finite.

    A line is broken where a value is NaN. The axis of values begins at `base` at the latest.
    """
    drawn = {name: sorted(points) for name, points in series.items() if points}
    across = [x for points in drawn.values() for x, _ in points]
    up = [y for points in drawn.values() for _, y in points if not math.isnan(y)]
    left, right, low, high = min(across), max(across), min(base, *up), max(up)

    def place_point(x: float, y: float) -> tuple[float, float]:
        return _place(x, left, right, WIDTH), HEIGHT - _place(y, low, high, HEIGHT)

    lines = tuple(
        ChartLine(name, _draw_path([place_point(*one) for one in points]), _format_value(points[-1][1]))
        for name, points in drawn.items()
    )
    return LineChart(title, lines, f"{low:.6g}", f"{high:.6g}", f"{left:.6g}", f"{right:.6g}")


def place_across(x: float, left: float, right: float) -> float:
    """Where a value is on the horizontal axis of a chart with these ends."""
    return _place(x, left, right, WIDTH)


def _format_value(value: float) -> str:
    return _NO_VALUE if math.isnan(value) else f"{value:.6g}"


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
