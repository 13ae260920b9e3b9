"""The figures of a version's last minutes, hour or day as charts, with the decisions of the autoscaler."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from autoscaler.version_scaler import ScalingEvent
from serving.gateway.console.charts.line_charts import LineChart, draw_chart, place_across
from serving.gateway.observability.history import WINDOWS, Figures, combine_figures

WINDOW_LABELS: Final[Mapping[str, str]] = {"10m": "10 minutes", "1h": "1 hour", "1d": "1 day"}
DEFAULT_WINDOW: Final = "10m"
_MS_PER_SECOND: Final = 1000
# Whole minutes and hours.
_PARTS_ACROSS: Final[Mapping[str, int]] = {"10m": 5, "1h": 4, "1d": 4}
_MOST_MINUTES: Final = 90


@dataclass(frozen=True, slots=True)
class MarkedDecision:
    """`x` is where it is on the charts; `time` (ISO 8601) and `nodes` are told beside the reason."""

    x: float
    time: str
    nodes: int
    reason: str


@dataclass(frozen=True, slots=True)
class HistoryView:
    """`total` has the figures of the whole window; the newest decision is the first."""

    window: str
    charts: tuple[LineChart, ...]
    decisions: tuple[MarkedDecision, ...]
    total: Figures


def view_history(
    window: str, first_end: int, figures: Sequence[Figures], events: Iterable[ScalingEvent]
) -> HistoryView:
    """`first_end` is when the first slot of the window ended; `events` are in order of time."""
    grain = WINDOWS[window]
    ends = range(first_end, first_end + len(figures) * grain.seconds, grain.seconds)
    now = ends[-1]

    def to_points(values: Iterable[float]) -> list[tuple[float, float]]:
        return [(float(end - now), _round_value(value)) for end, value in zip(ends, values, strict=True)]

    draw = partial(
        draw_chart,
        base=0,
        format_across=lambda seconds: _format_age(seconds, "-{}"),
        format_row=lambda seconds: _format_age(seconds, "{} ago"),
        parts_across=_PARTS_ACROSS[window],
        summarize=max,
    )
    answers = {
        "all": to_points(one.requests / grain.seconds for one in figures),
        "errors": to_points(one.errors / grain.seconds for one in figures),
    }
    charts = [
        draw("Answers per second", answers, unit="/s"),
        draw("Ready nodes", {"nodes": to_points(one.nodes for one in figures)}, least_step=1),
    ]
    if any(one.p50 for one in figures):
        latencies = {
            "p50": to_points(_to_milliseconds(one.p50) for one in figures),
            "p99": to_points(_to_milliseconds(one.p99) for one in figures),
        }
        charts.insert(1, draw("Latency", latencies, unit=" ms"))
    decisions = [
        MarkedDecision(
            place_across(event.at - now, ends[0] - now, 0), _format_time(event.at), event.nodes, event.reason
        )
        for event in events
        if ends[0] <= event.at <= now + grain.seconds
    ]
    return HistoryView(window, tuple(charts), tuple(reversed(decisions)), combine_figures(figures))


def _round_value(value: float) -> float:
    """Three digits: more are not known."""
    return float(f"{value:.3g}")


def _format_age(seconds: float, form: str) -> str:
    """Of a place on the axis, in seconds before now, which are negative."""
    minutes = round(-seconds / 60)
    if minutes == 0:
        return "now"
    return form.format(f"{minutes} min" if minutes < _MOST_MINUTES else f"{round(minutes / 60)} h")


def _format_time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="seconds")


def _to_milliseconds(seconds: float) -> float:
    """NaN where there was no answer."""
    return seconds * _MS_PER_SECOND if seconds else math.nan
