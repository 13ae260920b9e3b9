"""What clients see of the trials of a tuning job: `trainingOutput`."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from serving.gateway.catalog.job_checks.training_replicas import (
    ALGORITHMS,
    choose_algorithm_framework,
    find_algorithm,
)
from serving.resources import (
    BuiltInAlgorithmOutput,
    HyperparameterMetric,
    HyperparameterOutput,
    JobState,
    TrainingInput,
    TrainingOutput,
    format_count,
    format_timestamp,
)
from tuning.optimal import find_sign, sort_by_objective
from tuning.space import format_value
from tuning.study import Measurement, Study, Trial


@dataclass(frozen=True, slots=True)
class TrialsOfJob:
    """A study, and those of its trials that the job itself has run."""

    study: Study
    trials: Sequence[Trial]

    def find_best(self) -> Trial | None:
        return next(iter(sort_by_objective(self.study, self.trials)), None)

    def count_states(self) -> Mapping[str, int]:
        completed = [trial for trial in self.trials if trial.is_completed]
        failed = sum(trial.infeasible for trial in completed)
        return {
            "running": len(self.trials) - len(completed),
            "succeeded": len(completed) - failed,
            "failed": failed,
        }


def add_trials(output: TrainingOutput, given: TrainingInput, job: TrialsOfJob) -> TrainingOutput:
    """List the trials that have a value, the best first: clients sort by it, and expect it to be there.

    Of a trial that still runs it is the latest.
    """
    metric = job.study.metrics[0]
    sign = find_sign(metric)
    measured = [
        (found.values[metric.name], found, trial)
        for trial in job.trials
        if (found := _find_measurement(trial, metric.name)) is not None
    ]
    measured.sort(key=lambda one: (-sign * one[0], one[2].number))
    built = build_algorithm_output(given)
    return msgspec.structs.replace(
        output,
        completed_trial_count=format_count(_count_successes(job.trials)),
        trials=tuple(
            _build_trial_output(trial, found, value, given, built) for value, found, trial in measured
        ),
    )


def build_algorithm_output(given: TrainingInput) -> BuiltInAlgorithmOutput | None:
    """The model of a built-in algorithm, without its place; None for programs of users."""
    algorithm = find_algorithm(given)
    if algorithm is None:
        return None
    return BuiltInAlgorithmOutput(
        framework=choose_algorithm_framework(ALGORITHMS[algorithm], given.args),
        python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
    )


def _build_trial_output(
    trial: Trial,
    found: Measurement,
    value: float,
    given: TrainingInput,
    built: BuiltInAlgorithmOutput | None,
) -> HyperparameterOutput:
    path = f"{given.job_dir.rstrip('/')}/{trial.number}/model"
    is_done = trial.is_completed
    return HyperparameterOutput(
        trial_id=str(trial.number),
        hyperparameters={name: format_value(value) for name, value in trial.parameters.items()},
        final_metric=HyperparameterMetric(objective_value=value, training_step=str(found.step)),
        is_trial_stopped_early=trial.stopped_early,
        start_time=_format_time(trial.started_at),
        end_time=_format_time(trial.ended_at),
        state=JobState.SUCCEEDED if is_done else JobState.RUNNING,
        built_in_algorithm_output=(
            msgspec.structs.replace(built, model_path=path) if built is not None and is_done else None
        ),
    )


def _find_measurement(trial: Trial, name: str) -> Measurement | None:
    """The one that counts; None for failed trials and those that have measured nothing."""
    if trial.is_completed:
        return trial.final
    return next((one for one in reversed(trial.measurements) if name in one.values), None)


def _count_successes(trials: Iterable[Trial]) -> int:
    return sum(trial.is_completed and not trial.infeasible for trial in trials)


def _format_time(seconds: float) -> str:
    return format_timestamp(datetime.datetime.fromtimestamp(seconds, datetime.UTC)) if seconds else ""
