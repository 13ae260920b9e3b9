"""Progress of a prediction: counts, rate, and the time left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from batch.messages import JobCounts, JobPhase

# Rates are averages over about this many seconds.
_RATE_WINDOW_SECONDS = 10.0


class PredictionProgress:
    """Computed from reports of the process; `now` is in seconds on any monotonic clock."""

    def __init__(self) -> None:
        self.phase: JobPhase | None = None
        self.counts = JobCounts()
        self._samples: deque[tuple[float, JobCounts]] = deque()

    def add_counts(self, counts: JobCounts, now: float) -> None:
        self.counts = counts
        self._samples.append((now, counts))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _RATE_WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def has_counts(self) -> bool:
        return bool(self._samples)

    @property
    def records_per_second(self) -> float | None:
        """Counts predicted and rejected records; None while it is not known."""
        return self._average_rate(lambda counts: counts.predictions + counts.errors)

    @property
    def seconds_left(self) -> float | None:
        """Until all input is read; None while it is not known."""
        rate = self._average_rate(lambda counts: counts.bytes)
        if not rate:
            return None
        return max(0, self.counts.bytes_total - self.counts.bytes) / rate

    def _average_rate(self, of: Callable[[JobCounts], int]) -> float | None:
        if len(self._samples) < 2:
            return None
        (start, first), (end, last) = self._samples[0], self._samples[-1]
        return max(0, of(last) - of(first)) / (end - start) if end > start else None
