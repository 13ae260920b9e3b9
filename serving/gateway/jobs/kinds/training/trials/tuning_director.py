"""Runs the trials of tuning jobs, and finds what has come of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from serving.errors import FailedPrecondition, NotFound
from serving.gateway.catalog import Catalog
from serving.gateway.catalog.job_checks.tuning_checks import read_plan
from serving.gateway.catalog.tuning_jobs import find_tuning_study, iter_own_trials
from serving.gateway.jobs.kinds.training.trials.order_pipe import OrderPipe
from serving.gateway.jobs.kinds.training.trials.tuning_loop import SuggestPoints, TuningLoop
from serving.gateway.jobs.kinds.training.trials.tuning_output import TrialsOfJob
from serving.gateway.state.records import JobRecord, TuningRecord
from serving.resources import HyperparameterSpec, TrainingInput
from training.messages import TrialReport, TrialSettings
from tuning.decide import TuningPlan

# Stands for the trial with the best value.
BEST_TRIAL = "best"


class TuningAttempt(Protocol):
    """A supervisor at work; it is given orders by the pipe in `trial_settings`."""

    on_trial: Callable[[TrialReport], None]

    @property
    def trial_settings(self) -> TrialSettings | None:
        """None for jobs without trials."""


class TuningDirector:
    """`suggest_points` is asked for the parameters of new trials."""

    def __init__(self, catalog: Catalog, suggest_points: SuggestPoints) -> None:
        self._catalog = catalog
        self._suggest_points = suggest_points

    async def run_trials(self, record: JobRecord, attempt: TuningAttempt) -> None:
        """Run what is left of a job's trials, until its end is ordered. Raises OSError."""
        if record.tuning is None or attempt.trial_settings is None:
            return
        loop = TuningLoop(
            self._catalog,
            self._suggest_points,
            OrderPipe(Path(attempt.trial_settings.orders)).send,
            study=record.tuning.study,
            job=record.name,
            plan=_build_plan(record, record.tuning, len(attempt.trial_settings.slots)),
        )
        attempt.on_trial = loop.add_report
        await loop.run()

    def find_trials(self, record: JobRecord) -> TrialsOfJob | None:
        """None for jobs without trials, or without those that were deleted."""
        snapshot = find_tuning_study(self._catalog.state, record)
        if snapshot is None:
            return None
        return TrialsOfJob(snapshot.record.study, list(iter_own_trials(self._catalog.state, record)))

    def find_trial_number(self, record: JobRecord, trial: str) -> int:
        """The number of a trial, which may be "best". Raises NotFound, FailedPrecondition."""
        found = self.find_trials(record)
        if found is None:
            raise FailedPrecondition(f"{record.job.job_id} has no trials.")
        if trial != BEST_TRIAL:
            numbers = {str(one.number): one for one in found.trials}
            if trial not in numbers:
                raise NotFound(f"{record.job.job_id} has no trial {trial!r}.")
            return numbers[trial].number
        best = found.find_best()
        if best is None:
            raise FailedPrecondition(f"No trial of {record.job.job_id} has succeeded.")
        return best.number


def _build_plan(record: JobRecord, tuning: TuningRecord, parallel: int) -> TuningPlan:
    spec = (record.job.training_input or TrainingInput()).hyperparameters or HyperparameterSpec()
    plan = read_plan(spec)
    return msgspec.structs.replace(plan, max_parallel=parallel, first_number=tuning.first_trial)
