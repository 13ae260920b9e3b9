"""The way that serves: for each call the fastest one that is proven, until one of them is found wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from serving.runtimes import equality
from serving.runtimes.acceleration import Predict, Unsuitable
from serving.runtimes.instances import Batch, copied, count, take

# Calls are told apart by how often their rows can be halved: 1, 2 and 3, 4 to 7, ..., and all from 256 on.
_LAST = 9
_ROWS_REGROUPED = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """A call as it was answered."""

    rows: Batch
    answer: Batch


class Switch:
    """Answers calls in the way chosen for their number of rows, on the plain path below the first `ways`.

    `ways` are the least rows of a range, each with its way, in that order. `on_sample` is called, in the
    thread that predicts, when a call was taken that is to be compared; `on_withdrawn` with the reason, when
    a way was found wrong. `spread` is how far the library differs from itself.
    """

    def __init__(
        self,
        plain: Predict,
        ways: Sequence[tuple[int, Predict]],
        *,
        exact: bool,
        spread: equality.Tolerance,
    ) -> None:
        self._plain = plain
        self._exact = exact
        self._spread = spread
        self._ways = tuple(_way(ways, plain, halvings) for halvings in range(_LAST + 1))
        self._wanted = False
        self._sample: Sample | None = None
        self.on_sample: Callable[[], None] = lambda: None
        self.on_withdrawn: Callable[[str], None] = lambda _: None

    def __call__(self, rows: Any, /) -> Batch:
        """The predictions for rows that the library would find nothing wrong with."""
        halvings = count(rows).bit_length()
        way = self._ways[halvings if halvings < _LAST else _LAST]
        try:
            answer = way(rows)
        except Unsuitable:  # for these rows, which says nothing about others
            return self._plain(rows)
        except Exception as error:
            if way is self._plain:
                raise
            answer = self._plain(rows)  # which raises too, where it is the fault of the rows
            self.withdraw(f"it raised {type(error).__name__}: {error}")
        if self._wanted and way is not self._plain:
            self._wanted = False
            self._sample = Sample(copied(rows), copied(answer))
            self.on_sample()
        return answer

    def want(self) -> None:
        """Have the next call that goes a faster way kept, to be compared."""
        self._wanted = True

    def compare(self) -> str:
        """Ask the library for the call that was kept; returns what differs, "" if nothing does.

        In the thread that predicts. A difference withdraws all faster ways.
        """
        sample, self._sample = self._sample, None
        if sample is None:
            return ""
        try:
            expected = self._plain(sample.rows)
            allowed = equality.tolerance(expected, self._own(sample.rows, expected), exact=self._exact)
            words = equality.difference(expected, sample.answer, allowed)
        except Exception as error:
            words = f"the library raises {type(error).__name__}: {error}"
        if words:
            self.withdraw(words)
        return words

    def withdraw(self, reason: str) -> None:
        """Go the plain way from now on, and tell why."""
        self.go_plain()
        self.on_withdrawn(reason)

    def go_plain(self) -> None:
        """Go the plain way from now on."""
        self._ways = (self._plain,) * len(self._ways)
        self._wanted = False

    def _own(self, rows: Batch, answers: Batch) -> equality.Tolerance:
        """How far the library differs from itself, for typical rows and for these."""
        if self._exact or count(rows) == 1:
            return self._spread
        some = slice(0, _ROWS_REGROUPED)
        single = equality.in_batches_of(self._plain, take(rows, some), 1)
        here = equality.spread(take(answers, some), [single])
        return {name: max(value, self._spread.get(name, 0.0)) for name, value in here.items()}


def _way(ways: Sequence[tuple[int, Predict]], plain: Predict, halvings: int) -> Predict:
    """The way for calls of 2 ** (halvings - 1) rows and more."""
    rows = 1 << halvings >> 1
    return next((way for least, way in reversed(ways) if least <= rows), plain)
