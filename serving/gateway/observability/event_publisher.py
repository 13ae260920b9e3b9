"""Tells readers of the event stream what the autoscaler decides, how nodes come and go, and what changes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any, Final

from autoscaler.pools import Node, NodeSpec, NodeState
from autoscaler.version_scaler import ScalingEvent
from serving.errors import sanitize_text
from serving.gateway.observability.event_stream import EventKind, EventStream, Occurrence
from serving.gateway.state.catalog_state import Commit
from serving.gateway.state.records import JobRecord, ModelRecord, OperationRecord, Record, VersionRecord
from serving.names import ModelName, VersionName, parse_model_or_version_name

Json = dict[str, Any]

# What models say of themselves has any length.
_MOST_CHARACTERS: Final = 500


class ChangeKind(enum.StrEnum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"


class EventPublisher:
    """`find_title` returns the name of a version that is scaled, by the key of its nodes, "" for another."""

    def __init__(self, stream: EventStream, find_title: Callable[[str], str]) -> None:
        self._stream = stream
        self._find_title = find_title
        # Of living nodes: their version may be deleted before they are gone.
        self._titles: dict[str, str] = {}

    def on_scaling_event(self, spec: NodeSpec, event: ScalingEvent) -> None:
        fields = {"version": spec.title, "nodes": event.nodes, "reason": _shorten(event.reason)}
        self._stream.publish(Occurrence(EventKind.SCALING, spec.title, fields))

    def on_node_changed(self, node: Node) -> None:
        if node.state is NodeState.STARTING:
            self._titles[node.id] = self._find_title(node.key)
        title = self._titles.get(node.id, "")
        if node.state is NodeState.GONE:
            self._titles.pop(node.id, None)
        if not title:
            return
        fields: Json = {"version": title, "node": node.id, "state": node.state.value, "forked": node.forked}
        if node.reason:
            fields["reason"] = _shorten(node.reason)
        self._stream.publish(Occurrence(EventKind.NODE, title, fields))

    def on_commit(self, commit: Commit) -> None:
        for occurrence in find_occurrences(commit):
            self._stream.publish(occurrence)


def find_occurrences(commit: Commit) -> Iterator[Occurrence]:
    """What a commit changes of models, versions, operations and jobs.

    That a version is used is no change of it, and what is forgotten after its time no deletion.
    """
    before = commit.before
    for (table, text), after in commit.changes.items():
        match table:
            case "models" | "versions":
                yield from _describe_deployable(commit, parse_model_or_version_name(text), after)
            case "operations" if isinstance(after, OperationRecord):
                yield from _describe_operation(before.operations.get(text), after)
            case "jobs" if isinstance(after, JobRecord):
                yield from _describe_job(before.jobs.get(text), after)


def _describe_deployable(
    commit: Commit, name: ModelName | VersionName, after: Record | None
) -> Iterator[Occurrence]:
    known = commit.before
    before = known.versions.get(name) if isinstance(name, VersionName) else known.models.get(name)
    change = (
        ChangeKind.CREATED if before is None else ChangeKind.DELETED if after is None else ChangeKind.CHANGED
    )
    match before, after:
        case (VersionRecord() as old, VersionRecord() as new) if _get_shown(old) == _get_shown(new):
            return
        case (_, VersionRecord() as version) | (VersionRecord() as version, None):
            yield Occurrence(EventKind.VERSION, str(name), _render_version(version, change))
        case (_, ModelRecord() as model) | (ModelRecord() as model, None):
            yield Occurrence(EventKind.MODEL, str(name), _render_model(model, change))


def _get_shown(record: VersionRecord) -> tuple[object, ...]:
    """What of a version makes news; its last use and the measurements of its nodes do not."""
    version = record.version
    return record.uid, version.etag, version.state, version.error_message


def _render_version(record: VersionRecord, change: ChangeKind) -> Json:
    version = record.version
    fields: Json = {"version": str(record.name), "change": change.value}
    if version.state is not None:
        fields["state"] = version.state.value
    if version.error_message:
        fields["errorMessage"] = _shorten(version.error_message)
    return fields


def _render_model(record: ModelRecord, change: ChangeKind) -> Json:
    fields: Json = {"model": str(record.name), "change": change.value}
    if record.default:
        fields["defaultVersion"] = f"{record.name}/versions/{record.default}"
    return fields


def _describe_operation(before: OperationRecord | None, after: OperationRecord) -> Iterator[Occurrence]:
    operation = after.operation
    if before is not None and _get_progress(before) == _get_progress(after):
        return
    metadata = operation.metadata
    target = str(after.target) if after.target is not None else metadata.model_name
    fields: Json = {"operation": after.name, "type": metadata.operation_type, "done": operation.done}
    if target:
        fields["target"] = target
    if metadata.phase:
        fields["phase"] = metadata.phase
    if operation.error is not None:
        fields["errorMessage"] = _shorten(operation.error.message)
    yield Occurrence(EventKind.OPERATION, after.name, fields, target)


def _get_progress(record: OperationRecord) -> tuple[bool, str]:
    return record.operation.done, record.operation.metadata.phase


def _describe_job(before: JobRecord | None, after: JobRecord) -> Iterator[Occurrence]:
    job = after.job
    if job.state is None or (before is not None and before.job.state is job.state):
        return
    fields: Json = {"job": after.name, "state": job.state.value}
    if job.error_message:
        fields["errorMessage"] = _shorten(job.error_message)
    yield Occurrence(EventKind.JOB, after.name, fields)


def _shorten(text: str) -> str:
    return sanitize_text(text, _MOST_CHARACTERS)
