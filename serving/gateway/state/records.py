"""The records of the catalog: resources, and what only the server knows about them."""

from __future__ import annotations

import base64
import datetime
import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from serving.gateway.access.policy import Policy
from serving.gateway.request_context import ChangeCause
from serving.gateway.state.study_records import StudyOperationRecord, StudyRecord, TrialRecord
from serving.names import ModelName, StudyName, VersionName
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
    container's image. Paths are those of the server that created the version; `pack` is the digest of what
    other servers fetch, "" if there is none.
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
    pack: str = ""

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


_NOTHING = msgspec.Raw(b"{}")


class TuningRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The study that has the trials of a job; those before `first_trial` are of jobs that it goes on with."""

    study: StudyName
    first_trial: int = 1


class JobServer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A server that works on jobs, or has worked on one `since` a time.

    `id` is that of its state folder, `name` what operators call it. `attempt` is the last one there.
    """

    id: str
    name: str
    since: str = ""
    attempt: int = 0


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job; `name` is `projects/P/jobs/ID`, `number` counts all jobs in the order of their creation.

    `given` and `options` are the input and the options of its kind as sent, in JSON, which takes a
    fraction of the memory; `job` has them parsed until it ends. `target` is the version it uses, if any;
    `target_uid` distinguishes that from a later one of the same name. `priority`: higher ones start
    first. `attempt` counts its processes from 1, `lost` those that ended without a result while the
    server ran. `run_time` is when it was RUNNING for the first time. `failure` is why the job fails,
    `cancellation` why it is cancelled, set while its files are still being removed. `tuning` is set if it
    runs trials. `cause` is the call that submitted it. `servers` are those that have worked on it, one behind
    the other, each as often as the work came to it: they have its log. There are none where no other server
    uses the state.
    """

    name: str
    project: str
    uid: str
    number: int
    kind: JobKindName = JobKindName.PREDICTION
    job: Job
    given: msgspec.Raw = _NOTHING
    options: msgspec.Raw = _NOTHING
    target: VersionName | None = None
    target_uid: str = ""
    priority: int = 0
    attempt: int = 0
    lost: int = 0
    run_time: str = ""
    failure: str = ""
    cancellation: str = ""
    tuning: TuningRecord | None = None
    cause: ChangeCause | None = None
    servers: tuple[JobServer, ...] = ()

    def __post_init__(self) -> None:
        # What is decoded refers to the whole document.
        msgspec.structs.force_setattr(self, "given", self.given.copy())
        msgspec.structs.force_setattr(self, "options", self.options.copy())

    @property
    def sent_input(self) -> dict[str, Any]:
        return msgspec.json.decode(self.given, type=dict[str, Any])

    @property
    def sent_options(self) -> dict[str, Any]:
        return msgspec.json.decode(self.options, type=dict[str, Any])

    @property
    def has_ended(self) -> bool:
        """Whether the job is in a terminal state."""
        return self.job.state is not None and self.job.state.is_terminal


class PolicyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who may do what with a resource; `name` is the resource's."""

    name: str
    policy: Policy


Record = (
    ModelRecord
    | VersionRecord
    | OperationRecord
    | JobRecord
    | PolicyRecord
    | StudyRecord
    | TrialRecord
    | StudyOperationRecord
)


@dataclass(frozen=True, slots=True)
class ChangeStamp:
    """The time of a change, its random token (16 hex digits) for new uids and etags, and its cause."""

    now: datetime.datetime
    token: str
    cause: ChangeCause | None = None

    @property
    def etag(self) -> str:
        return base64.b64encode(bytes.fromhex(self.token)).decode()
