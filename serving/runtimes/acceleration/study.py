"""The study of a model: which of its faster ways are proven, and which is the fastest for how many rows.

Whatever is timed is compared too. What disturbs a measurement only ever adds to it, so the least of several
counts, and the ways take turns.
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

from serving.runtimes import Runtime, equality
from serving.runtimes.acceleration import Accelerable, Candidate, Offer, Predict, Unsuitable
from serving.runtimes.instances import Batch, Tensors, copied, count, take
from serving.runtimes.sampling import made_up

# Rows of a call; those that are measured in any case come first.
SIZES = (1, 256, 16, 64, 4, 2, 8, 32, 128)
_ALWAYS = 3
# A way is chosen only if it takes at most this part of the plain path's time.
_GAIN = 0.9
# Ways that take up to so many times as long as the fastest are as good, if that saves having several.
_NEAR = 1.25
# How rows are grouped for a candidate, besides all in one call.
_GROUPS = (1, 7, 64)
_ROUNDS, _FEWEST_ROUNDS = 7, 3
# Seconds for the rounds of one size, and for asking one candidate in small groups.
_PER_SIZE, _PER_GROUPING = 0.006, 0.02
_ROWS_TIMED = 512
_ROWS_REGROUPED = 64
_REQUESTS = 64

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of an offer: its candidate, or why it was refused."""

    offer: Offer
    candidate: Candidate | None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that a call of so many rows takes, by the name of the way; `plain` on the plain path."""

    rows: int
    plain: float
    ways: Mapping[str, float]

    @property
    def fastest(self) -> str:
        """The way that gains most, "" if none gains enough."""
        name = min(self.ways, key=self.ways.__getitem__, default="")
        return name if name and self.ways[name] <= _GAIN * self.plain else ""

    def nearly_fastest(self, wins: Mapping[str, int]) -> str:
        """Of the ways that come near the fastest the one with the most `wins`, "" if none gains enough."""
        fastest = self.fastest
        if not fastest:
            return ""
        limit = min(_NEAR * self.ways[fastest], _GAIN * self.plain)
        near = [name for name, seconds in self.ways.items() if seconds <= limit]
        return max(near, key=lambda name: (wins.get(name, 0), -self.ways[name]))


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of a study. `timings` are in the order of their rows.

    `spread` is how far the library differs from itself for typical rows, by output.
    """

    proofs: tuple[Proof, ...]
    timings: tuple[Timing, ...]
    spread: equality.Tolerance

    def chosen(self) -> Sequence[tuple[Timing, str]]:
        """The way for each size, "" for the plain path.

        Among ways that are nearly the fastest, the one that is the fastest for most sizes: each way that
        serves takes memory, and time at every start.
        """
        wins = Counter(timing.fastest for timing in self.timings)
        return [(timing, timing.nearly_fastest(wins)) for timing in self.timings]


class Studied(Accelerable, Runtime, Protocol):
    """What can be studied: a Runtime that knows faster ways."""


def study(
    runtime: Studied,
    *,
    without: Mapping[str, str] | None = None,
    budget: float = 2.0,
    tell: Tell = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Findings:
    """Build, prove and time what the runtime offers.

    `without` are offers not to be touched, with the reason. After `budget` seconds no more sizes are timed
    than a choice needs. `tell` hears the name of each offer before it is touched, and "" afterwards. Raises
    what the model raises for its own probes.
    """
    begun = clock()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # Extremes are meant to overflow.
        warnings.simplefilter("ignore")
        references = [_Reference.of(runtime, rows) for rows in _probes(runtime)]
        proofs = tuple(_tried(offer, references, without or {}, tell, clock) for offer in runtime.offers())
        proven = {proof.offer.name: proof.candidate for proof in proofs if proof.candidate is not None}
        rows = made_up(runtime, _ROWS_TIMED)
        typical = _Reference.of(runtime, references[0].rows if rows is None else rows)
        timings: list[Timing] = []
        for place, size in enumerate(SIZES if proven else ()):
            if place >= _ALWAYS and clock() - begun > budget:
                break
            timing, wrong = _timed(typical, proven, size, tell, clock)
            proofs = tuple(_corrected(proof, wrong) for proof in proofs)
            proven = {name: candidate for name, candidate in proven.items() if name not in wrong}
            timings.append(timing)
    known = sorted(
        (Timing(one.rows, one.plain, {name: one.ways[name] for name in proven}) for one in timings),
        key=lambda timing: timing.rows,
    )
    return Findings(proofs, tuple(known), typical.own)


@dataclass(frozen=True, slots=True)
class _Reference:
    """Rows with the library's answers to them, asked for in one call.

    `own` is how far the library differs from itself there, `allowed` what may differ from the answers.
    """

    plain: Predict
    rows: Batch
    answers: Batch
    own: equality.Tolerance
    allowed: equality.Tolerance

    @classmethod
    def of(cls, runtime: Studied, rows: Batch) -> _Reference:
        answers = runtime.plain(rows)
        own: equality.Tolerance = {}
        if not runtime.exact:
            some = _some(rows, _ROWS_REGROUPED)
            grouped = [equality.in_batches_of(runtime.plain, some, size) for size in equality.SIZES]
            own = equality.spread(grouped[0], grouped[1:])
        allowed = equality.tolerance(answers, own, exact=runtime.exact)
        return cls(runtime.plain, rows, answers, own, allowed)

    def difference(self, answers: Batch, found: Batch) -> str:
        """What differs by more than is allowed, "" if nothing does."""
        return equality.difference(answers, found, self.allowed)


def _probes(runtime: Studied) -> Iterator[Batch]:
    """What a candidate is held to: made-up rows, typical ones, and recorded requests without parameters."""
    yield from runtime.probes()
    typical = made_up(runtime, _ROWS_REGROUPED)
    if typical is not None:
        yield typical
    for rows, parameters in itertools.islice(runtime.warmup_requests(), _REQUESTS):
        if not parameters:
            yield rows


def _tried(
    offer: Offer,
    references: Sequence[_Reference],
    without: Mapping[str, str],
    tell: Tell,
    clock: Callable[[], float],
) -> Proof:
    if offer.name in without:
        return Proof(offer, None, without[offer.name])
    tell(offer.name)
    try:
        candidate = offer.build()
        for reference in references:
            if wrong := _disproof(candidate, reference, clock):
                return Proof(offer, None, wrong)
    except Unsuitable as error:
        return Proof(offer, None, str(error))
    except Exception as error:
        return Proof(offer, None, f"it raised {type(error).__name__}: {error}")
    finally:
        tell("")
    return Proof(offer, candidate)


def _disproof(candidate: Candidate, reference: _Reference, clock: Callable[[], float]) -> str:
    """Where a candidate is not equal to the library, in words; "" if it is not found to be anywhere."""
    rows = copied(reference.rows)
    if wrong := reference.difference(reference.answers, _answers(candidate, reference.plain, rows)):
        return wrong
    for size in _GROUPS:
        if wrong := _disproof_in_groups(candidate, reference, rows, size, clock):
            return wrong
    same = equality.difference(reference.rows, rows, equality.nothing(rows))
    return "" if not same else "it changes the rows that it is given"


def _disproof_in_groups(
    candidate: Candidate, reference: _Reference, rows: Batch, size: int, clock: Callable[[], float]
) -> str:
    """The same with rows in groups: these must be equal to the library's one call for all rows, or to its
    call for the same group."""
    until = clock() + _PER_GROUPING
    held: list[tuple[slice, Batch]] = []  # an answer must not change when the next is given
    for start in _spread_out(range(0, count(rows), size)):
        group = slice(start, start + size)
        held.append((group, _answers(candidate, reference.plain, take(rows, group))))
        if clock() > until:
            break
    for group, found in held:
        if reference.difference(take(reference.answers, group), found):
            plain = reference.plain(take(reference.rows, group))
            if wrong := reference.difference(plain, found):
                return f"{wrong} (rows {group.start} to {group.start + count(found) - 1} by themselves)"
    return ""


def _answers(candidate: Candidate, plain: Predict, rows: Batch) -> Batch:
    """The candidate's, or the library's where the candidate leaves these rows to it."""
    try:
        return candidate.predict(rows)
    except Unsuitable:
        return plain(rows)


def _timed(
    typical: _Reference,
    proven: Mapping[str, Candidate],
    size: int,
    tell: Tell,
    clock: Callable[[], float],
) -> tuple[Timing, Mapping[str, str]]:
    """How long calls of a size take, and what was found wrong on the way, by the name of the offer."""
    ways: dict[str, Predict] = {"": typical.plain}
    ways |= {name: candidate.predict for name, candidate in proven.items()}
    least = dict.fromkeys(ways, float("inf"))
    wrong: dict[str, str] = {}
    begun = clock()
    for round_, rows in enumerate(_calls(typical.rows, size)):
        if round_ >= _FEWEST_ROUNDS and clock() - begun > _PER_SIZE * len(ways):
            break
        expected: Batch | None = None
        for name, predict in ways.items():
            if name in wrong:
                continue
            tell(name)
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
            elif difference := typical.difference(expected, answer):
                wrong[name] = f"{difference} ({size} typical rows)"
    tell("")
    plain = least.pop("")
    return Timing(size, plain, least), wrong


def _calls(rows: Batch, size: int) -> Iterator[Batch]:
    """Rows for one round each, differing from round to round where there are enough."""
    there = count(rows)
    size = min(size, there)
    for round_ in range(_ROUNDS):
        start = round_ * size % (there - size + 1)
        yield take(rows, slice(start, start + size))


def _corrected(proof: Proof, wrong: Mapping[str, str]) -> Proof:
    name = proof.offer.name
    return Proof(proof.offer, None, wrong[name]) if name in wrong else proof


def _spread_out(starts: range) -> Iterable[int]:
    """All of them, so that the first few are from everywhere."""
    step = 16
    return (start for first in range(step) for start in starts[first::step])


def _some(rows: Batch, most: int) -> Batch:
    """Rows from everywhere, that many at most."""
    step = max(1, count(rows) // most)
    if isinstance(rows, dict):
        return {name: column[::step][:most] for name, column in rows.items()}
    return rows if isinstance(rows, Tensors) else rows[::step][:most]
