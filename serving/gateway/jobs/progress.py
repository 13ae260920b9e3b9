"""How far an attempt is, how fast, and when it will be through."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from batch.messages import JobCounts, JobPhase

# Rates are averages over about this many seconds.
_WINDOW = 10.0


class Progress:
    """Built from what the process says; `now` is in seconds on any clock that does not jump."""

    def __init__(self) -> None:
        self.phase: JobPhase | None = None
        self.counts = JobCounts()
        self._heard: deque[tuple[float, JobCounts]] = deque()

    def hear(self, counts: JobCounts, now: float) -> None:
        """Take note of new counts."""
        self.counts = counts
        self._heard.append((now, counts))
        while len(self._heard) > 2 and self._heard[1][0] <= now - _WINDOW:
            self._heard.popleft()

    @property
    def has_counts(self) -> bool:
        """Whether anything was heard."""
        return bool(self._heard)

    @property
    def records_per_second(self) -> float | None:
        """Predicted or refused; None while it is not known."""
        return self._rate(lambda counts: counts.predictions + counts.errors)

    @property
    def seconds_left(self) -> float | None:
        """Until all input is read; None while it is not known."""
        rate = self._rate(lambda counts: counts.bytes)
        if not rate:
            return None
        return max(0, self.counts.bytes_total - self.counts.bytes) / rate

    def _rate(self, of: Callable[[JobCounts], int]) -> float | None:
        if len(self._heard) < 2:
            return None
        (start, first), (end, last) = self._heard[0], self._heard[-1]
        return max(0, of(last) - of(first)) / (end - start) if end > start else None
