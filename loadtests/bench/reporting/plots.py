"""Plots of rates and latencies, a panel for each workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from loadtests.bench.reporting.results import BenchResults
from loadtests.bench.reporting.summary import busy_connections, is_echo, is_ours, title_of
from loadtests.bench.workloads import WORKLOADS

# Okabe and Ito's colours, which all kinds of sight tell apart.
_OURS, _LIMIT, _OTHERS = "#0072B2", "#999999", "#E69F00"
_INCHES, _DPI = 10.0, 100
_COLUMNS = 2
_BAR = 0.2
"""Inches that one bar takes."""


def write_plots(found: BenchResults, folder: Path) -> list[Path]:
    """Write `bench-rates.png` and `bench-latencies.png`; returns their paths."""
    rates, latencies = folder / "bench-rates.png", folder / "bench-latencies.png"
    _draw_panels(
        rates,
        found,
        value=lambda peer, workload: found.median_of(
            peer, workload, busy_connections(found, workload), "rps"
        ),
        words="requests per second at 64 connections, W6 at 16 (log scale; longer is better)",
        form=lambda value: f" {float(f'{value:.3g}'):,.0f}",
        best=max,
    )
    _draw_panels(
        latencies,
        found,
        value=lambda peer, workload: _to_millis(found.median_of(peer, workload, 1, "p50_us")),
        words="median of a request on one connection in ms (log scale; shorter is better)",
        form=lambda value: f" {value:.3g}",
        best=min,
    )
    return [rates, latencies]


def _draw_panels(
    file: Path,
    found: BenchResults,
    *,
    value: Callable[[str, str], float | None],
    words: str,
    form: Callable[[float], str],
    best: Callable[[Sequence[float]], float],
) -> None:
    workloads = found.list_workloads()
    rows = -(-len(workloads) // _COLUMNS)
    height = rows * (1.0 + _BAR * len(found.list_peers())) + 0.5
    figure = Figure(figsize=(_INCHES, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(words, fontsize=11)
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
    for panel, workload in zip(panels, workloads, strict=False):
        values = {peer: one for peer in found.list_peers() if (one := value(peer, workload)) is not None}
        ordered = sorted(values, key=lambda peer: values[peer], reverse=best is min)
        _draw_bars(panel, ordered, [values[peer] for peer in ordered], form)
        known = WORKLOADS.get(workload)
        panel.set_title(f"{workload}: {known.title}" if known else workload, fontsize=10)
    for panel in panels[len(workloads) :]:
        _draw_bars(panel, [], [], form)
    figure.savefig(file)


def _draw_bars(
    panel: Axes, peers: Sequence[str], values: Sequence[float], form: Callable[[float], str]
) -> None:
    """A bar for each, the last on top; a panel of none is not shown."""
    if not values:
        panel.set_visible(False)
        return
    colors = [_OURS if is_ours(one) else _LIMIT if is_echo(one) else _OTHERS for one in peers]
    places = range(len(peers))
    bars = panel.barh(places, values, color=colors)
    panel.set_yticks(places, [_short_title(one) for one in peers])
    panel.bar_label(bars, [form(one) for one in values], fontsize=7.5)
    panel.set_xscale("log")
    panel.set_xlim(min(values) / 2, max(values) * 4)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.tick_params(labelsize=7.5)
    panel.grid(axis="x", alpha=0.3)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _short_title(peer: str) -> str:
    return title_of(peer).partition(":")[0].replace("`", "").replace("all known techniques", "best")


def _to_millis(micros: float | None) -> float | None:
    return None if micros is None else micros / 1e3
