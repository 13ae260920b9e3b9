"""The study of a tuning job: created with it, closed with it. Rules work on a draft; see the package."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from serving.errors import AlreadyExists, InvalidArgument, field_error
from serving.gateway.catalog.job_checks.tuning_checks import MAX_TRIALS, read_plan, read_study
from serving.gateway.catalog.studies import create_study
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import ChangeStamp, JobRecord, TuningRecord
from serving.gateway.state.study_records import StudySnapshot, StudyState, TrialRecord
from serving.names import StudyName
from serving.resources import HyperparameterSpec
from tuning.decide import TuningPlan
from tuning.study import Study, Trial, TrialState

_RESUME_FIELD = "training_input.hyperparameters.resume_previous_job_id"
_ENDED_REASON = "The job ended before the trial did."


def create_tuning_study(
    draft: StateDraft, stamp: ChangeStamp, record: JobRecord, region: str, given: HyperparameterSpec
) -> TuningRecord:
    """Create the study of a new job. Raises AlreadyExists, and InvalidArgument with the field."""
    name = StudyName(record.project, region, record.job.job_id)
    if name in draft.studies:
        raise field_error(
            AlreadyExists, "job.job_id", f"There is a study of this name: {name}. Choose another id."
        )
    study, plan = read_study(given), read_plan(given)
    previous = _find_previous(draft, record, given.resume_previous_job_id, study, plan)
    create_study(draft, stamp, name, study, most=0, job=record.name)
    if previous is None:
        return TuningRecord(name)
    trials = [trial for trial in previous.iter_trials() if trial.is_completed]
    snapshot, last = draft.studies[name], previous.record.last_trial
    draft.put(msgspec.structs.replace(snapshot.record, last_trial=last))
    for trial in trials:
        draft.put(TrialRecord(name, trial))
    return TuningRecord(name, last + 1)


def find_tuning_study(state: CatalogState | StateDraft, record: JobRecord) -> StudySnapshot | None:
    """The study of a job; None for jobs without trials, and when it was deleted after the job's end."""
    return state.studies.get(record.tuning.study) if record.tuning is not None else None


def iter_own_trials(state: CatalogState | StateDraft, record: JobRecord) -> Iterator[Trial]:
    """The trials that a job itself has run, without what they measured on their way."""
    snapshot = find_tuning_study(state, record)
    if snapshot is not None and record.tuning is not None:
        first = record.tuning.first_trial
        yield from (trial for trial in snapshot.iter_trials(measured=False) if trial.number >= first)


def close_tuning_study(draft: StateDraft, stamp: ChangeStamp, record: JobRecord) -> None:
    """Complete the study of a job, and the trials that it has not ended."""
    snapshot = find_tuning_study(draft, record)
    if snapshot is None:
        return
    draft.put(msgspec.structs.replace(snapshot.record, state=StudyState.COMPLETED))
    for trial in list(snapshot.open_trials.values()):
        closed = msgspec.structs.replace(
            trial,
            state=TrialState.COMPLETED,
            infeasible=True,
            infeasible_reason=_ENDED_REASON,
            ended_at=stamp.now.timestamp(),
        )
        draft.put(TrialRecord(snapshot.record.name, closed))


def _find_previous(
    draft: StateDraft, record: JobRecord, job_id: str, study: Study, plan: TuningPlan
) -> StudySnapshot | None:
    """The study of the job that a new one goes on with; None if it names none."""
    if not job_id:
        return None
    previous = draft.jobs.get(f"projects/{record.project}/jobs/{job_id}")
    snapshot = find_tuning_study(draft, previous) if previous is not None else None
    if previous is None or snapshot is None:
        raise field_error(InvalidArgument, _RESUME_FIELD, f"There is no tuning job {job_id!r} with trials.")
    if not previous.has_ended:
        raise field_error(
            InvalidArgument, _RESUME_FIELD, f"{job_id} has not ended yet: it is {previous.job.state}."
        )
    other = snapshot.record.study
    if (other.space, other.metrics) != (study.space, study.metrics):
        raise field_error(
            InvalidArgument,
            _RESUME_FIELD,
            f"{job_id} has other params, another goal or another hyperparameterMetricTag.",
        )
    if snapshot.record.last_trial + plan.max_trials > MAX_TRIALS:
        raise field_error(
            InvalidArgument,
            "training_input.hyperparameters.max_trials",
            f"Together with the {snapshot.record.last_trial} trials before, at most {MAX_TRIALS} can be run.",
        )
    return snapshot
