"""Which versions stand out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from serving.gateway.console.charts.slow_versions import find_slow_limit, is_slow


@pytest.mark.parametrize(
    ("p99s", "slow"),
    [
        ((), ()),
        # Nothing takes long, whatever the others take.
        ((0.002, 0.003, 0.09), ()),
        ((0.002, 0.003, 0.9), (0.9,)),
        ((0.01, 0.9), (0.9,)),
        # All take as long, or one is alone: none stands out.
        ((0.8, 0.9, 1.0), ()),
        ((2.0,), ()),
        # Those that do not answer are no others.
        ((2.0, 0.0, 0.0), ()),
        ((0.01, 0.02, 0.02, 1.0, 3.0), (1.0, 3.0)),
    ],
)
def test_what_stands_out_is_many_times_what_the_others_take(
    p99s: Sequence[float], slow: Sequence[float]
) -> None:
    limit = find_slow_limit(p99s)

    assert tuple(p99 for p99 in p99s if p99 and p99 >= limit) == tuple(slow)


@pytest.mark.parametrize(
    ("now", "seconds", "expected"),
    [
        # A start of a node, and then as ever.
        (0.9, (0.9, 0.9, *(0.01,) * 20), False),
        (0.9, (0.9, 0.9, 0.9, *(0.01,) * 20), True),
        (0.9, (0.9, 0.9, 0.9, *(0.01,) * 50), False),
        # Few answers, all slow.
        (0.9, (*(0.0,) * 50, 0.9, 0.9, 0.9), True),
        # It was slow, and is no more.
        (0.01, (0.9,) * 30, False),
        (0.0, (0.9,) * 30, False),
    ],
)
def test_it_is_slow_for_more_than_a_moment(now: float, seconds: Sequence[float], expected: bool) -> None:
    assert is_slow(0.1, now, seconds) is expected
