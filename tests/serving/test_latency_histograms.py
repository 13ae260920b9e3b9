from __future__ import annotations

import mmap

import pytest

from serving.latency_histograms import BOUNDS, NODE_BYTES, NODE_PHASES, LatencyHistograms, as_cells


def test_the_buckets_begin_below_a_millisecond() -> None:
    """At 0.05 ms, and rise."""
    assert BOUNDS[0] == 0.000_05
    assert list(BOUNDS) == sorted(set(BOUNDS))
    assert sum(bound < 0.001 for bound in BOUNDS) >= 4


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_a_request_is_in_the_first_bucket_that_is_no_smaller(shared: bool) -> None:
    """Its bound included; what is over all bounds is in the last one, and each phase is on its own."""
    histograms = LatencyHistograms(
        len(NODE_PHASES), as_cells(memoryview(mmap.mmap(-1, NODE_BYTES))) if shared else None
    )
    for seconds in (0.0, 0.000_05, 0.000_06, 60.0, 61.0):
        histograms.record(2, seconds)

    found = histograms.read_phase(2)
    assert found.counts == (2, 1, *[0] * (len(BOUNDS) - 3), 1, 1)
    assert found.seconds == pytest.approx(121.000_11)
    assert not any(histograms.read_phase(1).counts + histograms.read_phase(3).counts)


def test_clocks_that_step_back_do_no_harm() -> None:
    """Less than nothing counts as nothing."""
    histograms = LatencyHistograms(1)
    histograms.record(0, -1.0)

    assert (histograms.read_phase(0).counts[0], histograms.read_phase(0).seconds) == (1, 0.0)


def test_rows_add_up() -> None:
    """Those of several nodes tell of one version."""
    one, other = LatencyHistograms(2), LatencyHistograms(2)
    one.record(1, 0.3)
    other.record(1, 0.4)
    one.merge(other.cells)

    assert one.read_phase(1).seconds == pytest.approx(0.7)
    assert sum(one.read_phase(1).counts) == 2
