"""Rules for operations: how they begin, report and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from serving.errors import InvalidArgument, NotFound
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.record_indexes import operation_sort_key
from serving.gateway.state.records import ChangeStamp, OperationRecord, VersionRecord
from serving.names import ModelName, VersionName, check_project
from serving.resources import Operation, OperationMetadata, RpcStatus, Version, format_timestamp

_TYPE_PREFIX = "type.googleapis.com/google.cloud.ml.v1."


def get_operation(state: CatalogState | StateDraft, name: str) -> OperationRecord:
    """Raises NotFound."""
    if name not in state.operations:
        raise NotFound(f'Field: name Error: The operation "{name}" was not found.', field="name")
    return state.operations[name]


def list_operations(state: CatalogState, project: str) -> Sequence[tuple[int, str]]:
    """The operations of a project, newest first, by `operation_sort_key`."""
    return state.operation_index.by_project.list_children(check_project(project))


def cancel_operation(draft: StateDraft, stamp: ChangeStamp, name: str) -> OperationRecord:
    """Request that the operation ends; a finished one stays as it is."""
    record = get_operation(draft, name)
    if not record.operation.done:
        metadata = msgspec.structs.replace(record.operation.metadata, is_cancellation_requested=True)
        record = msgspec.structs.replace(record, operation=with_metadata(record, metadata))
        draft.put(record)
    return record


def list_unfinished_operations(state: CatalogState) -> list[OperationRecord]:
    """The operations that a restarted server has to resume, in the order of their creation."""
    left = [record for record in state.operations.values() if not record.operation.done]
    return sorted(left, key=lambda record: operation_sort_key(record.name), reverse=True)


def enter_phase(draft: StateDraft, stamp: ChangeStamp, operation: str, phase: str) -> Operation:
    record = get_operation(draft, operation)
    metadata = record.operation.metadata
    metadata = msgspec.structs.replace(
        metadata, phase=phase, start_time=metadata.start_time or format_timestamp(stamp.now)
    )
    draft.put(msgspec.structs.replace(record, operation=with_metadata(record, metadata)))
    return draft.operations[operation].operation


def begin_operation(
    draft: StateDraft, stamp: ChangeStamp, target: VersionName, kind: str, version: Version
) -> Operation:
    record = _new_operation(draft, stamp, target, kind, msgspec.structs.replace(version, state=None))
    draft.put(record)
    return record.operation


def add_finished_operation(
    draft: StateDraft,
    stamp: ChangeStamp,
    target: ModelName | VersionName,
    kind: str,
    response: tuple[str, dict[str, Any]] | None,
) -> Operation:
    """Add an operation that is done as soon as it is requested."""
    return finish_operation(draft, stamp, _new_operation(draft, stamp, target, kind, None), response)


def finish_operation(
    draft: StateDraft,
    stamp: ChangeStamp,
    record: OperationRecord,
    response: tuple[str, dict[str, Any]] | None,
    error: RpcStatus | None = None,
) -> Operation:
    """Finish an operation with a response or an error."""
    kind, body = response or ("", {})
    typed = {"@type": _TYPE_PREFIX + kind if kind else "type.googleapis.com/google.protobuf.Empty", **body}
    metadata = msgspec.structs.replace(
        record.operation.metadata, end_time=format_timestamp(stamp.now), phase=""
    )
    operation = msgspec.structs.replace(
        record.operation, metadata=metadata, done=True, error=error, response={} if error else typed
    )
    draft.put(msgspec.structs.replace(record, operation=operation))
    return operation


def get_operation_with_version(draft: StateDraft, operation: str) -> tuple[OperationRecord, VersionRecord]:
    """Return an operation on a version, with that version."""
    record = get_operation(draft, operation)
    if record.target is None:
        raise InvalidArgument(f"{operation} does not work on a version.")
    return record, draft.versions[record.target]


def with_metadata(record: OperationRecord, metadata: OperationMetadata) -> Operation:
    return msgspec.structs.replace(record.operation, metadata=metadata)


def _new_operation(
    draft: StateDraft, stamp: ChangeStamp, target: ModelName | VersionName, kind: str, version: Version | None
) -> OperationRecord:
    ids = [target.model] + ([target.version] if isinstance(target, VersionName) else [])
    millis = int(stamp.now.timestamp() * 1000)
    prefix = f"projects/{target.project}/operations/{kind.split('_', maxsplit=1)[0].lower()}_{'_'.join(ids)}-"
    while f"{prefix}{millis}" in draft.operations:
        millis += 1
    metadata = OperationMetadata(
        create_time=format_timestamp(stamp.now),
        operation_type=kind,
        model_name=str(target.parent if isinstance(target, VersionName) else target),
        version=version,
    )
    return OperationRecord(
        cause=stamp.cause,
        name=f"{prefix}{millis}",
        project=target.project,
        operation=Operation(name=f"{prefix}{millis}", metadata=metadata),
        target=target if isinstance(target, VersionName) else None,
    )
