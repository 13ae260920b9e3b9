"""Moving averages of the load, integrated at each change, so that no request between two samples is missed.

`ConcurrencyMeter` integrates concurrency over time: two requests for three seconds are six request-seconds.
`CounterHistory` samples that sum; the growth between two samples, divided by the time, is the average. Times
are in seconds on one clock that the caller chooses.
"""

from __future__ import annotations

import bisect
import math


class ConcurrencyMeter:
    """Counts running requests, and integrates their number over time. `level` is the number right now.

    `last_end` is when a request last ended, the meter's start if none has.
    """

    __slots__ = ("changed_at", "integral", "last_end", "level")

    def __init__(self, now: float = 0.0) -> None:
        self.level = 0
        self.integral = 0.0
        self.changed_at = now
        self.last_end = now

    def change(self, delta: int, now: float) -> None:
        # Runs twice per request.
        self.integral += self.level * (now - self.changed_at)
        self.changed_at = now
        self.level += delta
        if delta < 0:
            self.last_end = now

    def integral_at(self, now: float) -> float:
        """The sum of level times seconds up to now, which is no earlier than the last change."""
        return self.integral + self.level * (now - self.changed_at)


class CounterHistory:
    """Samples of a growing counter, and from them its average growth per second over a window.

    The counter is known from `since` on. Samples are kept for the `longest` window, in seconds; asking for
    the average over a longer one makes that the longest. Between two samples the counter is taken to grow
    evenly, and before the oldest not to grow: so take a sample when growth begins after a pause in sampling.
    """

    def __init__(self, since: float, longest: float = 60.0) -> None:
        self._since = since
        self._longest = longest
        self._samples: list[tuple[float, float]] = []

    def sample(self, now: float, integral: float) -> None:
        """Store the counter; `now` is no earlier than at the last call."""
        samples = self._samples
        if len(samples) > 1 and samples[-2][1] == samples[-1][1] == integral:
            samples[-1] = now, integral  # while nothing changes, two samples are enough
        else:
            samples.append((now, integral))
        # The newest sample outside the window gives the counter at its beginning.
        while len(samples) > 1 and samples[1][0] <= now - self._longest:
            del samples[0]

    def average_rate(self, now: float, integral: float, window: float) -> float:
        """The growth per second over the last `window` (> 0) seconds; the counter is now `integral`."""
        self._longest = max(self._longest, window)
        return (integral - self._value_at(now - window, now, integral)) / window

    def covers_window(self, now: float, window: float) -> bool:
        return now - self._since >= window

    def _value_at(self, time: float, now: float, integral: float) -> float:
        """The counter at a time before now, interpolated."""
        samples = self._samples
        after = bisect.bisect_left(samples, (time, -math.inf))
        if after == 0:
            return samples[0][1] if samples else integral
        start, low = samples[after - 1]
        end, high = samples[after] if after < len(samples) else (now, integral)
        return low + (high - low) * ((time - start) / (end - start))
