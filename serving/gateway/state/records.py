"""The records of the catalog: resources, and what only the server knows about them.

A `CatalogState` is immutable; a rule changes a `StateDraft` of it, and the store writes the draft's changes.
"""

from __future__ import annotations

import base64
import datetime
import enum
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from serving.gateway.access.policy import Policy
from serving.gateway.request_context import ChangeCause
from serving.gateway.state.persistent_map import PersistentMap
from serving.gateway.state.record_indexes import JobIndex, OperationIndex
from serving.gateway.state.sorted_index import SortedIndex
from serving.names import ModelName, VersionName, parse_model_or_version_name
from serving.resources import Job, Model, Operation, PredictionOutput, TrainingOutput, Version

JobOutput = PredictionOutput | TrainingOutput


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model; `default` is the id of its default version, "" while it has none."""

    name: ModelName
    model: Model
    default: str = ""


class DeploymentInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the first deployment found out about a version; later node starts use it.

    `merge`: rows of several requests may be computed in one call, with the libraries that `fingerprint`
    names. `exact`: regrouping rows must not change a bit of the outputs. `pilot` is the key of the one that
    imports what its nodes import, "" until it is known. `memory` (bytes) and `start_seconds` are of one node,
    0 until measured. `files_bytes` is the size of the model's files, `digest` their hash. `schema` is packed
    by `serving.model_schema`; it is "" for versions that are older than schemas until a node reports it.
    `interpreter` is the Python that computes the model, "" for the server's own. `bare`: its machine type at
    creation was one on which AI Platform returned a single output without its name. `image` is the id of its
    container's image.
    """

    model_dir: str
    digest: str = ""
    packages: tuple[str, ...] = ()
    framework: str = ""
    merge: bool = False
    fingerprint: str = ""
    exact: bool = False
    pilot: str = ""
    files_bytes: int = 0
    memory: int = 0
    start_seconds: float = 0.0
    schema: str = ""
    interpreter: str = ""
    bare: bool = False
    image: str = ""

    def answers_bare_output(self, single_output: str) -> bool:
        """Whether a single output is returned without its name, under the setting `single_output`."""
        return self.bare if single_output == "auto" else single_output == "bare"


class VersionUsage(NamedTuple):
    """What was measured of a version in use: `lastUseTime`, and its nodes as in `DeploymentInfo`."""

    last_use_time: str
    memory: int
    start_seconds: float


class VersionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version; `uid` distinguishes it from an earlier version of the same name."""

    name: VersionName
    uid: str
    version: Version
    deployed: DeploymentInfo | None = None


class OperationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation, the version that it changes, if any, and the call that began it."""

    name: str
    project: str
    operation: Operation
    target: VersionName | None = None
    cause: ChangeCause | None = None


class JobKindName(enum.StrEnum):
    """A kind of job, as the names of fields have it: `predictionInput`, `prediction_output`."""

    PREDICTION = "prediction"
    TRAINING = "training"

    @property
    def input_field(self) -> str:
        return f"{self}Input"

    @property
    def options_field(self) -> str:
        """The field of Pilotlight's own options."""
        return "batchOptions" if self is JobKindName.PREDICTION else "trainingOptions"


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job; `name` is `projects/P/jobs/ID`, `number` counts all jobs in the order of their creation.

    `given` and `options` are the input and the options of its kind as sent. `target` is the version it uses,
    if any; `target_uid` distinguishes that from a later one of the same name. `priority`: higher ones start
    first. `attempt` counts its processes from 1, `lost` those that ended without a result while the server
    ran. `run_time` is when it was RUNNING for the first time. `failure` is why the job fails, `cancellation`
    why it is cancelled, set while its files are still being removed. `cause` is the call that submitted it.
    """

    name: str
    project: str
    uid: str
    number: int
    kind: JobKindName = JobKindName.PREDICTION
    job: Job
    given: dict[str, Any]
    options: dict[str, Any] = {}
    target: VersionName | None = None
    target_uid: str = ""
    priority: int = 0
    attempt: int = 0
    lost: int = 0
    run_time: str = ""
    failure: str = ""
    cancellation: str = ""
    cause: ChangeCause | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the job is in a terminal state."""
        return self.job.state is not None and self.job.state.is_terminal


class PolicyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who may do what with a resource; `name` is the resource's."""

    name: str
    policy: Policy


Record = ModelRecord | VersionRecord | OperationRecord | JobRecord | PolicyRecord


@dataclass(frozen=True, slots=True)
class ChangeStamp:
    """The time of a change, its random token (16 hex digits) for new uids and etags, and its cause."""

    now: datetime.datetime
    token: str
    cause: ChangeCause | None = None

    @property
    def etag(self) -> str:
        return base64.b64encode(bytes.fromhex(self.token)).decode()


@dataclass(frozen=True)
class CatalogState:
    """The whole catalog, by full resource name."""

    models: Mapping[ModelName, ModelRecord] = field(default_factory=dict)
    versions: Mapping[VersionName, VersionRecord] = field(default_factory=dict)
    operations: Mapping[str, OperationRecord] = field(default_factory=dict)
    jobs: Mapping[str, JobRecord] = field(default_factory=dict)
    policies: Mapping[str, PolicyRecord] = field(default_factory=dict)

    @cached_property
    def model_order(self) -> SortedIndex[str, ModelName]:
        return SortedIndex.from_names(self.models, operator.attrgetter("project"))

    @cached_property
    def version_order(self) -> SortedIndex[ModelName, VersionName]:
        return SortedIndex.from_names(self.versions, operator.attrgetter("parent"))

    @cached_property
    def job_index(self) -> JobIndex:
        return JobIndex.from_jobs(self.jobs.values())

    @cached_property
    def operation_index(self) -> OperationIndex:
        return OperationIndex.from_operations(self.operations.values())

    def versions_by_name(self) -> Iterator[VersionRecord]:
        """All versions, sorted by name."""
        for project in sorted({name.project for name in self.models}):
            for model in self.model_order.list_children(project):
                yield from (self.versions[name] for name in self.version_order.list_children(model))


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
        """The commit from an empty state to this one."""
        tables: dict[str, Mapping[Any, Record]] = {
            "models": state.models,
            "versions": state.versions,
            "operations": state.operations,
            "jobs": state.jobs,
            "policies": state.policies,
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
        self.job_index = state.job_index
        self.operation_index = state.operation_index
        self.models = PersistentMap.from_mapping(state.models)
        self.versions = PersistentMap.from_mapping(state.versions)
        self.operations = PersistentMap.from_mapping(state.operations)
        self.jobs = PersistentMap.from_mapping(state.jobs)
        self._policies_before = state.policies
        self.policies = PersistentMap.from_mapping(state.policies)
        self.changes: dict[tuple[str, str], Record | None] = {}

    def put(self, record: Record) -> None:
        table = _TABLES[type(record)]
        records: PersistentMap[Any, Record] = getattr(self, table)
        self._update_indexes(records.get(record.name), record)
        setattr(self, table, records.with_item(record.name, record))
        self.changes[table, str(record.name)] = record

    def delete(self, record: Record) -> None:
        table = _TABLES[type(record)]
        records: PersistentMap[Any, Record] = getattr(self, table)
        self._update_indexes(records[record.name], None)
        setattr(self, table, records.without_item(record.name))
        self.changes[table, str(record.name)] = None

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
        state = CatalogState(self.models, self.versions, self.operations, self.jobs, policies)
        vars(state).update(
            model_order=self.model_order,
            version_order=self.version_order,
            job_index=self.job_index,
            operation_index=self.operation_index,
        )
        return state


_TABLES: Mapping[type[Record], str] = {
    ModelRecord: "models",
    VersionRecord: "versions",
    OperationRecord: "operations",
    JobRecord: "jobs",
    PolicyRecord: "policies",
}
