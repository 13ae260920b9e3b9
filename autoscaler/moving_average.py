"""How much load there was, on average, over the last seconds: added up at each change, so nothing is missed.

A `Meter` adds up load over time: two requests for three seconds are six request-seconds. A `History`
remembers the sum at some moments; what came between two of them, divided by the time, is the average. Times
are in seconds on one clock that the caller chooses.
"""

from __future__ import annotations

import bisect
import math


class ConcurrencyMeter:
    """Counts what is going on, and adds it up over time. `level` is how much goes on right now.

    `predict_end` is when something last ended, the meter's beginning if nothing has yet.
    """

    __slots__ = ("changed_at", "integral", "last_end", "level")

    def __init__(self, now: float = 0.0) -> None:
        self.level = 0
        self.integral = 0.0
        self.changed_at = now
        self.last_end = now

    def change(self, delta: int, now: float) -> None:
        """So many more, or fewer, from now on. Twice per request: nothing may be cheaper."""
        self.integral += self.level * (now - self.changed_at)
        self.changed_at = now
        self.level += delta
        if delta < 0:
            self.last_end = now

    def integral_at(self, now: float) -> float:
        """The sum of level times seconds up to now, which is no earlier than the last change."""
        return self.integral + self.level * (now - self.changed_at)


class CounterHistory:
    """What a growing sum was in the past, and so its average growth per second over a window.

    What is known reaches back to `since`. Samples are kept for the `longest` window, in seconds; asking for
    the average over a longer one makes that the longest. Between two samples the sum counts as growing
    evenly, and before the oldest as not growing: so take one when growth begins after a pause in sampling.
    """

    def __init__(self, since: float, longest: float = 60.0) -> None:
        self._since = since
        self._longest = longest
        self._samples: list[tuple[float, float]] = []

    def sample(self, now: float, integral: float) -> None:
        """Remember the sum, no earlier than the last one was."""
        samples = self._samples
        if len(samples) > 1 and samples[-2][1] == samples[-1][1] == integral:
            samples[-1] = now, integral  # while nothing goes on, two samples tell it all
        else:
            samples.append((now, integral))
        # The newest sample that is not inside the window tells the sum at its beginning.
        while len(samples) > 1 and samples[1][0] <= now - self._longest:
            del samples[0]

    def average_rate(self, now: float, integral: float, window: float) -> float:
        """The growth per second over the last `window` seconds, more than 0; the sum is now `integral`."""
        self._longest = max(self._longest, window)
        return (integral - self._value_at(now - window, now, integral)) / window

    def covers_window(self, now: float, window: float) -> bool:
        """Whether a whole window is known."""
        return now - self._since >= window

    def _value_at(self, time: float, now: float, integral: float) -> float:
        """The sum at a time before now."""
        samples = self._samples
        after = bisect.bisect_left(samples, (time, -math.inf))
        if after == 0:
            return samples[0][1] if samples else integral
        start, low = samples[after - 1]
        end, high = samples[after] if after < len(samples) else (now, integral)
        return low + (high - low) * ((time - start) / (end - start))
