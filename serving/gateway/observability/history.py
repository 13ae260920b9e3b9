"""What a version did in the last day, in less than 4 KiB.

Three rings have a slot for each second of ten minutes, each minute of an hour, each half hour of a day. A
figure is one byte: exact up to 20, then within 3 %. Latencies are in hundredths of a millisecond. Of a longer
slot, `p50` is the mean of its parts weighted by their requests, `p99` the highest of its parts.
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from serving.latency_histograms import BOUNDS

_EXACT, _MOST = 20, 1e7
_STEP = (_MOST / _EXACT) ** (1 / (255 - _EXACT))
_LEVELS = (*(float(level) for level in range(_EXACT)), *(_EXACT * _STEP**n for n in range(256 - _EXACT)))
_BORDERS = tuple((low + high) / 2 for low, high in pairwise(_LEVELS))
_UNITS_PER_SECOND = 100_000


@dataclass(frozen=True, slots=True)
class Grain:
    """A ring of `slots`, each of so many `seconds`."""

    seconds: int
    slots: int

    @property
    def window(self) -> int:
        """The seconds of all slots."""
        return self.seconds * self.slots

    def slot_end(self, at: int) -> int:
        """The end of the slot that has the second which ends at `at`."""
        return -(-at // self.seconds) * self.seconds

    def last_end(self, at: int) -> int:
        """The end of the last whole slot."""
        return at if self.seconds == 1 else self.slot_end(at) - self.seconds


GRAINS = (Grain(1, 600), Grain(60, 60), Grain(1800, 48))
# By what people call the time of all slots.
WINDOWS: Mapping[str, Grain] = dict(zip(("10m", "1h", "1d"), GRAINS, strict=True))
_WINDOW = GRAINS[-1].window
_FIELDS = 5
_OFFSETS = tuple(sum(grain.slots for grain in GRAINS[:index]) for index in range(len(GRAINS)))
_ALL_SLOTS = sum(grain.slots for grain in GRAINS)


class Figures(NamedTuple):
    """What a version did in some time: answers, those of them with a status of 400 or more, and latencies in
    seconds, 0 without an answer of a node; `nodes` were ready, the most at a time.
    """

    requests: float = 0
    errors: float = 0
    p50: float = 0.0
    p99: float = 0.0
    nodes: float = 0


_NOTHING = Figures()


class VersionHistory:
    """The figures of one version; times are whole seconds since the epoch, at the end of what they are of.

    `totals` is free for what writes it, to know how much came since the last time.
    """

    __slots__ = ("_cells", "_last", "totals")

    def __init__(self, now: int) -> None:
        self._cells = bytearray(_ALL_SLOTS * _FIELDS)
        self._last = now
        self.totals: array[int] | None = None

    @property
    def last_second(self) -> int:
        """When it was last written or read."""
        return self._last

    def record(self, now: int, figures: Figures) -> None:
        """Set the figures of the second that ends at `now`; earlier ones than the last are dropped."""
        if now >= self._last:
            self._advance(now)
            self._write(0, now, figures)

    def read(self, grain: Grain, now: int, count: int = 0) -> tuple[int, list[Figures]]:
        """When the first of the last `count` whole slots of a ring ends, and the figures of these, the oldest
        first; without a count those of all.
        """
        self._advance(max(now, self._last))
        index, end = GRAINS.index(grain), grain.last_end(self._last)
        first = end - ((count or grain.slots) - 1) * grain.seconds
        return first, [self._read(index, at) for at in range(first, end + 1, grain.seconds)]

    def _advance(self, now: int) -> None:
        """Fill the slots until `now`: nothing happened since the last time that is not written yet."""
        last, self._last = self._last, now
        if now - last >= _WINDOW:
            self._cells[:] = bytes(len(self._cells))
            return
        for index in range(1, len(GRAINS)):
            self._complete_slot(index, last, now)
        # After all of them: each is made of what is cleared now.
        self._clear(0, last + 1, now)
        for index, grain in enumerate(GRAINS[1:], 1):
            self._clear(index, grain.slot_end(last) + grain.seconds, grain.last_end(now))

    def _complete_slot(self, index: int, last: int, now: int) -> None:
        """Write the slot of a longer ring in which `last` was, if it has ended."""
        grain, finer = GRAINS[index], GRAINS[index - 1]
        end = grain.slot_end(last)
        if end > grain.last_end(now):
            return
        # Nothing happened after `last`: what the shorter ring has there is from an earlier round.
        parts = range(end - grain.seconds + finer.seconds, finer.slot_end(last) + 1, finer.seconds)
        self._write(index, end, combine_figures(self._read(index - 1, at) for at in parts))

    def _clear(self, index: int, first: int, last: int) -> None:
        """Empty the slots that end from `first` to `last`."""
        grain = GRAINS[index]
        for at in range(first, last + 1, grain.seconds)[-grain.slots :]:
            place = self._place(index, at)
            self._cells[place : place + _FIELDS] = bytes(_FIELDS)

    def _write(self, index: int, end: int, figures: Figures) -> None:
        requests, errors, p50, p99, nodes = figures
        place = self._place(index, end)
        self._cells[place : place + _FIELDS] = bytes(
            (
                _encode(requests),
                _encode(errors),
                _encode_latency(p50),
                _encode_latency(p99),
                _encode(nodes),
            )
        )

    def _read(self, index: int, end: int) -> Figures:
        place = self._place(index, end)
        cells = self._cells[place : place + _FIELDS]
        if not any(cells):
            return _NOTHING
        requests, errors, p50, p99, nodes = (_LEVELS[cell] for cell in cells)
        return Figures(requests, errors, p50 / _UNITS_PER_SECOND, p99 / _UNITS_PER_SECOND, nodes)

    def _place(self, index: int, end: int) -> int:
        grain = GRAINS[index]
        return (_OFFSETS[index] + end // grain.seconds % grain.slots) * _FIELDS


def estimate_quantile(counts: Sequence[int], share: float) -> float:
    """The latency in seconds below which this share of the requests is; `counts` are by `BOUNDS`.

    Within a bucket requests are taken to be spread evenly; those above all bounds count as the last one. 0
    without a request.
    """
    wanted, lower = sum(counts) * share, 0.0
    if not wanted:
        return 0.0
    for count, upper in zip(counts, BOUNDS, strict=False):
        if count and wanted <= count:
            return lower + (upper - lower) * wanted / count
        wanted, lower = wanted - count, upper
    return lower


def combine_figures(parts: Iterable[Figures]) -> Figures:
    """The figures of several slots as those of one."""
    happened = [part for part in parts if any(part)]
    requests = sum(part.requests for part in happened)
    answered = sum(part.requests for part in happened if part.p50)
    return Figures(
        requests,
        sum(part.errors for part in happened),
        sum(part.p50 * part.requests for part in happened) / answered if answered else 0.0,
        max((part.p99 for part in happened), default=0.0),
        max((part.nodes for part in happened), default=0),
    )


def _encode(value: float) -> int:
    return bisect(_BORDERS, value) if value else 0


def _encode_latency(seconds: float) -> int:
    """Never 0 for a latency: 0 means none."""
    return max(1, _encode(seconds * _UNITS_PER_SECOND)) if seconds else 0
