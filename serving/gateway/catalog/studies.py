"""Rules for studies. Each works on a draft of the state; see the package.

A study with a `job` belongs to that tuning job: rules that change it are given the job's name, which the API
does not give. So clients can read such a study, and delete it once the job has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from serving.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, field_error
from serving.gateway.catalog.checks import check_quota
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import ChangeStamp, JobRecord
from serving.gateway.state.study_records import StudyOperationRecord, StudyRecord, StudySnapshot
from serving.names import StudyName, check_location, check_project, check_study_id
from serving.resources import format_timestamp
from tuning.study import Study

# Bytes of a stored study without its trials.
_MAX_STUDY_BYTES = 1 << 18
# Digits of an operation's number.
_MAX_DIGITS = 18


def create_study(
    draft: StateDraft, stamp: ChangeStamp, name: StudyName, study: Study, *, most: int, job: str = ""
) -> StudySnapshot:
    """Add a study, if the project has less than `most`; 0: any number. Its uid is made here."""
    check_project(name.project)
    check_location(name.location)
    check_study_id(name.study, "study_id")
    if name in draft.studies:
        raise field_error(AlreadyExists, "study.name", "A study with the same name already exists.")
    check_quota(
        "max_studies_per_project", most, len(draft.study_order.list_children(name.project)), "studies"
    )
    record = StudyRecord(
        name=name,
        study=msgspec.structs.replace(study, uid=stamp.token),
        create_time=format_timestamp(stamp.now),
        job=job,
    )
    if len(msgspec.json.encode(record)) > _MAX_STUDY_BYTES:
        raise field_error(
            InvalidArgument,
            "study.study_config",
            f"It is larger than {_MAX_STUDY_BYTES >> 10} KiB. Give fewer parameters or values.",
        )
    draft.put(record)
    return draft.studies[name]


def get_study(state: CatalogState | StateDraft, name: StudyName, *, uid: str = "") -> StudySnapshot:
    """Whoever has waited gives the `uid` of the study as it was before: another may have its name by then.

    Raises NotFound.
    """
    snapshot = state.studies.get(name)
    if snapshot is None or uid not in ("", snapshot.record.study.uid):
        raise NotFound(f'Field: name Error: The study "{name}" was not found.', field="name")
    return snapshot


def get_writable_study(
    state: CatalogState | StateDraft, name: StudyName, job: str, *, uid: str = ""
) -> StudySnapshot:
    """A study that may be changed for this job, "" for the API. Raises NotFound, FailedPrecondition."""
    snapshot = get_study(state, name, uid=uid)
    owner = snapshot.record.job
    if owner != job:
        raise FailedPrecondition(
            f'The study "{name}" belongs to the job {owner}, which alone adds and ends its trials.'
            if owner
            else f'The study "{name}" belongs to no job.'
        )
    return snapshot


def list_studies(state: CatalogState, project: str, location: str) -> Sequence[StudySnapshot]:
    """The studies of a location, by name."""
    names = state.study_order.list_children(check_project(project))
    check_location(location)
    return [state.studies[name] for name in names if name.location == location]


def delete_study(draft: StateDraft, stamp: ChangeStamp, name: StudyName) -> None:
    """Delete a study with its trials, unless they are what has come of a job."""
    record = get_study(draft, name).record
    if record.job in draft.jobs:
        raise FailedPrecondition(
            f'The study "{name}" has the results of the job {record.job}, and is deleted with the job.'
        )
    draft.delete(record)


def delete_study_of_job(draft: StateDraft, job: JobRecord) -> None:
    """Delete the study of a job that is to be forgotten, if it has one: it has the job's id."""
    names = draft.study_order.list_children(job.project)
    for name in [name for name in names if name.study == job.job.job_id]:
        if draft.studies[name].record.job == job.name:
            draft.delete(draft.studies[name].record)


def get_study_operation(
    state: CatalogState, project: str, location: str, operation: str
) -> StudyOperationRecord:
    """An operation by its id, as `StudyOperationRecord.name` has it. Raises NotFound."""
    study, _, number = operation.rpartition("-")
    snapshot = state.studies.get(StudyName(project, location, study))
    is_number = number.isdecimal() and len(number) <= _MAX_DIGITS
    found = snapshot.operations.get(int(number)) if snapshot and is_number else None
    if found is None:
        name = f"projects/{project}/locations/{location}/operations/{operation}"
        raise NotFound(f'Field: name Error: The operation "{name}" was not found.', field="name")
    return found
