"""What came since a sample is the difference to it."""

from __future__ import annotations

import pytest

from serving.gateway.observability.phase_sums import PhaseSum, add_up_phases, sample_phases
from serving.gateway.observability.prediction_stats import VersionStats
from tests.serving.gateway.proxy.test_server_timing import make_lease


def test_what_came_since_a_sample() -> None:
    """Of all, and of those that waited for a start."""
    stats = VersionStats()
    stats.count_answer((0.5, 0.4, ()), 200, 1, 1)
    sample = sample_phases(7, stats, ())
    start = make_lease(arrived=1.0, asked=1.0, ready=2.0, granted=2.0, load=0.5)
    stats.count_answer((0.02, 0.01, ()), 200, 1, 1)
    stats.count_answer((1.1, 0.1, (start,)), 200, 1, 1)
    counted = stats.take_snapshot(())
    recent = sample.subtract_from(add_up_phases(counted.phases, counted.started))

    assert sample.at == 7
    assert recent.all["total"].requests == 2
    assert recent.all["total"].seconds == pytest.approx(1.12)
    assert recent.all["load"].requests == 1
    assert recent.all["load"].seconds == pytest.approx(0.5)
    assert "infer" not in recent.all
    assert recent.started["total"].seconds == pytest.approx(1.1)
    assert recent.subtract_started("total").mean == pytest.approx(0.02)
    assert PhaseSum().mean == 0
