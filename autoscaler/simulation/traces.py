"""When requests come: traces to replay, and three that are made up here.

A trace is known by its load, requests per second, or by its moments. Whatever is random comes from a
seed: the same seed gives the same trace on every machine.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
import random
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

_DAY = 24 * 3600
_HOUR = 3600.0

# (second, requests) in ascending order; a second that is not named has no requests.
LoadProfile = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class TrafficTrace:
    """When the requests for one version come.

    `moments` are in seconds from the start, ascending, none before 0 or after `seconds`, the trace's length.
    It is replayed from `shift` seconds on; what lies before that comes at the end. `cut` ends it early,
    counted from where it begins.
    """

    key: str
    moments: Sequence[float]
    seconds: float
    shift: float = 0.0
    cut: float = math.inf

    @property
    def length(self) -> float:
        """Seconds from the start to the end of the replay."""
        return min(self.seconds, self.cut)

    def iter_arrivals(self) -> Iterator[float]:
        """When requests come in the replay: seconds from its start, ascending."""
        first = bisect.bisect_left(self.moments, self.shift)
        late = self._shift_moments(range(first, len(self.moments)), -self.shift)
        early = self._shift_moments(range(first), self.seconds - self.shift)
        every = itertools.chain(late, early)
        return every if math.isinf(self.cut) else itertools.takewhile(lambda moment: moment < self.cut, every)

    def _shift_moments(self, places: range, seconds: float) -> Iterator[float]:
        """Some of the moments, so much later; not a slice, which would be a copy."""
        moments = map(self.moments.__getitem__, places)
        return map(operator.add, moments, itertools.repeat(seconds)) if seconds else moments

    def count_by_second(self) -> dict[int, int]:
        """Requests by second of the replay."""
        counts: dict[int, int] = {}
        for moment in self.iter_arrivals():
            second = int(moment)
            counts[second] = counts.get(second, 0) + 1
        return counts


def build_trace(key: str, load: LoadProfile, seconds: float, seed: str) -> TrafficTrace:
    """A trace with this load; the moment of a request within its second is drawn from `seed`."""
    random_ = random.Random(seed).random  # noqa: S311  nothing secret
    moments = array("d")
    for second, requests in load:
        if requests == 1:
            moments.append(second + random_())
        elif requests:
            moments.extend(sorted([second + random_() for _ in range(requests)]))
    return TrafficTrace(key, moments, seconds)


def replicate_trace(trace: TrafficTrace, versions: int) -> list[TrafficTrace]:
    """The trace once for each of so many versions, each beginning at another point of it."""
    return [
        replace(trace, key=f"{trace.key}-{number}", shift=trace.seconds * number / versions)
        for number in range(versions)
    ]


def generate_trace(name: str, seed: int) -> TrafficTrace:
    """One of the traces of `GENERATED`: one day."""
    load = GENERATED[name](random.Random(f"{name} {seed}"))  # noqa: S311
    return build_trace(name, load, _DAY, f"{seed} 0")


# ---- made-up traces; each is a day


def _office_hours_load(source: random.Random) -> LoadProfile:
    """People at work: from 8 to 18 o'clock up to 40 requests a second, fewer at noon, none at night."""
    return [(second, _draw_poisson(_office_rate(second / _HOUR), source)) for second in range(_DAY)]


def _office_rate(hour: float) -> float:
    if not 8 <= hour < 18:
        return 0.0
    day = math.sin(math.pi * (hour - 8) / 10)
    noon = math.exp(-(((hour - 12.5) / 0.75) ** 2))
    return 40.0 * math.sqrt(day) * (1 - 0.5 * noon)


def _bursty_load(source: random.Random) -> LoadProfile:
    """Somebody's scripts: 20 to 200 s with 20 to 400 requests a second, then 1 to 30 minutes nothing."""
    load: list[tuple[int, int]] = []
    second = 0
    while True:
        second += int(_draw_uniform(60, 1800, source))
        rate = _draw_uniform(20, 400, source)
        for _ in range(int(_draw_uniform(20, 200, source))):
            if second >= _DAY:
                return load
            load.append((second, _draw_poisson(rate, source)))
            second += 1


def _sparse_load(source: random.Random) -> LoadProfile:
    """Now and then a request: one in ten minutes on average, at any time of the day."""
    load = ((second, _draw_poisson(1 / 600, source)) for second in range(_DAY))
    return [(second, requests) for second, requests in load if requests]


# Each takes a source of chance and gives the load of a day.
GENERATED: Mapping[str, Callable[[random.Random], LoadProfile]] = {
    "office-hours": _office_hours_load,
    "bursty": _bursty_load,
    "sparse": _sparse_load,
}


def _draw_poisson(mean: float, source: random.Random) -> int:
    """A number of requests that come independently of each other, `mean` (below 700) on average."""
    floor, product, count = math.exp(-mean), source.random(), 0
    while product > floor:
        product *= source.random()
        count += 1
    return count


def _draw_uniform(low: float, high: float, source: random.Random) -> float:
    return low + (high - low) * source.random()
