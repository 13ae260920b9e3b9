"""Lines are drawn within their picture, whatever the numbers."""

from __future__ import annotations

import re

import pytest

from serving.gateway.console.charts.line_charts import HEIGHT, WIDTH, Points, draw_chart


def numbers(path: str) -> list[float]:
    return [float(one) for one in re.findall(r"-?[\d.]+(?:e[+-]?\d+)?", path)]


def test_lines_share_their_axes() -> None:
    chart = draw_chart("loss", {"train": [(0, 2.0), (10, 1.0)], "eval": [(5, 1.5)], "none": []})
    assert (chart.left, chart.right, chart.low, chart.high) == ("0", "10", "1", "2")
    assert [line.name for line in chart.lines] == ["train", "eval"]
    assert chart.lines[0].path == "M6.0,6.0L594.0,194.0"
    assert chart.lines[1].path == "M300.0,100.0L300.0,100.0"


@pytest.mark.parametrize("points", [[(0, 1e308), (1, -1e308)], [(0, 0)], [(2**62, 1e-300), (3, 1e-300)]])
def test_no_number_leaves_the_picture(points: Points) -> None:
    (line,) = draw_chart("x", {"a": points}).lines
    assert "nan" not in line.path
    assert all(0 <= one <= max(WIDTH, HEIGHT) for one in numbers(line.path))
