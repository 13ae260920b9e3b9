from __future__ import annotations

from loadtests.bench.beyond import busiest, hand_over


def test_connections_spread_over_listeners() -> None:
    """The busiest has at least its even share, and at most all."""
    assert 1.0 <= busiest(2, 16) <= 2.0
    assert busiest(1, 4) == 1.0


def test_a_connection_is_handed_over() -> None:
    """Both ways answer, and the one that hands over is seen to work."""
    found = hand_over(200)

    assert 0 < found.direct_us
    assert 0 < found.handed_us
    assert 0 <= found.cpu_us
