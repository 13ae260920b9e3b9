"""Whether a trial is stopped before its end: pure functions of what has been measured. Imports nothing heavy.

Rules of the studies API; see `StoppingRule`. Studies with several metrics have no early stopping.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuning.optimal import find_sign, has_objectives
from tuning.study import Measurement, StoppingRule, Study, Trial

# The first report says too little.
_LEAST_MEASUREMENTS = 2
_LEAST_COMPLETED_MEDIAN = 2
_LEAST_COMPLETED_DECAY = 5
# Below this chance of beating the best trial, one is stopped by its decay curve.
_LEAST_CHANCE = 0.05
# Curves are fitted to at most so many points, and compared with those of the newest completed trials.
_FIT_POINTS, _FIT_TRIALS = 32, 32
# Greater scores are divided before they are fitted: their squares are no finite floats.
_MAX_SCORE = 1e100
# How fast a curve may approach its end: exponents of the position.
_DECAY_EXPONENTS = (0.25, 0.5, 1.0, 2.0)


def should_stop(study: Study, trials: Iterable[Trial], trial: Trial) -> bool:
    """Whether `trial`, which is at work, is unlikely to become the best. `trials` are all of the study."""
    stopping = EarlyStopping(study)
    for one in trials:
        if one.number != trial.number:
            stopping.add(one)
    return stopping.should_stop(trial)


class EarlyStopping:
    """Compares trials at work with those that are completed.

    What cannot change is computed once: the curves of completed trials, and the answer for a trial that has
    not reported since, as long as no other is completed.
    """

    def __init__(self, study: Study) -> None:
        self._study = study
        self._completed: dict[int, CompletedCurve] = {}
        self._answers: dict[int, tuple[tuple[Measurement, ...], bool]] = {}

    def add(self, trial: Trial) -> None:
        """Take note of a trial; of those that are completed with a value, others are of no matter."""
        final = trial.final
        if final is None or not has_objectives(self._study, trial):
            return
        metric = self._study.metrics[0]
        score = find_sign(metric) * final.values[metric.name]
        self._completed[trial.number] = CompletedCurve(score, read_curve(self._study, trial))
        self._answers.clear()

    def should_stop(self, trial: Trial) -> bool:
        """Whether `trial`, which is at work, is unlikely to become the best."""
        if self._study.stopping_rule is StoppingRule.NONE or len(self._study.metrics) != 1:
            return False
        known, answer = self._answers.get(trial.number, ((), False))
        if known is not trial.measurements:
            answer = self._compare(read_curve(self._study, trial))
            self._answers[trial.number] = trial.measurements, answer
        return answer

    def _compare(self, curve: Curve) -> bool:
        if len(curve.scores) < _LEAST_MEASUREMENTS:
            return False
        if self._study.stopping_rule is StoppingRule.MEDIAN:
            return _is_below_median(curve, [one.curve for one in self._completed.values()])
        return _has_no_chance(curve, self._completed)


@dataclass(frozen=True)
class Curve:
    """What a trial has reported: positions (steps or seconds) in order, and scores, greater is better."""

    positions: Sequence[float]
    scores: Sequence[float]

    @functools.cached_property
    def averages(self) -> Sequence[float]:
        """The means of the first score, of the first two, and so on."""
        means = [total / count for count, total in enumerate(itertools.accumulate(self.scores), 1)]
        if all(map(math.isfinite, means)):
            return means
        # The sum of huge scores is infinite: they are divided first.
        counts = range(1, len(self.scores) + 1)
        return [sum(score / count for score in self.scores[:count]) for count in counts]

    def average_until(self, position: float) -> float | None:
        """The mean of the scores up to a position."""
        count = bisect.bisect_right(self.positions, position)
        return self.averages[count - 1] if count else None

    def divide(self, unit: float) -> Curve:
        return Curve(self.positions, [score / unit for score in self.scores])

    def cut_after(self, position: float) -> Curve:
        count = bisect.bisect_right(self.positions, position)
        return Curve(self.positions[:count], self.scores[:count])

    def thin(self, count: int) -> Curve:
        """At most so many points, spread evenly from the first to the last."""
        size = len(self.scores)
        if size <= count:
            return self
        chosen = [index * (size - 1) // (count - 1) for index in range(count)]
        return Curve([self.positions[index] for index in chosen], [self.scores[index] for index in chosen])


@dataclass(frozen=True)
class CompletedCurve:
    """The final score of a trial, and how it came to that."""

    final: float
    curve: Curve


def read_curve(study: Study, trial: Trial) -> Curve:
    """The curve of the first metric."""
    metric = study.metrics[0]
    sign = find_sign(metric)
    measured = [one for one in trial.measurements if metric.name in one.values]
    if study.use_elapsed_time:
        measured.sort(key=lambda one: one.elapsed_seconds)
    positions = [one.elapsed_seconds if study.use_elapsed_time else float(one.step) for one in measured]
    return Curve(positions, [sign * one.values[metric.name] for one in measured])


# ---- median


def _is_below_median(curve: Curve, completed: Sequence[Curve]) -> bool:
    """Whether its best is worse than the median of the running averages of the completed, so far."""
    averages = [one.average_until(curve.positions[-1]) for one in completed]
    known = [average for average in averages if average is not None]
    if len(known) < _LEAST_COMPLETED_MEDIAN:
        return False
    # Halved first, as the sum of two huge averages would be infinite.
    median = statistics.median_low(known) / 2 + statistics.median_high(known) / 2
    return max(curve.scores) < median


# ---- decay curve


def _has_no_chance(curve: Curve, completed: Mapping[int, CompletedCurve]) -> bool:
    """Whether what its curve foretells is too far below the best final score. `completed` by number.

    How far a forecast may be from the truth is learnt from the completed trials: each is forecast from its
    curve up to the same position.
    """
    finals = [one.final for one in completed.values()]
    newest = [completed[number] for number in sorted(completed)[-_FIT_TRIALS:]]
    scores = itertools.chain(finals, curve.scores, *(one.curve.scores for one in newest))
    unit = max(1.0, max(map(abs, scores)) / _MAX_SCORE)
    curve, best = curve.divide(unit), max(finals, default=0.0) / unit
    curves = [(one.final / unit, one.curve.divide(unit)) for one in newest]
    long = [(final, one) for final, one in curves if len(one.scores) >= _LEAST_MEASUREMENTS]
    if len(long) < _LEAST_COMPLETED_DECAY:
        return False
    end = statistics.median(one.positions[-1] for _, one in long)
    now = curve.positions[-1]
    errors = []
    for final, one in long:
        seen = one.cut_after(now)
        if len(seen.scores) >= _LEAST_MEASUREMENTS:
            errors.append(final - forecast(seen, one.positions[-1]))
    if len(errors) < _LEAST_COMPLETED_DECAY:
        return False
    bias, spread = statistics.fmean(errors), statistics.stdev(errors) * math.sqrt(1.0 + 1.0 / len(errors))
    gap = best - (forecast(curve, max(end, now)) + bias)
    return (
        gap > 0
        and 0.5 * math.erfc(gap / (math.sqrt(2.0) * spread) if spread > 0 else math.inf) < _LEAST_CHANCE
    )


def forecast(curve: Curve, position: float) -> float:
    """The score at a later position, by the curve a + b t^-c that fits best; t counts mean steps from 1."""
    thin = curve.thin(_FIT_POINTS)
    start = thin.positions[0]
    unit = (thin.positions[-1] - start) / (len(thin.positions) - 1) or 1.0
    times = [1.0 + (one - start) / unit for one in thin.positions]
    target = 1.0 + (position - start) / unit
    fits = [
        _fit_decay([time**-exponent for time in times], thin.scores, target**-exponent)
        for exponent in _DECAY_EXPONENTS
    ]
    return min(fits)[1]


def _fit_decay(inputs: Sequence[float], scores: Sequence[float], target: float) -> tuple[float, float]:
    """The sum of the squared errors of the straight line that fits best, and its score at the target."""
    x, y = statistics.fmean(inputs), statistics.fmean(scores)
    variance = sum((one - x) ** 2 for one in inputs)
    slope = (
        sum((one - x) * (score - y) for one, score in zip(inputs, scores, strict=True)) / variance
        if variance > 0
        else 0.0
    )
    error = sum((score - y - slope * (one - x)) ** 2 for one, score in zip(inputs, scores, strict=True))
    return error, y + slope * (target - x)
