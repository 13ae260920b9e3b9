"""Studies and trials: frozen records, as they are stored. Imports nothing heavy."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from serving.errors import InvalidArgument
from tuning.space import SearchSpace, Value, check_space, count_points

# Of one trial; bytes as JSON.
MAX_MEASUREMENTS, MAX_MEASUREMENT_BYTES = 200, 1 << 16


class Goal(StrEnum):
    MAXIMIZE = "MAXIMIZE"
    MINIMIZE = "MINIMIZE"


class Algorithm(StrEnum):
    """How trials are chosen; by the names of the studies API."""

    GAUSSIAN_PROCESS_BANDIT = "GAUSSIAN_PROCESS_BANDIT"
    GRID_SEARCH = "GRID_SEARCH"
    RANDOM_SEARCH = "RANDOM_SEARCH"


class StoppingRule(StrEnum):
    """When a trial is stopped before its end; see `tuning.stopping`."""

    NONE = "NONE"
    MEDIAN = "MEDIAN"
    DECAY_CURVE = "DECAY_CURVE"


class TrialState(StrEnum):
    """REQUESTED: created by a client, not yet handed out. STOPPING: asked to end. COMPLETED is the last."""

    REQUESTED = "REQUESTED"
    ACTIVE = "ACTIVE"
    STOPPING = "STOPPING"
    COMPLETED = "COMPLETED"


class Metric(msgspec.Struct, frozen=True):
    name: str
    goal: Goal = Goal.MAXIMIZE


class Study(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`uid` tells it from all other studies, also from earlier ones of its name; it seeds suggestions.

    `use_elapsed_time`: the stopping rule goes by elapsed time instead of steps.
    """

    uid: str
    space: SearchSpace
    metrics: tuple[Metric, ...]
    algorithm: Algorithm = Algorithm.GAUSSIAN_PROCESS_BANDIT
    stopping_rule: StoppingRule = StoppingRule.NONE
    use_elapsed_time: bool = False
    seed: int = 0


def check_study(study: Study) -> None:
    """Raises InvalidArgument."""
    check_space(study.space)
    names = [metric.name for metric in study.metrics]
    if not names or "" in names:
        raise InvalidArgument("A study needs at least one metric, and each a name.")
    if len(set(names)) < len(names):
        raise InvalidArgument("Two metrics of the study have the same name.")
    if study.algorithm is Algorithm.GRID_SEARCH and count_points(study.space) is None:
        raise InvalidArgument("GRID_SEARCH has no parameters of kind DOUBLE: make them DISCRETE.")


class Measurement(msgspec.Struct, frozen=True, omit_defaults=True):
    """`values` by name of the metric, finite ones only."""

    step: int = 0
    elapsed_seconds: float = 0.0
    values: dict[str, float] = {}

    @property
    def position(self) -> tuple[int, float]:
        """Measurements of a trial are in this order."""
        return self.step, self.elapsed_seconds


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`number` counts from 1 within a study. `parameters` has the active ones.

    A trial that is COMPLETED either has a `final` measurement or is `infeasible`. A failed trial of a tuning
    job is infeasible, with the failure as the reason. Times are seconds since 1970, 0 for not yet.
    """

    number: int
    parameters: dict[str, Value]
    state: TrialState = TrialState.ACTIVE
    measurements: tuple[Measurement, ...] = ()
    final: Measurement | None = None
    client_id: str = ""
    infeasible: bool = False
    infeasible_reason: str = ""
    stopped_early: bool = False
    attempts: int = 0
    created_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0

    @property
    def is_completed(self) -> bool:
        return self.state is TrialState.COMPLETED


def keep_finite(values: dict[str, float]) -> dict[str, float]:
    """The values that a Measurement may have: JSON has no others."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def add_measurement(trial: Trial, measurement: Measurement) -> Trial:
    """Insert it in order; one with the same step and time is replaced.

    Of too many, those whose neighbours are nearest to each other are dropped.
    """
    kept = [one for one in trial.measurements if one.position != measurement.position]
    bisect.insort(kept, measurement, key=lambda one: one.position)
    while len(kept) > 2 and not can_keep(kept, MAX_MEASUREMENTS, MAX_MEASUREMENT_BYTES):
        del kept[
            min(range(1, len(kept) - 1), key=lambda index: _measure_gap(kept[index - 1], kept[index + 1]))
        ]
    return msgspec.structs.replace(trial, measurements=tuple(kept))


def can_keep(measurements: Sequence[Measurement], most: int, most_bytes: int) -> bool:
    """Whether they are at most so many, and take at most so many bytes: any metric may be measured."""
    return len(measurements) <= most and len(msgspec.json.encode(measurements)) <= most_bytes


def _measure_gap(one: Measurement, other: Measurement) -> tuple[int, float]:
    return other.step - one.step, other.elapsed_seconds - one.elapsed_seconds
