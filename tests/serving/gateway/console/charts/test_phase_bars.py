"""Bars never leave their picture, and say what was measured."""

from __future__ import annotations

from serving.gateway.console.charts.phase_bars import BAR_WIDTH, BarPart, view_answers, view_starts
from serving.gateway.observability.metrics import StartSummary
from serving.latency_histograms import BOUNDS, HistogramSnapshot


def histogram(*seconds: float) -> HistogramSnapshot:
    counts = [0] * (len(BOUNDS) + 1)
    for one in seconds:
        counts[next((n for n, bound in enumerate(BOUNDS) if one <= bound), len(BOUNDS))] += 1
    return HistogramSnapshot(tuple(counts), sum(seconds))


def test_starts_share_a_scale() -> None:
    forked = StartSummary("forked", 3, {"start": 0.02, "load": 0.05, "warm": 0.03, "total": 0.1})
    cold = StartSummary("cold", 1, {"start": 0.8, "load": 0.1, "warm": 0.1, "total": 1.0})
    first, second = view_starts([forked, cold])

    assert (first.how, first.count, first.total) == ("forked", 3, 0.1)
    assert first.parts == [
        BarPart("launch", 0.02, 0, 12),
        BarPart("load", 0.05, 12, 30),
        BarPart("warm-up", 0.03, 42, 18),
    ]
    assert sum(part.width for part in second.parts) == BAR_WIDTH
    assert view_starts([]) == []


def test_answers_by_phase() -> None:
    """Each group in the order of a request, with what each phase is of an answer."""
    warm, common = view_answers(
        (
            ("total", histogram(0.1, 0.1)),
            ("gateway", histogram(0.05, 0.05)),
            ("queue", histogram(0.01)),
            ("infer", histogram(0.03, 0.05)),
            ("unknown", histogram(9)),
        )
    )

    assert [row.name for row in (*warm.rows, *common.rows)] == [
        "total", "queue", "gateway", "transfer", "infer"
    ]  # fmt: skip
    assert [row.count for row in (*warm.rows, *common.rows)] == [2, 1, 2, 2, 2]
    assert [round(row.mean, 3) for row in (*warm.rows, *common.rows)] == [0.1, 0.01, 0.05, 0.005, 0.04]
    assert [(row.part.x, row.part.width) for row in common.rows] == [(0, 300), (300, 30), (330, 240)]
    assert all(row.mean / 2 < row.p99 < row.mean * 4 for row in (*warm.rows, *common.rows) if row.p99)
    assert view_answers(()) == ()


def test_who_waited_for_a_start_is_not_in_the_mean_of_the_others() -> None:
    phases = (
        ("total", histogram(0.01, 0.03, 1.0)),
        ("queue", histogram(0.4)),
        ("load", histogram(0.59)),
        ("infer", histogram(0.01, 0.01, 0.01)),
    )
    warm, cold, common = view_answers(phases, (("total", histogram(1.0)), ("queue", histogram(0.4))))

    assert [(row.name, row.count, round(row.mean, 3)) for row in warm.rows] == [("total", 2, 0.02)]
    assert [(row.name, row.count, round(row.mean, 3)) for row in cold.rows] == [
        ("total", 1, 1.0), ("queue", 1, 0.4), ("load", 1, 0.59)
    ]  # fmt: skip
    assert [(row.part.x, row.part.width) for row in cold.rows] == [(0, 600), (0, 240), (240, 354)]
    assert [(row.name, row.count, row.part.width) for row in common.rows] == [
        ("transfer", 3, 200), ("infer", 3, 300)
    ]  # fmt: skip


def test_no_part_leaves_its_bar() -> None:
    """Phases are measured by clocks of two processes, and may add up to more than the whole."""
    _, common = view_answers(
        (("total", histogram(0.1)), ("gateway", histogram(0.08)), ("infer", histogram(0.08)))
    )
    [none] = view_starts([StartSummary("cold", 1, {"start": 0.0, "load": 0.0, "warm": 0.0, "total": 0.0})])

    assert sum(row.part.width for row in common.rows) == BAR_WIDTH
    assert all(part.width == 0 for part in none.parts)
