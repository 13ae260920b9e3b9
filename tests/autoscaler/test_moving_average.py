"""Averages of load over time, checked against load that is known at every moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.moving_average import ConcurrencyMeter, CounterHistory

# Quarters of seconds are exact in floating point: so are the sums of them.
QUARTERS = st.integers(1, 40).map(lambda quarters: quarters / 4)


def sampled(*samples: tuple[float, float], longest: float = 60.0) -> CounterHistory:
    """A history of these moments and sums."""
    history = CounterHistory(0.0, longest)
    for time, integral in samples:
        history.sample(time, integral)
    return history


def test_meter_adds_up_what_goes_on() -> None:
    """The sum grows by the level each second; the level counts what began and has not ended."""
    meter = ConcurrencyMeter(10.0)
    sums = []
    for now, delta in [(12.0, 1), (13.0, 1), (15.0, -1), (16.0, -1), (20.0, 0)]:
        meter.change(delta, now)
        sums.append((now, meter.level, meter.integral))

    assert sums == [(12.0, 1, 0.0), (13.0, 2, 1.0), (15.0, 1, 5.0), (16.0, 0, 6.0), (20.0, 0, 6.0)]


def test_meter_tells_the_sum_between_changes() -> None:
    """Asking for the sum counts what goes on just now, and changes nothing."""
    meter = ConcurrencyMeter()
    meter.change(3, 1.0)

    assert [meter.integral_at(now) for now in (1.0, 2.0, 4.0, 2.0)] == [0.0, 3.0, 9.0, 3.0]


def test_meter_knows_when_something_last_ended() -> None:
    """What begins is no end; before anything has ended it is the meter's beginning."""
    meter = ConcurrencyMeter(5.0)
    ends = []
    for now, delta in [(6.0, 1), (7.0, 2), (8.0, -1), (9.0, 1), (11.0, -3)]:
        meter.change(delta, now)
        ends.append(meter.last_end)

    assert ends == [5.0, 5.0, 8.0, 8.0, 11.0]


@given(
    changes=st.lists(st.tuples(QUARTERS, st.integers(0, 50)), min_size=1, max_size=30),
    last=QUARTERS,
    window=QUARTERS,
)
def test_average_is_exact(changes: list[tuple[float, int]], last: float, window: float) -> None:
    """Sampled where the load changes, the average is the load at every moment, over the time."""
    meter, history, now = ConcurrencyMeter(), CounterHistory(0.0), 0.0
    levels: list[tuple[float, float, int]] = []  # from, to, level
    for wait, level in changes:
        levels.append((now, now + wait, meter.level))
        now += wait
        meter.change(level - meter.level, now)
        history.sample(now, meter.integral_at(now))
    levels.append((now, now + last, meter.level))
    now += last

    begin = now - window
    expected = sum(max(0.0, to - max(begin, since)) * level for since, to, level in levels) / window
    assert history.average_rate(now, meter.integral_at(now), window) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("window", "average"),
    [
        (2.0, 0.0),  # nothing came after the last sample
        (6.0, 20 / 6),  # from the sample at 4 on
        (4.0, 10 / 4),  # from 6 on: half of what came from 4 to 8
        (8.0, (20 + 5) / 8),  # from 2 on: and half of what came before
    ],
)
def test_between_samples_it_grows_evenly(window: float, average: float) -> None:
    """A window that begins between two samples takes its part of what came between them."""
    history = sampled((0.0, 0.0), (4.0, 10.0), (8.0, 30.0))

    assert history.average_rate(10.0, 30.0, window) == average


def test_after_the_last_sample_it_grows_evenly() -> None:
    """A window that begins after the last sample takes its part of what came since."""
    assert sampled((0.0, 0.0), (8.0, 20.0)).average_rate(12.0, 28.0, 1.0) == 2.0


def test_before_the_oldest_sample_nothing_grew() -> None:
    """A version that has slept begins with the sum it had; so does one never seen before."""
    assert sampled((1000.0, 70.0), (1001.0, 76.0)).average_rate(1001.0, 76.0, 60.0) == 6 / 60
    assert sampled().average_rate(1001.0, 76.0, 60.0) == 0.0


def test_a_sleep_counts_as_no_load() -> None:
    """A sample before a sleep and one at its end: what comes next is not spread over the sleep."""
    history = sampled((0.0, 50.0), (3600.0, 50.0))

    assert history.average_rate(3602.0, 62.0, 6.0) == 2.0


def test_no_load_is_exactly_none() -> None:
    """A constant sum leaves no rounding error, wherever the window begins."""
    history = sampled(*((0.1 * moment, 1 / 3) for moment in range(100)))

    assert {history.average_rate(10.0, 1 / 3, 0.07 * width) for width in range(1, 140)} == {0.0}


def test_two_samples_at_one_moment_do_no_harm() -> None:
    """A wake-up and a tick may fall on the same moment."""
    history = sampled((0.0, 0.0), (1.0, 4.0), (1.0, 4.0), (2.0, 8.0))

    assert [history.average_rate(2.0, 8.0, window) for window in (0.5, 1.0, 1.5)] == [4.0, 4.0, 4.0]


def test_old_samples_are_dropped() -> None:
    """What lies before the longest window is forgotten; once a longer one is asked for, no more."""
    history = sampled(*((float(second), float(second)) for second in range(101)), longest=10.0)

    assert history.average_rate(100.0, 100.0, 10.0) == 1.0
    assert history.average_rate(100.0, 100.0, 50.0) == 10 / 50
    for second in range(101, 141):
        history.sample(float(second), float(second))
    assert history.average_rate(140.0, 140.0, 50.0) == 1.0


@given(st.lists(st.floats(0.1, 3.0), min_size=1, max_size=100), st.floats(1.0, 20.0), st.floats(0.1, 1.0))
def test_dropping_changes_no_average(waits: list[float], longest: float, part: float) -> None:
    """Averages over the longest window, or a shorter one, are those of a history that drops nothing."""
    keeps, drops, now, total = CounterHistory(0.0, 1e9), CounterHistory(0.0, longest), 0.0, 0.0
    for wait in waits:
        now, total = now + wait, total + wait * wait
        keeps.sample(now, total)
        drops.sample(now, total)

    for window in (longest, longest * part):
        assert drops.average_rate(now, total, window) == keeps.average_rate(now, total, window)


def test_settled_once_a_window_has_passed() -> None:
    """It is known what came in a window when the beginning lies that far back."""
    history = CounterHistory(100.0)

    assert [history.covers_window(now, 60.0) for now in (100.0, 159.0, 160.0, 1000.0)] == [
        False,
        False,
        True,
        True,
    ]


def test_what_stands_still_is_told_by_two_samples() -> None:
    """Where it began and where it was last seen: however long nothing goes on, no more is kept."""
    history = sampled((0.0, 0.0), (1.0, 5.0), *((float(now), 5.0) for now in range(2, 50)))

    assert len(history._samples) == 3
    assert history.average_rate(50.0, 5.0, 50.0) == pytest.approx(5.0 / 50)
    assert history.average_rate(50.0, 5.0, 49.5) == pytest.approx(2.5 / 49.5)
    assert history.average_rate(50.0, 5.0, 49.0) == 0.0
