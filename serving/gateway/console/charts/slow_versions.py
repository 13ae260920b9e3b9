"""Which versions are slow beside the others, and stay so. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import Final

# Seconds: what is faster than this is slow to nobody, whatever the others take.
_LEAST_P99: Final = 0.1
# So many times the p99 of the others stands out.
_TIMES_MEDIAN: Final = 3.0
# Of the last minute: in so many seconds, and in such a share of those with an answer, p99 must have stood
# out. The answers that waited for one start of a node come in two of them at most.
_LEAST_SECONDS: Final = 3
_LEAST_SHARE: Final = 0.1


def find_slow_limit(p99s: Sequence[float]) -> float:
    """The p99 from which on a version stands out, in seconds; `p99s` are of all that answer, 0: no answer.

    Where most take as long, or a version answers alone, it is one that none of them reaches.
    """
    answering = [p99 for p99 in p99s if p99]
    return max(_LEAST_P99, _TIMES_MEDIAN * median_low(answering)) if answering else _LEAST_P99


def is_slow(limit: float, p99_now: float, p99_by_second: Sequence[float]) -> bool:
    """Whether a version stands out now, and not only for a moment of the last minute.

    `p99_by_second` has 0 for seconds without an answer.
    """
    answering = [p99 for p99 in p99_by_second if p99]
    standing_out = sum(p99 >= limit for p99 in answering)
    return p99_now >= limit and standing_out >= max(_LEAST_SECONDS, _LEAST_SHARE * len(answering))
