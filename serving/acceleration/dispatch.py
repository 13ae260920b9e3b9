"""The dispatcher that picks the fastest verified strategy for each call, until one proves wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from serving.acceleration.candidates import Predict, UnsuitableCandidate
from serving.runtimes import output_equality
from serving.runtimes.instance_batch import Batch, copy_batch, count_rows, take_rows

# Calls are classed by how often their rows can be halved: 1, 2 and 3, 4 to 7, ..., and all from 256 on.
_MAX_HALVINGS = 9
_ROWS_REGROUPED = 64


@dataclass(frozen=True, slots=True)
class SampledCall:
    rows: Batch
    answer: Batch


class FastPathDispatcher:
    """Predicts with the strategy for the number of rows, with the reference below the first of `strategies`.

    `strategies` are pairs of the least number of rows and a strategy, in ascending order. `library_spread`
    is how far the library differs from itself. `on_sample` is called, in the thread that predicts, when a
    call was kept to be compared; `on_withdrawn` with the reason, when a strategy proved wrong.
    """

    def __init__(
        self,
        predict_reference: Predict,
        strategies: Sequence[tuple[int, Predict]],
        *,
        exact: bool,
        library_spread: output_equality.Tolerance,
    ) -> None:
        self._predict_reference = predict_reference
        self._exact = exact
        self._library_spread = library_spread
        self._strategies = tuple(
            _choose_strategy(strategies, predict_reference, halvings) for halvings in range(_MAX_HALVINGS + 1)
        )
        self._is_sample_requested = False
        self._sample: SampledCall | None = None
        self.on_sample: Callable[[], None] = lambda: None
        self.on_withdrawn: Callable[[str], None] = lambda _: None

    def __call__(self, rows: Any, /) -> Batch:
        """Predicts rows that the library would accept."""
        halvings = count_rows(rows).bit_length()
        strategy = self._strategies[halvings if halvings < _MAX_HALVINGS else _MAX_HALVINGS]
        try:
            answer = strategy(rows)
        except UnsuitableCandidate:  # for these rows only
            return self._predict_reference(rows)
        except Exception as error:
            if strategy is self._predict_reference:
                raise
            answer = self._predict_reference(rows)  # raises too if the rows are at fault
            self.withdraw(f"it raised {type(error).__name__}: {error}")
        if self._is_sample_requested and strategy is not self._predict_reference:
            self._is_sample_requested = False
            self._sample = SampledCall(copy_batch(rows), copy_batch(answer))
            self.on_sample()
        return answer

    def request_sample(self) -> None:
        """Keeps the next call that the reference does not predict, to be compared."""
        self._is_sample_requested = True

    def compare_sample(self) -> str:
        """Compares the kept call with the reference; returns the difference in words, "" if there is none.

        To be called in the thread that predicts. A difference withdraws all strategies.
        """
        sample, self._sample = self._sample, None
        if sample is None:
            return ""
        try:
            expected = self._predict_reference(sample.rows)
            allowed = output_equality.compute_tolerance(
                expected, self._measure_library_spread(sample.rows, expected), exact=self._exact
            )
            difference = output_equality.describe_difference(expected, sample.answer, allowed)
        except Exception as error:
            difference = f"the library raises {type(error).__name__}: {error}"
        if difference:
            self.withdraw(difference)
        return difference

    def withdraw(self, reason: str) -> None:
        self.use_reference()
        self.on_withdrawn(reason)

    def use_reference(self) -> None:
        self._strategies = (self._predict_reference,) * len(self._strategies)
        self._is_sample_requested = False

    def _measure_library_spread(self, rows: Batch, answers: Batch) -> output_equality.Tolerance:
        """How far the library differs from itself, for typical rows and for these ones."""
        if self._exact or count_rows(rows) == 1:
            return self._library_spread
        first = slice(0, _ROWS_REGROUPED)
        single = output_equality.predict_in_batches(self._predict_reference, take_rows(rows, first), 1)
        spread = output_equality.measure_spread(take_rows(answers, first), [single])
        return {name: max(value, self._library_spread.get(name, 0.0)) for name, value in spread.items()}


def _choose_strategy(
    strategies: Sequence[tuple[int, Predict]], predict_reference: Predict, halvings: int
) -> Predict:
    """The strategy for calls of 2 ** (halvings - 1) rows and more."""
    rows = 1 << halvings >> 1
    return next((strategy for least, strategy in reversed(strategies) if least <= rows), predict_reference)
