"""A picture of a tuning job: the best value over its trials, and each parameter against the metric."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

from serving.cli.trials.trial_table import TrialTable
from serving.errors import FailedPrecondition
from serving.gateway.api.studies.trial_rows import TrialRow
from tuning.space import Parameter, ParameterKind, Scale
from tuning.study import Goal

# Okabe and Ito's colours, which all kinds of sight tell apart.
_BLUE, _ORANGE = "#0072B2", "#E69F00"
_COLUMNS, _WIDTH, _HEIGHT, _DPI = 3, 4.0, 3.0, 100
# A picture of more would show nothing.
_MOST_PARAMETERS = 29


def draw_trials(table: TrialTable, title: str, file: Path) -> None:
    """Write a PNG. Raises FailedPrecondition without matplotlib, or without trials; OSError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise FailedPrecondition("--plot needs matplotlib: pip install 'pilotlight[plot]'.") from error
    rows = [row for row in table.rows if row.value is not None and row.state == "SUCCEEDED"]
    if not rows:
        raise FailedPrecondition("No trial has a value yet: there is nothing to draw.")
    parameters = table.study.space.parameters[:_MOST_PARAMETERS]
    lines = math.ceil((1 + len(parameters)) / _COLUMNS)
    figure = Figure(figsize=(_COLUMNS * _WIDTH, lines * _HEIGHT), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    panels = list(figure.subplots(lines, _COLUMNS, squeeze=False).flat)
    _draw_progress(panels[0], table, rows)
    for panel, parameter in zip(panels[1:], parameters, strict=False):
        _draw_parameter(panel, table.metric, parameter, rows)
    for panel in panels[1 + len(parameters) :]:
        panel.set_visible(False)
    figure.savefig(file, format="png")


def _draw_progress(panel: Any, table: TrialTable, rows: list[TrialRow]) -> None:
    ordered = sorted(rows, key=lambda row: row.number)
    numbers, values = [row.number for row in ordered], [row.value or 0.0 for row in ordered]
    better = max if table.study.metrics[0].goal is Goal.MAXIMIZE else min
    panel.plot(numbers, values, ".", color=_BLUE, label="trial")
    panel.plot(numbers, list(itertools.accumulate(values, better)), color=_ORANGE, label="best so far")
    panel.locator_params(axis="x", integer=True)
    panel.set_xlabel("trial")
    panel.set_ylabel(table.metric)
    panel.legend(frameon=False)


def _draw_parameter(panel: Any, metric: str, parameter: Parameter, rows: list[TrialRow]) -> None:
    shown = [row for row in rows if parameter.name in row.parameters]
    panel.plot(
        [row.parameters[parameter.name] for row in shown], [row.value for row in shown], ".", color=_BLUE
    )
    if parameter.scale is Scale.LOG and parameter.kind is not ParameterKind.CATEGORICAL:
        panel.set_xscale("log")
    elif parameter.kind is ParameterKind.INTEGER:
        panel.locator_params(axis="x", integer=True)
    panel.set_xlabel(parameter.name)
    panel.set_ylabel(metric)
