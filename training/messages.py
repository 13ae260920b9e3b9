"""The messages between the server and the supervisor of a training job: JSON. Imports nothing heavy.

`python -m training LIFELINE` gets one TrainingRequest on stdin and writes one TrainingReport per line on
stdout, the last with `done` or `failed`; what it has to say itself goes to stderr. LIFELINE is the number of
the reading end of a pipe: when its last writing end is closed, the supervisor kills all that it has started.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class TrainingPhase(StrEnum):
    """The step that a job has begun."""

    PREPARING = "PREPARING"
    RUNNING = "RUNNING"


class ReplicaRole(StrEnum):
    """What a replica is for. Each job has one master, whose end is the job's."""

    MASTER = "master"
    WORKER = "worker"
    PARAMETER_SERVER = "ps"
    EVALUATOR = "evaluator"


class ReplicaEvent(StrEnum):
    STARTED = "STARTED"
    ENDED = "ENDED"
    RESTARTED = "RESTARTED"


class ContainerProgram(msgspec.Struct, frozen=True, omit_defaults=True):
    """What replicas run in containers: an image, and words in place of its entrypoint and its command."""

    image: str
    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


class ContainerEngine(msgspec.Struct, frozen=True):
    """The program that runs containers (docker, podman), and its environment."""

    path: str
    environment: dict[str, str]


class ReplicaGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Replicas of one role; `devices` has the CUDA_VISIBLE_DEVICES of each, () where none is lent.

    `container` is what they run in place of the request's module.
    """

    role: ReplicaRole
    count: int = 1
    devices: tuple[str, ...] = ()
    container: ContainerProgram | None = None


class RestartLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """How often replicas are started again: each in place, and then the whole job.

    `restart_on_error`: exit code 1 or 255 is an error that another start may mend.
    """

    in_place: int = 5
    whole_job: int = 3
    restart_on_error: bool = False


class TrialSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the trials of a job are run. Each is a run of all replicas, with a folder and arguments of its own.

    `slots` has the replicas of each trial that runs at a time. `orders` is the path of a named pipe, which
    the supervisor makes, and from which it reads TrialOrders, one per line, once the job is RUNNING. A trial
    whose process says nothing for `silence_seconds` is lost: it is silent when it reads the last of a bucket.
    """

    metric_tag: str
    slots: tuple[tuple[ReplicaGroup, ...], ...]
    orders: str
    silence_seconds: float = 180.0


class TrainingRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a job.

    `job` is the job's id and `uid` (letters, digits) tells it from all others; attempts count from 1. The
    program is `module` with `args`, found in `packages` (URIs of archives) or among the server's libraries;
    `job_dir` is a URI, or "" for none, and is passed to it. `groups` begins with the master, which TF_CONFIG
    calls `primary_name`; `training_input` is the job's TrainingInput as sent. `interpreter` is the Python of
    this machine that runs the program, "" for the server's own. With an `engine` all groups have a container,
    and there is no module.

    `environment` is that of the replicas, and `variables` are the ones in it that the user has set for this
    job. `threads` is how many threads libraries may use in a replica,
    0 for a fair share of the cores; `memory_bytes` limits the memory of all replicas together, 0: no limit.

    `scratch_dir` is a local folder that is this job's alone, `log_dir` the one of its log, with `log_bytes`
    at most. `install_seconds` limits each run of pip, `grace_seconds` is the time between SIGTERM and
    SIGKILL. `allowed_folders` and `refused_folders` are those of `serving.artifacts.local_folder_policy`.

    With `trials` nothing runs before an order says so, and `threads` and `memory_bytes` are for each trial.
    A trial is the request of one run: its number is `trial`, and it has `metric_tag` and `metric_file`.
    """

    job: str
    uid: str
    attempt: int = 1
    module: str = ""
    args: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    job_dir: str = ""
    groups: tuple[ReplicaGroup, ...] = (ReplicaGroup(ReplicaRole.MASTER),)
    primary_name: str = "chief"
    training_input: dict[str, Any] = {}
    trials: TrialSettings | None = None
    trial: str = ""
    metric_tag: str = ""
    metric_file: str = ""
    runtime_version: str = ""
    interpreter: str = ""
    engine: ContainerEngine | None = None
    environment: dict[str, str] = {}
    variables: dict[str, str] = {}
    threads: int = 0
    memory_bytes: int = 0
    restarts: RestartLimits = RestartLimits()
    first_port: int = 20000
    last_port: int = 29999
    scratch_dir: str
    log_dir: str
    log_bytes: int = 64 << 20
    cache_dir: str
    cache_bytes: int
    install_seconds: float = 600.0
    grace_seconds: float = 10.0
    allowed_folders: tuple[str, ...] = ()
    refused_folders: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of replicas."""
        return sum(group.count for group in self.groups)


class ReplicaReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to a replica. `task` is its name in logs, as "worker-replica-0".

    `exit_code` is minus the signal's number if one ended it. `restarts` counts its starts after the first,
    `job_restarts` those of the whole job, in this attempt.
    """

    task: str
    event: ReplicaEvent
    pid: int = 0
    exit_code: int | None = None
    restarts: int = 0
    job_restarts: int = 0


class TrainingSuccess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that succeeded: seconds since its first replica was started, and those of all replicas in sum."""

    seconds: float
    replica_seconds: float


# The status of what was asked to end (SIGTERM).
CANCELLED = "CANCELLED"


class TrainingFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a job ended otherwise: the name of a google.rpc code, and a message for its owner."""

    status: str
    message: str
    replica_seconds: float = 0.0


class StartTrial(msgspec.Struct, frozen=True, tag="start"):
    """`args` are those of this trial; the program gets them behind the job's."""

    trial: int
    args: tuple[str, ...]


class StopTrial(msgspec.Struct, frozen=True, tag="stop"):
    """End a trial's processes; what it has reported counts."""

    trial: int


class FinishTrials(msgspec.Struct, frozen=True, tag="finish", omit_defaults=True):
    """End the job and the trials that still run: in success, or for a reason."""

    failure: str = ""


TrialOrder = StartTrial | StopTrial | FinishTrials


class MetricPoint(msgspec.Struct, frozen=True, array_like=True):
    """A finite value at a step, with the seconds since the trial's start."""

    step: int
    value: float
    elapsed_seconds: float


class TrialReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a trial has measured since its last report, at most once a second; or its end.

    An `ended` trial has either `final`, the value that counts, or `failure`, unless it is `lost`: its
    supervisor has gone without a word, or was `cancelled` by nobody's order. `replica_seconds` are those of
    all its replicas so far, which a report with points does not tell; `log_bytes` is the size of its log.
    """

    trial: int
    points: tuple[MetricPoint, ...] = ()
    ended: bool = False
    final: MetricPoint | None = None
    failure: str = ""
    lost: bool = False
    cancelled: bool = False
    replica_seconds: float = 0.0
    log_bytes: int = 0


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The seconds of all replicas so far, in sum."""

    replica_seconds: float = 0.0


class TrainingReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of output; one of its fields is set. There is a heartbeat every 5 seconds."""

    phase: TrainingPhase | None = None
    replica: ReplicaReport | None = None
    trial: TrialReport | None = None
    heartbeat: Heartbeat | None = None
    done: TrainingSuccess | None = None
    failed: TrainingFailure | None = None
