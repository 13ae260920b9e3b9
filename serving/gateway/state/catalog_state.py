"""The state of the catalog: all records and their indexes.

A `CatalogState` is immutable; a rule changes a `StateDraft` of it, and the store writes the draft's changes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from serving.gateway.state.job_map import JobMap
from serving.gateway.state.persistent_map import PersistentMap
from serving.gateway.state.record_indexes import JobIndex, OperationIndex
from serving.gateway.state.records import (
    JobRecord,
    ModelRecord,
    OperationRecord,
    PolicyRecord,
    Record,
    VersionRecord,
)
from serving.gateway.state.sorted_index import SortedIndex
from serving.gateway.state.study_records import (
    StudyOperationRecord,
    StudyRecord,
    StudySnapshot,
    TrialRecord,
)
from serving.names import ModelName, StudyName, VersionName, parse_model_or_version_name


@dataclass(frozen=True)
class CatalogState:
    """The whole catalog, by full resource name."""

    models: Mapping[ModelName, ModelRecord] = field(default_factory=dict)
    versions: Mapping[VersionName, VersionRecord] = field(default_factory=dict)
    operations: Mapping[str, OperationRecord] = field(default_factory=dict)
    jobs: JobMap = field(default_factory=lambda: JobMap.from_mapping({}))
    policies: Mapping[str, PolicyRecord] = field(default_factory=dict)
    studies: Mapping[StudyName, StudySnapshot] = field(default_factory=dict)

    @cached_property
    def model_order(self) -> SortedIndex[str, ModelName]:
        return SortedIndex.from_names(self.models, operator.attrgetter("project"))

    @cached_property
    def version_order(self) -> SortedIndex[ModelName, VersionName]:
        return SortedIndex.from_names(self.versions, operator.attrgetter("parent"))

    @cached_property
    def study_order(self) -> SortedIndex[str, StudyName]:
        return SortedIndex.from_names(self.studies, operator.attrgetter("project"))

    @cached_property
    def job_index(self) -> JobIndex:
        return JobIndex.from_jobs(self.jobs.values())

    @cached_property
    def operation_index(self) -> OperationIndex:
        return OperationIndex.from_operations(self.operations.values())

    @cached_property
    def sorted_versions(self) -> Sequence[VersionRecord]:
        """All versions, sorted by name."""
        return tuple(
            self.versions[name]
            for project in sorted({name.project for name in self.models})
            for model in self.model_order.list_children(project)
            for name in self.version_order.list_children(model)
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """A change that is on disk: the state before it, the state after it, and the records that differ.

    `changes` maps (table, name) to the new record, or to None if it was deleted.
    """

    before: CatalogState
    after: CatalogState
    changes: Mapping[tuple[str, str], Record | None]

    @classmethod
    def from_state(cls, state: CatalogState) -> Commit:
        """The commit from an empty state to this one; it has no jobs that have ended.

        Of studies it has no trials and operations.
        """
        tables: dict[str, Mapping[Any, Record]] = {
            "models": state.models,
            "versions": state.versions,
            "operations": state.operations,
            "jobs": {name: state.jobs[name] for _, name in state.job_index.unfinished},
            "policies": state.policies,
            "studies": {name: snapshot.record for name, snapshot in state.studies.items()},
        }
        everything = (
            (table, name, record) for table, records in tables.items() for name, record in records.items()
        )
        return cls(CatalogState(), state, {(table, str(name)): record for table, name, record in everything})

    def iter_changed_versions(self) -> Iterator[tuple[VersionRecord | None, VersionRecord | None]]:
        """The versions that differ: before (None: new), after (None: deleted)."""
        for table, text in self.changes:
            name = parse_model_or_version_name(text) if table == "versions" else None
            if isinstance(name, VersionName):
                yield self.before.versions.get(name), self.after.versions.get(name)


class StateDraft:
    """A mutable copy of a state.

    `changes` maps (table, name) to the new record, or to None if it is deleted.
    """

    def __init__(self, state: CatalogState) -> None:
        self.model_order = state.model_order
        self.version_order = state.version_order
        self.study_order = state.study_order
        self.job_index = state.job_index
        self.operation_index = state.operation_index
        self.models = PersistentMap.from_mapping(state.models)
        self.versions = PersistentMap.from_mapping(state.versions)
        self.operations = PersistentMap.from_mapping(state.operations)
        self.jobs = state.jobs
        self._policies_before = state.policies
        self.policies = PersistentMap.from_mapping(state.policies)
        self.studies = PersistentMap.from_mapping(state.studies)
        self.changes: dict[tuple[str, str], Record | None] = {}

    def put(self, record: Record) -> None:
        table = TABLES[type(record)]
        if isinstance(record, StudyRecord | TrialRecord | StudyOperationRecord):
            self._put_in_study(record)
            self.changes[table, str(record.name)] = record
            return
        records: Any = getattr(self, table)
        self._update_indexes(records.get(record.name), record)
        setattr(self, table, records.with_item(record.name, record))
        self.changes[table, str(record.name)] = record

    def delete(self, record: Record) -> None:
        """Delete a record; with a study its trials and operations."""
        table = TABLES[type(record)]
        if isinstance(record, StudyRecord | TrialRecord | StudyOperationRecord):
            self._delete_from_study(record)
            self.changes[table, str(record.name)] = None
            return
        records: Any = getattr(self, table)
        self._update_indexes(records[record.name], None)
        setattr(self, table, records.without_item(record.name))
        self.changes[table, str(record.name)] = None

    def _put_in_study(self, record: StudyRecord | TrialRecord | StudyOperationRecord) -> None:
        match record:
            case StudyRecord(name=name) if name not in self.studies:
                self.study_order = self.study_order.with_name(name.project, name)
                snapshot = StudySnapshot(record)
            case StudyRecord(name=name):
                snapshot = self.studies[name].with_record(record)
            case TrialRecord(study=name, trial=trial):
                snapshot = self.studies[name].with_trial(trial)
            case StudyOperationRecord(study=name):
                snapshot = self.studies[name].with_operation(record)
        self.studies = self.studies.with_item(name, snapshot)

    def _delete_from_study(self, record: StudyRecord | TrialRecord | StudyOperationRecord) -> None:
        match record:
            case StudyRecord(name=name):
                snapshot = self.studies[name]
                numbers = (*snapshot.open_trials, *snapshot.packed_trials)
                self.changes |= {("trials", name.format_trial_name(number)): None for number in numbers}
                self.changes |= {("study_operations", one.name): None for one in snapshot.operations.values()}
                self.study_order = self.study_order.without_name(name.project, name)
                self.studies = self.studies.without_item(name)
            case TrialRecord(study=name, trial=trial):
                self.studies = self.studies.with_item(name, self.studies[name].without_trial(trial.number))
            case StudyOperationRecord(study=name, number=number):
                self.studies = self.studies.with_item(name, self.studies[name].without_operation(number))

    def _update_indexes(self, before: Record | None, after: Record | None) -> None:
        match after or before:
            case JobRecord():
                self.job_index = self.job_index.with_change(before, after)  # type: ignore[arg-type]
            case OperationRecord():
                self.operation_index = self.operation_index.with_change(before, after)  # type: ignore[arg-type]
            case ModelRecord(name=model) if before is None:
                self.model_order = self.model_order.with_name(model.project, model)
            case ModelRecord(name=model) if after is None:
                self.model_order = self.model_order.without_name(model.project, model)
            case VersionRecord(name=version) if before is None:
                self.version_order = self.version_order.with_name(version.parent, version)
            case VersionRecord(name=version) if after is None:
                self.version_order = self.version_order.without_name(version.parent, version)

    def to_state(self) -> CatalogState:
        # Unchanged policies stay the same object: caches of access decisions compare by identity.
        same = all(table != "policies" for table, _ in self.changes)
        policies = self._policies_before if same else self.policies
        state = CatalogState(self.models, self.versions, self.operations, self.jobs, policies, self.studies)
        vars(state).update(
            model_order=self.model_order,
            version_order=self.version_order,
            study_order=self.study_order,
            job_index=self.job_index,
            operation_index=self.operation_index,
        )
        return state


TABLES: Mapping[type[Record], str] = {
    ModelRecord: "models",
    VersionRecord: "versions",
    OperationRecord: "operations",
    JobRecord: "jobs",
    PolicyRecord: "policies",
    StudyRecord: "studies",
    TrialRecord: "trials",
    StudyOperationRecord: "study_operations",
}
