from __future__ import annotations

from loadtests.bench.beyond import measure_hand_over, measure_imbalance


def test_connections_spread_over_listeners() -> None:
    """The busiest has at least its even share, and at most all."""
    assert 1.0 <= measure_imbalance(2, 16) <= 2.0
    assert measure_imbalance(1, 4) == 1.0


def test_a_connection_is_handed_over() -> None:
    """Both ways answer, and the one that hands over is seen to work."""
    found = measure_hand_over(200)

    assert found.direct_us > 0
    assert found.handed_us > 0
    assert found.cpu_us >= 0
