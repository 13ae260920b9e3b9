"""Verifies which candidates of a model equal the reference, and times them for several batch sizes.

Whatever is timed is compared too. Disturbances only ever add to a measured time, so the least of several
counts, and the strategies take turns.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from serving.acceleration.candidates import (
    AccelerableRuntime,
    BuiltCandidate,
    Candidate,
    Predict,
    UnsuitableCandidate,
)
from serving.runtimes import Runtime, output_equality
from serving.runtimes.instance_batch import Batch, WholeTensors, copy_batch, count_rows, take_rows
from serving.runtimes.output_equality import make_synthetic_batch

# Rows of a call; the sizes that are always measured come first.
TIMED_SIZES = (1, 256, 16, 64, 4, 2, 8, 32, 128)
_ALWAYS_TIMED = 3
# A candidate is chosen only if it takes at most this part of the reference's time.
_MAX_TIME_SHARE = 0.9
# Candidates that take up to so many times as long as the fastest are as good, if that saves having several.
_NEARLY_FASTEST = 1.25
# How rows are grouped for a candidate, besides all in one call.
_GROUP_SIZES = (1, 7, 64)
_MAX_ROUNDS, _MIN_ROUNDS = 7, 3
# Seconds for the rounds of one size, and for predicting with one candidate in small groups.
_SECONDS_PER_SIZE, _SECONDS_PER_GROUPING = 0.006, 0.02
_ROWS_TIMED = 512
_ROWS_REGROUPED = 64
_MAX_RECORDED_REQUESTS = 64

ReportCandidate = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """`built` is None for a candidate that was refused, `refused` says why."""

    candidate: Candidate
    built: BuiltCandidate | None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class SizeTiming:
    """Seconds that a call of so many rows takes: with the reference, and by the name of the candidate."""

    rows: int
    reference: float
    strategies: Mapping[str, float]

    @property
    def fastest(self) -> str:
        """The name of the candidate that gains most, "" if none gains enough."""
        name = min(self.strategies, key=self.strategies.__getitem__, default="")
        return name if name and self.strategies[name] <= _MAX_TIME_SHARE * self.reference else ""

    def choose_strategy(self, wins: Mapping[str, int]) -> str:
        """Of the candidates near the fastest the one with the most `wins`, "" if none gains enough."""
        fastest = self.fastest
        if not fastest:
            return ""
        limit = min(_NEARLY_FASTEST * self.strategies[fastest], _MAX_TIME_SHARE * self.reference)
        near = [name for name, seconds in self.strategies.items() if seconds <= limit]
        return max(near, key=lambda name: (wins.get(name, 0), -self.strategies[name]))


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """`timings` are in the order of their rows.

    `library_spread` is how far the library differs from itself for typical rows, by output.
    """

    proofs: tuple[CandidateResult, ...]
    timings: tuple[SizeTiming, ...]
    library_spread: output_equality.Tolerance

    def choose_strategies(self) -> Sequence[tuple[SizeTiming, str]]:
        """The name of the candidate for each size, "" for the reference.

        Among candidates that are nearly the fastest, the one that is the fastest for most sizes: each one in
        use takes memory, and time at every start.
        """
        wins = Counter(timing.fastest for timing in self.timings)
        return [(timing, timing.choose_strategy(wins)) for timing in self.timings]


class VerifiableRuntime(AccelerableRuntime, Runtime, Protocol):
    """A Runtime that has candidates."""


def verify_candidates(
    runtime: VerifiableRuntime,
    *,
    excluded: Mapping[str, str] | None = None,
    budget: float = 2.0,
    report: ReportCandidate = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> VerificationResult:
    """Builds, verifies and times the runtime's candidates.

    `excluded` are the names of candidates not to be touched, with the reason. After `budget` seconds no more
    sizes are timed than a choice needs. `report` is called with the name of each candidate before it is
    touched, and with "" afterwards. Raises what the model raises for its own verification rows.
    """
    begun = clock()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # Extreme values are meant to overflow.
        warnings.simplefilter("ignore")
        references = [ReferenceAnswers.compute(runtime, rows) for rows in _collect_rows(runtime)]
        proofs = tuple(
            _verify_candidate(candidate, references, excluded or {}, report, clock)
            for candidate in runtime.list_candidates()
        )
        proven = {proof.candidate.name: proof.built for proof in proofs if proof.built is not None}
        rows = make_synthetic_batch(runtime, _ROWS_TIMED)
        typical = ReferenceAnswers.compute(runtime, references[0].rows if rows is None else rows)
        timings: list[SizeTiming] = []
        for number, size in enumerate(TIMED_SIZES if proven else ()):
            if number >= _ALWAYS_TIMED and clock() - begun > budget:
                break
            timing, wrong = _time_size(typical, proven, size, report, clock)
            proofs = tuple(_mark_wrong(proof, wrong) for proof in proofs)
            proven = {name: built for name, built in proven.items() if name not in wrong}
            timings.append(timing)
    timings_of_proven = sorted(
        (
            SizeTiming(one.rows, one.reference, {name: one.strategies[name] for name in proven})
            for one in timings
        ),
        key=lambda timing: timing.rows,
    )
    return VerificationResult(proofs, tuple(timings_of_proven), typical.library_spread)


@dataclass(frozen=True, slots=True)
class ReferenceAnswers:
    """Rows with the library's answers to them, predicted in one call.

    `library_spread` is how far the library differs from itself there, `allowed` how far candidates may
    differ from the answers.
    """

    predict_reference: Predict
    rows: Batch
    answers: Batch
    library_spread: output_equality.Tolerance
    allowed: output_equality.Tolerance

    @classmethod
    def compute(cls, runtime: VerifiableRuntime, rows: Batch) -> ReferenceAnswers:
        answers = runtime.predict_reference(rows)
        library_spread: output_equality.Tolerance = {}
        if not runtime.exact:
            sample = _take_evenly(rows, _ROWS_REGROUPED)
            grouped = [
                output_equality.predict_in_batches(runtime.predict_reference, sample, size)
                for size in output_equality.BATCH_SIZES
            ]
            library_spread = output_equality.measure_spread(grouped[0], grouped[1:])
        allowed = output_equality.compute_tolerance(answers, library_spread, exact=runtime.exact)
        return cls(runtime.predict_reference, rows, answers, library_spread, allowed)

    def describe_difference(self, answers: Batch, found: Batch) -> str:
        """The difference beyond what is allowed, in words; "" if there is none."""
        return output_equality.describe_difference(answers, found, self.allowed)


def compute_typical_reference(runtime: VerifiableRuntime) -> ReferenceAnswers | None:
    """Typical rows with the library's answers, None if no rows can be made."""
    rows = make_synthetic_batch(runtime, _ROWS_REGROUPED)
    return None if rows is None else ReferenceAnswers.compute(runtime, rows)


def _collect_rows(runtime: VerifiableRuntime) -> Iterator[Batch]:
    """The runtime's verification rows, typical ones, and recorded requests without parameters."""
    yield from runtime.make_verification_rows()
    typical = make_synthetic_batch(runtime, _ROWS_REGROUPED)
    if typical is not None:
        yield typical
    for rows, parameters in itertools.islice(runtime.warmup_requests(), _MAX_RECORDED_REQUESTS):
        if not parameters:
            yield rows


def _verify_candidate(
    candidate: Candidate,
    references: Sequence[ReferenceAnswers],
    excluded: Mapping[str, str],
    report: ReportCandidate,
    clock: Callable[[], float],
) -> CandidateResult:
    if candidate.name in excluded:
        return CandidateResult(candidate, None, excluded[candidate.name])
    report(candidate.name)
    try:
        built = candidate.build()
        for reference in references:
            if wrong := find_difference(built.predict, reference, clock):
                return CandidateResult(candidate, None, wrong)
    except UnsuitableCandidate as error:
        return CandidateResult(candidate, None, str(error))
    except Exception as error:
        return CandidateResult(candidate, None, f"it raised {type(error).__name__}: {error}")
    finally:
        report("")
    return CandidateResult(candidate, built)


def find_difference(
    predict: Predict, reference: ReferenceAnswers, clock: Callable[[], float] = time.perf_counter
) -> str:
    """The difference between a candidate and the reference, in words; "" if none is found."""
    rows = copy_batch(reference.rows)
    if wrong := reference.describe_difference(
        reference.answers, _predict_or_fall_back(predict, reference.predict_reference, rows)
    ):
        return wrong
    for size in _GROUP_SIZES:
        if wrong := _find_difference_in_groups(predict, reference, rows, size, clock):
            return wrong
    change = output_equality.describe_difference(reference.rows, rows, output_equality.zero_tolerance(rows))
    return "it modifies its input" if change else ""


def _find_difference_in_groups(
    predict: Predict, reference: ReferenceAnswers, rows: Batch, size: int, clock: Callable[[], float]
) -> str:
    """The same with rows in groups: each must equal the library's one call for all rows, or its call for the
    same group."""
    until = clock() + _SECONDS_PER_GROUPING
    held: list[tuple[slice, Batch]] = []  # an answer must not change when the next is given
    for start in _interleave_starts(range(0, count_rows(rows), size)):
        group = slice(start, start + size)
        held.append(
            (group, _predict_or_fall_back(predict, reference.predict_reference, take_rows(rows, group)))
        )
        if clock() > until:
            break
    for group, found in held:
        if reference.describe_difference(take_rows(reference.answers, group), found):
            expected = reference.predict_reference(take_rows(reference.rows, group))
            if wrong := reference.describe_difference(expected, found):
                return f"{wrong} (rows {group.start} to {group.start + count_rows(found) - 1} by themselves)"
    return ""


def _predict_or_fall_back(predict: Predict, predict_reference: Predict, rows: Batch) -> Batch:
    try:
        return predict(rows)
    except UnsuitableCandidate:
        return predict_reference(rows)


def _time_size(
    typical: ReferenceAnswers,
    proven: Mapping[str, BuiltCandidate],
    size: int,
    report: ReportCandidate,
    clock: Callable[[], float],
) -> tuple[SizeTiming, Mapping[str, str]]:
    """How long calls of a size take, and which differences or errors came up, by the candidate's name."""
    strategies: dict[str, Predict] = {"": typical.predict_reference}
    strategies |= {name: built.predict for name, built in proven.items()}
    least = dict.fromkeys(strategies, float("inf"))
    wrong: dict[str, str] = {}
    begun = clock()
    for round_, rows in enumerate(_slice_calls(typical.rows, size)):
        if round_ >= _MIN_ROUNDS and clock() - begun > _SECONDS_PER_SIZE * len(strategies):
            break
        expected: Batch | None = None
        for name, predict in strategies.items():
            if name in wrong:
                continue
            report(name)
            start = clock()
            try:
                answer = predict(rows)
            except Exception as error:
                if not name:
                    raise
                wrong[name] = f"it raised {type(error).__name__}: {error}"
                continue
            least[name] = min(least[name], clock() - start)
            if expected is None:
                expected = answer
            elif difference := typical.describe_difference(expected, answer):
                wrong[name] = f"{difference} ({size} typical rows)"
    report("")
    reference = least.pop("")
    return SizeTiming(size, reference, least), wrong


def _slice_calls(rows: Batch, size: int) -> Iterator[Batch]:
    """Rows for each round, different ones in each round if there are enough."""
    available = count_rows(rows)
    size = min(size, available)
    for round_ in range(_MAX_ROUNDS):
        start = round_ * size % (available - size + 1)
        yield take_rows(rows, slice(start, start + size))


def _mark_wrong(proof: CandidateResult, wrong: Mapping[str, str]) -> CandidateResult:
    name = proof.candidate.name
    return CandidateResult(proof.candidate, None, wrong[name]) if name in wrong else proof


def _interleave_starts(starts: range) -> Iterable[int]:
    """All of them, in an order whose first few are spread over the whole range."""
    step = 16
    return (start for first in range(step) for start in starts[first::step])


def _take_evenly(rows: Batch, most: int) -> Batch:
    """Up to `most` rows, spread over the whole batch."""
    step = max(1, count_rows(rows) // most)
    if isinstance(rows, dict):
        return {name: column[::step][:most] for name, column in rows.items()}
    return rows if isinstance(rows, WholeTensors) else rows[::step][:most]
