"""What is kept of a version's last day."""

from __future__ import annotations

import sys
import tracemalloc
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.gateway.observability.history import (
    GRAINS,
    Figures,
    Grain,
    VersionHistory,
    combine_figures,
    estimate_quantile,
)
from serving.latency_histograms import BOUNDS

START = 1_700_000_123
SECONDS, MINUTES, HALF_HOURS = GRAINS
MIB = 1 << 20


def model(recorded: dict[int, Figures], grain: Grain, now: int) -> list[Figures]:
    """The same figures, from all seconds."""
    last = grain.last_end(now)
    ends = range(last - (grain.slots - 1) * grain.seconds, last + 1, grain.seconds)
    return [
        combine_figures(figures for at, figures in recorded.items() if end - grain.seconds < at <= end)
        for end in ends
    ]


def is_close(found: Figures, wanted: Figures) -> bool:
    """Each ring rounds what the one before has rounded."""
    return all(abs(one - other) <= 0.1 * other for one, other in zip(found, wanted, strict=True))


@given(
    steps=st.lists(
        st.tuples(
            st.one_of(st.integers(1, 3), st.integers(1, 700), st.integers(1, 8000), st.integers(1, 100_000)),
            st.integers(1, 3),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=40)
def test_each_ring_has_what_all_seconds_have_together(steps: list[tuple[int, int, int]]) -> None:
    """However long nothing happened in between."""
    now, recorded = START, dict[int, Figures]()
    history = VersionHistory(now)
    for gap, requests, nodes in steps:
        now += gap
        recorded[now] = Figures(requests, 0, 0.0005, 0.001, nodes)
        history.record(now, recorded[now])
    for grain in GRAINS:
        first, figures = history.read(grain, now)
        assert first == grain.last_end(now) - (grain.slots - 1) * grain.seconds
        wanted = model(recorded, grain, now)
        assert [one for one in zip(figures, wanted, strict=True) if not is_close(*one)] == []


@pytest.mark.parametrize("count", [0, 1, 7, 20, 21, 99, 1234, 65_432, 999_999])
def test_figures_are_within_three_percent(count: int) -> None:
    history = VersionHistory(START)
    history.record(START + 1, Figures(count, 0, count / 1000, count / 1000, count))
    _, figures = history.read(SECONDS, START + 1)

    seconds = min(count / 1000, 100)
    assert figures[-1] == pytest.approx((count, 0, seconds, seconds, count), rel=0.03)
    assert count > 20 or figures[-1].requests == count


def test_a_read_in_the_middle_of_nothing_changes_nothing() -> None:
    history = VersionHistory(START)
    history.record(START + 5, Figures(requests=3, nodes=1))
    for later in (6, 70, 71, 1900):
        history.read(SECONDS, START + later)
    _, minutes = history.read(MINUTES, START + 1900)
    _, half_hours = history.read(HALF_HOURS, START + 1900)

    assert sum(one.requests for one in minutes) == 3
    assert half_hours[-1].requests == 3


def test_a_quantile_is_between_the_bounds_of_its_bucket() -> None:
    counts = [0] * (len(BOUNDS) + 1)
    assert estimate_quantile(counts, 0.5) == 0
    counts[3] = 10
    assert estimate_quantile(counts, 0.5) == pytest.approx((BOUNDS[2] + BOUNDS[3]) / 2)
    counts[-1] = 10
    assert estimate_quantile(counts, 0.99) == BOUNDS[-1]


def test_a_thousand_versions_take_less_than_four_mebibytes() -> None:
    """With their last totals."""
    tracemalloc.start()
    try:
        histories = {f"{number:016x}": VersionHistory(START) for number in range(1000)}
        keys = sum(sys.getsizeof(uid) for uid in histories)
        for history in histories.values():
            history.totals = array("Q", range(len(BOUNDS) + 3))
            history.record(START + 1, Figures(123_456, 1, 0.1, 0.2, 3))
        taken = tracemalloc.get_traced_memory()[0] - keys
    finally:
        tracemalloc.stop()

    assert taken <= 4 * MIB
