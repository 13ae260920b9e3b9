"""Builds the request that the supervisor of a training job is started with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.artifacts.child_environment import keep_storage_variables, sanitize_environment
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.config import ServeConfig
from serving.container_engine import engine_environment, find_engine
from serving.gateway.catalog.job_checks.training_replicas import (
    ALGORITHMS,
    find_algorithm,
    list_replica_groups,
    master_image,
)
from serving.gateway.catalog.job_checks.tuning_checks import find_metric_tag
from serving.gateway.jobs.job_kind import SCRATCH_FOLDER
from serving.gateway.state.records import JobRecord
from serving.predictor import interpreters
from serving.predictor.interpreters import InterpreterRegistry
from serving.resources import ReplicaConfig, TrainingInput, TrainingOptions
from training.messages import (
    ContainerEngine,
    ContainerProgram,
    ReplicaGroup,
    ReplicaRole,
    RestartLimits,
    TrainingRequest,
    TrialSettings,
)

ORDERS_PIPE = "orders"
# Seconds that replicas have after SIGTERM.
_GRACE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class TrainingDefaults:
    """Settings of the server that apply to every job; `environment` is that of its replicas."""

    environment: Mapping[str, str]
    engine: ContainerEngine | None
    cache_dir: Path
    cache_bytes: int
    install_seconds: float
    log_bytes: int
    folders: LocalFolderPolicy
    interpreters: InterpreterRegistry
    grace_seconds: float = _GRACE_SECONDS

    @classmethod
    def from_config(cls, config: ServeConfig, environment: Mapping[str, str]) -> TrainingDefaults:
        """`environment` is the server's. Raises InvalidArgument."""
        engine = find_engine(config.container_engine)
        return cls(
            {
                **sanitize_environment(environment, config.node_environment, storage=True),
                "PYTHONUNBUFFERED": "1",
            },
            ContainerEngine(engine, engine_environment(environment)) if engine else None,
            config.state_dir / "cache",
            config.cache_bytes,
            config.build_timeout,
            config.training_log_bytes,
            LocalFolderPolicy.from_setting(
                config.local_folders, config.state_dir, config.shared_versions_uri
            ),
            InterpreterRegistry(interpreters.parse_interpreters(config.runtime), config.state_dir),
        )


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What a job may use: the GPUs lent to it, bytes of memory (of each trial, if it has any; 0: no limit),
    and how many trials run at a time.
    """

    devices: Sequence[str] = ()
    memory_bytes: int = 0
    parallel: int = 1


def build_training_request(
    record: JobRecord, folder: Path, defaults: TrainingDefaults, limits: RunLimits
) -> TrainingRequest:
    """Build the request of an attempt."""
    given = record.job.training_input or TrainingInput()
    options = record.job.training_options or TrainingOptions()
    algorithm = find_algorithm(given)
    in_containers = algorithm is None and bool(master_image(given))
    left = iter(limits.devices)
    slots = tuple(
        tuple(_build_groups(given, left, in_containers=in_containers)) for _ in range(limits.parallel)
    )
    return TrainingRequest(
        job=record.job.job_id,
        uid=record.uid,
        attempt=record.attempt,
        module=given.python_module if algorithm is None else ALGORITHMS[algorithm],
        args=given.args,
        packages=given.package_uris,
        job_dir=given.job_dir,
        groups=slots[0],
        trials=_build_trial_settings(given, slots, folder),
        primary_name=_primary_name(given),
        training_input=record.sent_input,
        runtime_version=given.runtime_version,
        interpreter=defaults.interpreters.find_interpreter(given.runtime_version),
        engine=defaults.engine if in_containers else None,
        environment=dict(
            keep_storage_variables(defaults.environment) if in_containers else defaults.environment
        ),
        variables=options.env,
        threads=options.threads,
        memory_bytes=limits.memory_bytes or int(options.memory_bytes or 0),
        restarts=RestartLimits(restart_on_error=options.restarts),
        scratch_dir=str(folder / SCRATCH_FOLDER),
        log_dir=str(folder / "logs"),
        log_bytes=defaults.log_bytes,
        cache_dir=str(defaults.cache_dir),
        cache_bytes=defaults.cache_bytes,
        install_seconds=defaults.install_seconds,
        grace_seconds=defaults.grace_seconds,
        allowed_folders=defaults.folders.allowed,
        refused_folders=defaults.folders.refused,
    )


def _build_trial_settings(
    given: TrainingInput, slots: tuple[tuple[ReplicaGroup, ...], ...], folder: Path
) -> TrialSettings | None:
    if given.hyperparameters is None:
        return None
    pipe = folder / SCRATCH_FOLDER / ORDERS_PIPE
    return TrialSettings(find_metric_tag(given.hyperparameters), slots, str(pipe))


def _build_groups(
    given: TrainingInput, left: Iterator[str], *, in_containers: bool
) -> Iterator[ReplicaGroup]:
    """Give each replica its part of the devices left; those that ask for none see none."""
    for group in list_replica_groups(given):
        parts = tuple(
            ",".join(device for _, device in zip(range(group.gpus), left, strict=False))
            for _ in range(group.number)
        )
        container = _build_container(given, group.config) if in_containers else None
        yield ReplicaGroup(ReplicaRole(group.role), group.number, parts, container)


def _build_container(given: TrainingInput, config: ReplicaConfig) -> ContainerProgram:
    """A group without an image of its own has the master's."""
    return ContainerProgram(
        config.image_uri or master_image(given), config.container_command, config.container_args
    )


def _primary_name(given: TrainingInput) -> str:
    """What TF_CONFIG calls the first replica: `master` for 1.x, and for images unless they ask for chief."""
    if master_image(given):
        return "chief" if given.use_chief_in_tf_config else "master"
    return "master" if given.runtime_version.startswith("1.") else "chief"
