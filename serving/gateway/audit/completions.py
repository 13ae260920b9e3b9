"""Finds operations and jobs that a commit finishes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from serving.errors import RPC_CODES
from serving.gateway.audit.log_entry import OK_STATUS, AuditedCall, AuditLogType, CallStatus
from serving.gateway.request_context import ChangeCause
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import JobRecord, OperationRecord
from serving.gateway.state.store import Changes
from serving.resources import JobState

_METHOD_IDS: Mapping[str, str] = {
    "CREATE_VERSION": "projects.models.versions.create",
    "DELETE_VERSION": "projects.models.versions.delete",
}


@dataclass(frozen=True, slots=True)
class AuditedCompletion:
    """The end of the work that a call began, and the name of its operation or job."""

    call: AuditedCall
    status: CallStatus
    operation: str


def find_completions(before: CatalogState, changes: Changes) -> Iterator[AuditedCompletion]:
    """The operations and jobs that were unfinished before the changes and are finished after them.

    Those without a recorded cause began before there was an audit log, and are skipped.
    """
    for (_, name), record in changes.items():
        match record:
            case OperationRecord(cause=ChangeCause() as cause) if record.operation.done:
                known = before.operations.get(name)
                if known is not None and not known.operation.done:
                    yield _build_operation_completion(record, cause)
            case JobRecord(cause=ChangeCause() as cause) if record.has_ended:
                started = before.jobs.get(name)
                if started is not None and not started.has_ended:
                    yield _build_job_completion(record, cause)


def _build_operation_completion(record: OperationRecord, cause: ChangeCause) -> AuditedCompletion:
    operation = record.operation
    method = _METHOD_IDS[operation.metadata.operation_type]
    status = CallStatus(operation.error.code, operation.error.message) if operation.error else OK_STATUS
    return AuditedCompletion(_build_call(cause, method, str(record.target)), status, record.name)


def _build_job_completion(record: JobRecord, cause: ChangeCause) -> AuditedCompletion:
    codes = {JobState.FAILED: RPC_CODES["FAILED_PRECONDITION"], JobState.CANCELLED: RPC_CODES["CANCELLED"]}
    code = codes.get(record.job.state, 0) if record.job.state else 0
    status = CallStatus(code, record.job.error_message) if code else OK_STATUS
    return AuditedCompletion(_build_call(cause, "projects.jobs.create", record.name), status, record.name)


def _build_call(cause: ChangeCause, method: str, resource: str) -> AuditedCall:
    return AuditedCall(
        id=cause.call,
        log=AuditLogType.ACTIVITY,
        method=method,
        resource=resource,
        principal=cause.principal,
        request_id=cause.request_id,
    )
