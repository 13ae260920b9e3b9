"""Plot a run: requests, latency and nodes over the same time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from loadtests.run_record import RunRecord
from loadtests.summary import RunSummary, SecondStats, format_duration

# Okabe and Ito's colours, which all kinds of sight tell apart; lines also differ in dash and weight.
_BLUE, _ORANGE, _RED = "#0072B2", "#E69F00", "#D55E00"
_GREEN, _PURPLE, _GREY = "#009E73", "#CC79A7", "#666666"
# 1,000 pixels wide: about what a README shows, unscaled.
_INCHES, _DPI = (10.0, 7.0), 100


def draw_report(
    file: Path, title: str, record: RunRecord, summary: RunSummary, seconds: Sequence[SecondStats]
) -> None:
    """Write the plot as PNG."""
    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10.5, wrap=True)
    requests, latency, nodes = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    _draw_requests(requests, record, seconds)
    _draw_latency(latency, summary, seconds)
    _draw_nodes(nodes, record, summary)
    for panel in (requests, latency, nodes):
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        if panel.get_legend_handles_labels()[0]:
            # Outside, so that it hides nothing.
            panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    figure.align_ylabels()
    nodes.set_xlim(0, max(summary.seconds, 1))
    nodes.set_xlabel("seconds since the start")
    figure.savefig(file)


def _draw_requests(panel: Axes, record: RunRecord, seconds: Sequence[SecondStats]) -> None:
    spans = record.run.plan.spans
    panel.stairs(
        [span.rate for span in spans], [0.0, *(span.end for span in spans)],
        color=_GREY, linestyle="--", linewidth=1, label="due",
    )  # fmt: skip
    edges = [float(second) for second in range(len(seconds) + 1)]
    if seconds:
        panel.stairs([one.answered for one in seconds], edges, color=_BLUE, linewidth=1.6, label="answered")
    if any(one.failed for one in seconds):
        panel.stairs([one.failed for one in seconds], edges, color=_RED, fill=True, label="failed")
    panel.set_ylim(bottom=0)
    panel.set_ylabel("requests/s")


def _draw_latency(panel: Axes, summary: RunSummary, seconds: Sequence[SecondStats]) -> None:
    middles = [one.second + 0.5 for one in seconds]
    for label, color, dash, values in (
        ("max", _GREY, ":", [one.latencies.max for one in seconds]),
        ("p99", _ORANGE, "--", [one.latencies.p99 for one in seconds]),
        ("p50", _BLUE, "-", [one.latencies.p50 for one in seconds]),
    ):
        # The markers show seconds that stand alone.
        panel.plot(middles, values, dash, color=color, marker=".", markersize=3, linewidth=1.6, label=label)
    for wake in summary.wake_ups:
        panel.axvline(wake.at, color=_GREY, linestyle=":", linewidth=1)
        if math.isfinite(wake.latency):
            panel.annotate(
                f" {'woke in' if wake.nodes == 0 else 'first answer'} {format_duration(wake.latency)}",
                (wake.at, 1), xycoords=("data", "axes fraction"), va="top", fontsize=9,
            )  # fmt: skip
    panel.set_ylabel("latency by due time")
    if math.isfinite(summary.latencies.max):
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_duration(value)))
        panel.yaxis.set_minor_formatter(NullFormatter())
    else:
        _show_text(panel, "no right answer")


def _draw_nodes(panel: Axes, record: RunRecord, summary: RunSummary) -> None:
    panel.set_ylabel("nodes")
    panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    if not record.samples:
        _show_text(panel, "the server does not report node counts")
        return
    # The last count holds until the end.
    times = [*(one.at for one in record.samples), max(summary.seconds, record.samples[-1].at)]
    ready = [one.ready for one in record.samples]
    starting = [one.starting for one in record.samples]
    ready, starting = [*ready, ready[-1]], [*starting, starting[-1]]
    panel.step(times, ready, where="post", color=_GREEN, linewidth=1.8, label="ready")
    panel.fill_between(times, ready, step="post", color=_GREEN, alpha=0.2)
    panel.step(times, starting, "--", where="post", color=_PURPLE, linewidth=1.6, label="starting")
    panel.set_ylim(0, max(*ready, *starting, 1) * 1.15)


def _show_text(panel: Axes, text: str) -> None:
    """Show a text instead of a plot."""
    panel.set_yticks([])
    panel.text(0.5, 0.5, text, transform=panel.transAxes, ha="center")
