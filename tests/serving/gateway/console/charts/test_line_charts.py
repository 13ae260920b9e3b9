"""Lines are drawn within their picture, whatever the numbers."""

from __future__ import annotations

import re

import pytest

from serving.gateway.console.charts.line_charts import HEIGHT, WIDTH, Points, draw_chart


def numbers(path: str) -> list[float]:
    return [float(one) for one in re.findall(r"-?[\d.]+(?:e[+-]?\d+)?", path)]


def test_lines_share_their_axes() -> None:
    chart = draw_chart("loss", {"train": [(0, 2.0), (10, 1.0)], "eval": [(5, 1.5)], "none": []})
    assert [(one.at, one.label) for one in chart.across] == [(6, "0"), (300, "5"), (594, "10")]
    assert [(one.at, one.label) for one in chart.up] == [(6, "2"), (100, "1.5"), (194, "1")]
    assert [line.name for line in chart.lines] == ["train", "eval"]
    assert chart.lines[0].path == "M6.0,6.0L594.0,194.0"
    assert chart.lines[1].path == "M300.0,100.0L300.0,100.0"


@pytest.mark.parametrize("points", [[(0, 1e308), (1, -1e308)], [(0, 0)], [(2**62, 1e-300), (3, 1e-300)]])
def test_no_number_leaves_the_picture(points: Points) -> None:
    (line,) = draw_chart("x", {"a": points}).lines
    assert "nan" not in line.path
    assert all(0 <= one <= max(WIDTH, HEIGHT) for one in numbers(line.path))


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0], ["1 ms", "0.5 ms", "0 ms"]),
        ([3, 37], ["40 ms", "20 ms", "0 ms"]),
        ([0.002], ["0.002 ms", "0.001 ms", "0 ms"]),
        ([1000], ["1000 ms", "500 ms", "0 ms"]),
    ],
)
def test_the_axis_of_values_has_round_numbers_with_their_unit(values: list[float], labels: list[str]) -> None:
    chart = draw_chart("t", {"a": list(enumerate(values))}, base=0, unit=" ms")
    assert [one.label for one in chart.up] == labels


def test_things_are_counted_by_ones() -> None:
    chart = draw_chart("nodes", {"a": [(0, 0), (1, 1)]}, base=0, least_step=1)
    assert [one.label for one in chart.up] == ["1", "0"]


def test_a_table_has_the_same_in_ten_rows() -> None:
    points = [(float(x), float(x % 10)) for x in range(-99, 1)]
    chart = draw_chart(
        "t", {"a": points, "b": points[:20]}, summarize=max, format_across=lambda x: f"{x:.0f}"
    )
    assert len(chart.rows) == 10
    assert {row.values[0] for row in chart.rows} == {"9"}
    assert [row.values[1] for row in chart.rows[:4]] == ["9", "9", "-", "-"]
    assert chart.rows[-1].label == "0"
    few = draw_chart("t", {"a": [(1, 1.5), (3, 2)], "b": [(3, 4)]}).rows
    assert [(row.label, row.values) for row in few] == [("1", ("1.5", "-")), ("3", ("2", "4"))]
    (only,) = draw_chart("t", {"a": [(5, 1.5)]}).rows
    assert (only.label, only.values) == ("5", ("1.5",))
