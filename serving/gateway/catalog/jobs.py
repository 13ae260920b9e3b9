"""Rules for jobs. Each works on a draft of the state; see the package.

A queued job ends at once; a started one is marked (by the state CANCELLING or by its record's `failure`), its
process stopped and cleaned up, then `end_stopped_job` ends it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from serving.errors import (
    AlreadyExists,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    field_error,
)
from serving.gateway.catalog.checks import check_etag, check_labels, update_mask_error
from serving.gateway.catalog.tuning_jobs import close_tuning_study
from serving.gateway.catalog.versions import create_version
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import (
    ChangeStamp,
    JobKindName,
    JobOutput,
    JobRecord,
    JobServer,
    TuningRecord,
    VersionRecord,
)
from serving.names import ModelName, check_job_id, check_project
from serving.resources import (
    Job,
    JobState,
    Operation,
    PredictionOutput,
    TrainingOutput,
    Version,
    VersionState,
    format_count,
    format_timestamp,
    resource_to_json,
    to_camel_case,
)

_CANCELLED_MESSAGE = "The job was cancelled."
_END_STATES = frozenset(state for state in JobState if state.is_terminal)


class SentJobFields(NamedTuple):
    """The input and the options of a new job as they were sent, to be shown unchanged."""

    input: Mapping[str, Any]
    options: Mapping[str, Any]


class PlannedVersion(NamedTuple):
    """A version that a job is to become."""

    model: ModelName
    version: Version


class NewJobRules(Protocol):
    """What a kind of job asks of a new one."""

    @property
    def name(self) -> JobKindName: ...

    def check_new_job(self, draft: StateDraft, job: Job) -> VersionRecord | None:
        """Check the input and the options; returns the version that the job uses, if any.

        Raises a ServingError.
        """

    def create_study(self, draft: StateDraft, stamp: ChangeStamp, record: JobRecord) -> TuningRecord | None:
        """Create the study of a new job that runs trials; None for all others. Raises a ServingError."""

    def get_priority(self, job: Job) -> int:
        """Jobs of a higher one start first."""

    def build_first_output(self, job: Job) -> JobOutput:
        """The output of a new job."""


def job_name(project: str, job: str) -> str:
    """Format the full name of a job; the API itself uses it in paths only."""
    return f"projects/{project}/jobs/{job}"


def create_job(
    draft: StateDraft,
    stamp: ChangeStamp,
    kind: NewJobRules,
    project: str,
    job: Job,
    *,
    sent: SentJobFields,
    most: int,
) -> JobRecord:
    """Queue a job of a kind; at most `most` jobs may be unfinished."""
    check_project(project)
    name = job_name(project, check_job_id(job.job_id, "job.job_id"))
    # First: whoever sends a job again gets ALREADY_EXISTS.
    if name in draft.jobs:
        raise field_error(AlreadyExists, "job.job_id", "A job with this id already exists.")
    check_labels(job.labels)
    version = kind.check_new_job(draft, job)
    if len(draft.job_index.unfinished) >= most:
        raise ResourceExhausted(
            f"{most} jobs wait or run already (setting queue_jobs). Wait until some have ended, or cancel "
            "some."
        )
    stored = Job(
        batch_options=job.batch_options,
        create_time=format_timestamp(stamp.now),
        etag=stamp.etag,
        job_id=job.job_id,
        labels=job.labels,
        prediction_input=job.prediction_input,
        state=JobState.QUEUED,
        training_input=job.training_input,
        training_options=job.training_options,
    )
    record = JobRecord(
        name=name,
        project=project,
        uid=stamp.token,
        number=draft.job_index.last_number + 1,
        kind=kind.name,
        job=stored,
        given=msgspec.Raw(msgspec.json.encode(sent.input)),
        options=msgspec.Raw(msgspec.json.encode(sent.options)),
        target=version.name if version else None,
        target_uid=version.uid if version else "",
        priority=kind.get_priority(job),
        cause=stamp.cause,
    )
    record = with_output(record, kind.build_first_output(job))
    record = msgspec.structs.replace(record, tuning=kind.create_study(draft, stamp, record))
    draft.put(record)
    return record


def get_job(state: CatalogState | StateDraft, name: str) -> JobRecord:
    """Raises NotFound."""
    if name not in state.jobs:
        raise NotFound(f'Field: name Error: The job "{name}" was not found.', field="name")
    return state.jobs[name]


def list_jobs(
    state: CatalogState, project: str, states: frozenset[str] | None = None
) -> Sequence[tuple[int, str]]:
    """The jobs of a project, newest first: the negatives of their numbers, with their names.

    Only those in one of `states`, unless that is None.
    """
    found = state.job_index.by_project.list_children(check_project(project))
    if states is None:
        return found
    if states.isdisjoint(_END_STATES):
        mine = (record for record in list_unfinished_jobs(state) if record.project == project)
        found = sorted((-record.number, record.name) for record in mine)
    return [key for key in found if state.jobs.get_state(key[1]) in states]


def render_job(record: JobRecord, position: int = 0) -> dict[str, Any]:
    """Render a job for responses, with the fields that were sent as they were sent.

    `position` is its position in the queue.
    """
    job = msgspec.structs.replace(record.job, job_position=format_count(position))
    built = {**resource_to_json(job), record.kind.input_field: record.sent_input}
    options = record.sent_options
    return built | ({record.kind.options_field: options} if options else {})


def list_queue_positions(state: CatalogState) -> dict[str, int]:
    """The positions of the queued jobs among those of their kind, by name, from 1."""
    queued = [record for record in list_unfinished_jobs(state) if record.job.state is JobState.QUEUED]
    counts: Counter[JobKindName] = Counter()
    places: dict[str, int] = {}
    for record in sorted(queued, key=lambda record: (-record.priority, record.number)):
        counts[record.kind] += 1
        places[record.name] = counts[record.kind]
    return places


def list_unfinished_jobs(state: CatalogState | StateDraft) -> list[JobRecord]:
    """The jobs that have not ended, oldest first."""
    return [state.jobs[name] for _, name in state.job_index.unfinished]


def is_ending(record: JobRecord) -> bool:
    """Whether the job ends as soon as its process is stopped and cleaned up."""
    return not record.has_ended and (bool(record.failure) or record.job.state is JobState.CANCELLING)


def find_used_version(state: CatalogState | StateDraft, record: JobRecord) -> VersionRecord | None:
    """Return the version that the job predicts with, None if it is gone."""
    version = state.versions.get(record.target) if record.target else None
    if version is None or version.uid != record.target_uid:
        return None
    return None if version.version.state is VersionState.DELETING else version


def update_job(
    draft: StateDraft, stamp: ChangeStamp, name: str, given: Job, mask: Sequence[str]
) -> JobRecord:
    """Change the fields in the mask: labels."""
    record = get_job(draft, name)
    check_etag(given.etag, record.job.etag)
    for path in mask:
        if to_camel_case(path) != "labels":
            raise update_mask_error(path, ("labels",))
    check_labels(given.labels)
    job = msgspec.structs.replace(record.job, labels=given.labels, etag=stamp.etag)
    return _put_if_changed(draft, msgspec.structs.replace(record, job=job))


def cancel_job(
    draft: StateDraft, stamp: ChangeStamp, name: str, reason: str = _CANCELLED_MESSAGE
) -> JobRecord:
    """Cancel a queued job at once; mark a started one as CANCELLING, unless it is ending already."""
    record = get_job(draft, name)
    if record.has_ended:
        raise field_error(FailedPrecondition, "name", f"The job has ended already: it is {record.job.state}.")
    if is_ending(record):
        return record
    if not record.attempt:
        return _end_job(draft, stamp, record, JobState.CANCELLED, reason)
    record = msgspec.structs.replace(record, cancellation=reason)
    return _put_if_changed(draft, _with_job(record, state=JobState.CANCELLING))


def fail_job(draft: StateDraft, stamp: ChangeStamp, name: str, reason: str) -> JobRecord:
    """Fail a queued job at once; mark a started one, to fail once it is cleaned up."""
    record = get_job(draft, name)
    if record.has_ended or is_ending(record):
        return record
    if not record.attempt:
        return _end_job(draft, stamp, record, JobState.FAILED, reason)
    return _put_if_changed(draft, msgspec.structs.replace(record, failure=reason))


# ---- an attempt, from its start to its end


def start_attempt(
    draft: StateDraft, stamp: ChangeStamp, name: str, output: JobOutput, server: JobServer | None = None
) -> JobRecord:
    """Begin the next attempt with this output, at a server of several, unless the job is ending."""
    record = get_job(draft, name)
    if record.has_ended or is_ending(record):
        return record
    record = _with_server(msgspec.structs.replace(record, attempt=record.attempt + 1), stamp, server)
    is_queued = record.job.state is JobState.QUEUED
    begun = _with_job(
        with_output(record, output),
        state=JobState.PREPARING if is_queued else record.job.state,
        start_time=record.job.start_time or format_timestamp(stamp.now),
    )
    return _put_if_changed(draft, begun)


def record_server(draft: StateDraft, stamp: ChangeStamp, name: str, server: JobServer | None) -> JobRecord:
    """Record which server of several works on a job from now on."""
    return _put_if_changed(draft, _with_server(get_job(draft, name), stamp, server))


def record_progress(
    draft: StateDraft, stamp: ChangeStamp, name: str, output: JobOutput | None, *, running: bool
) -> JobRecord:
    """Record the output of an attempt, if it has any; `running` once its preparations are over."""
    record = get_job(draft, name)
    record = record if output is None else with_output(record, output)
    if running and record.job.state is JobState.PREPARING:
        record = msgspec.structs.replace(record, run_time=record.run_time or stamp.now.isoformat())
        record = _with_job(record, state=JobState.RUNNING)
    return _put_if_changed(draft, record)


def record_lost_attempt(draft: StateDraft, _: ChangeStamp, name: str, reason: str, most: int) -> JobRecord:
    """Record that an attempt was lost; with the `most`-th one, the job is marked failing."""
    record = get_job(draft, name)
    record = msgspec.structs.replace(record, lost=record.lost + 1)
    if record.lost >= most and not is_ending(record):
        log = f"Its log tells more: pilotlight jobs stream-logs {record.job.job_id}"
        record = msgspec.structs.replace(record, failure=f"{most} attempts were lost. {reason} {log}")
    return _put_if_changed(draft, record)


def mark_succeeded(draft: StateDraft, stamp: ChangeStamp, name: str, output: JobOutput) -> JobRecord:
    """The results are complete: the job succeeds even if it was to be cancelled meanwhile."""
    return _end_job(draft, stamp, with_output(get_job(draft, name), output), JobState.SUCCEEDED)


def mark_succeeded_and_deploy(
    draft: StateDraft, stamp: ChangeStamp, name: str, output: JobOutput, planned: PlannedVersion, *, most: int
) -> Operation:
    """The same, and begin to create a version of the results; see `versions.create_version` for `most`.

    The version is created in the name of who submitted the job.
    """
    record = mark_succeeded(draft, stamp, name, output)
    stamp = dataclasses.replace(stamp, cause=record.cause)
    return create_version(draft, stamp, planned.model, planned.version, most=most)


def mark_failed(
    draft: StateDraft, stamp: ChangeStamp, name: str, message: str, output: JobOutput
) -> JobRecord:
    """Fail a job whose process reported a permanent error; it has left nothing behind."""
    record = with_output(get_job(draft, name), output)
    if is_ending(record):
        return _finish_record(draft, stamp, record, "")
    return _end_job(draft, stamp, record, JobState.FAILED, message)


def end_stopped_job(draft: StateDraft, stamp: ChangeStamp, name: str, note: str) -> JobRecord:
    """End a job that is ending; `note` is added to its message."""
    return _finish_record(draft, stamp, get_job(draft, name), note)


def _finish_record(draft: StateDraft, stamp: ChangeStamp, record: JobRecord, note: str) -> JobRecord:
    state = JobState.FAILED if record.failure else JobState.CANCELLED
    message = f"{record.failure or record.cancellation or _CANCELLED_MESSAGE} {note}".rstrip()
    return _end_job(draft, stamp, record, state, message)


def _end_job(
    draft: StateDraft, stamp: ChangeStamp, record: JobRecord, state: JobState, message: str = ""
) -> JobRecord:
    close_tuning_study(draft, stamp, record)
    ended = _with_job(
        record,
        state=state,
        error_message=message,
        end_time=format_timestamp(stamp.now),
        # Ended jobs are many, and shown as they were sent.
        prediction_input=None,
        batch_options=None,
        training_input=None,
        training_options=None,
    )
    return _put_if_changed(draft, msgspec.structs.replace(ended, failure="", cancellation=""))


def with_output(record: JobRecord, output: JobOutput) -> JobRecord:
    match output:
        case PredictionOutput():
            return _with_job(record, prediction_output=output)
        case TrainingOutput():
            return _with_job(record, training_output=output)


def _with_server(record: JobRecord, stamp: ChangeStamp, server: JobServer | None) -> JobRecord:
    if server is None:
        return record
    servers, since = record.servers, stamp.now.isoformat()
    if servers and servers[-1].id == server.id:
        # It may have another name since it was started again.
        servers, since = servers[:-1], servers[-1].since
    stay = JobServer(server.id, server.name, since, record.attempt)
    return msgspec.structs.replace(record, servers=(*servers, stay))


def _with_job(record: JobRecord, **changes: Any) -> JobRecord:
    return msgspec.structs.replace(record, job=msgspec.structs.replace(record.job, **changes))


def _put_if_changed(draft: StateDraft, record: JobRecord) -> JobRecord:
    if draft.jobs.get(record.name) != record:
        draft.put(record)
    return record
