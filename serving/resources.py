"""Models, versions, jobs and operations, and their way to and from wire JSON.

Field names and types follow the discovery document `ml.v1.json`; a test holds the structs against it.
Reading accepts camelCase and snake_case names, int64 as number or string, and drops nulls; writing omits
fields at their default, as proto3 JSON does. Source: sections 2.1 and 7 of the AI Platform contract.
"""

from __future__ import annotations

import datetime
import enum
import re
import typing
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec

from serving.errors import InvalidArgument

T = TypeVar("T", bound=msgspec.Struct)

_INT32, _MOST_DIGITS = 1 << 31, 40
_SNAKE = re.compile(r"_([a-z0-9])")

# An int64, or another number, that is a string on the wire; read as either.
NumberText = Annotated[str, "a number"]


class Resource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base of everything that travels: immutable, every field optional, defaults omitted."""


class MetricSpec(Resource, frozen=True):
    """A target for the autoscaler, in percent."""

    name: str = ""
    target: int = 0


class AutoScaling(Resource, frozen=True):
    """Bounds for the number of nodes."""

    max_nodes: int = 0
    metrics: tuple[MetricSpec, ...] = ()
    min_nodes: int = 0


class ManualScaling(Resource, frozen=True):
    """A fixed number of nodes."""

    nodes: int = 0


class RequestLoggingConfig(Resource, frozen=True):
    """Where sampled requests are logged; `sampling_percentage` is a fraction from 0 to 1."""

    bigquery_table_name: str = ""
    sampling_percentage: float = 0.0


class AcceleratorConfig(Resource, frozen=True):
    """Accepted and echoed."""

    count: NumberText = ""
    type: str = ""


class EnvVar(Resource, frozen=True):
    """Part of ContainerSpec."""

    name: str = ""
    value: str = ""


class ContainerPort(Resource, frozen=True):
    """Part of ContainerSpec."""

    container_port: int = 0


class ContainerSpec(Resource, frozen=True):
    """A custom container."""

    args: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()
    image: str = ""
    ports: tuple[ContainerPort, ...] = ()


class RouteMap(Resource, frozen=True):
    """The paths of a custom container."""

    health: str = ""
    predict: str = ""


class IntegratedGradientsAttribution(Resource, frozen=True):
    """Part of ExplanationConfig."""

    num_integral_steps: int = 0


class SampledShapleyAttribution(Resource, frozen=True):
    """Part of ExplanationConfig."""

    num_paths: int = 0


class XraiAttribution(Resource, frozen=True):
    """Part of ExplanationConfig."""

    num_integral_steps: int = 0


class ExplanationConfig(Resource, frozen=True):
    """Accepted and echoed."""

    integrated_gradients_attribution: IntegratedGradientsAttribution | None = None
    sampled_shapley_attribution: SampledShapleyAttribution | None = None
    xrai_attribution: XraiAttribution | None = None


class VersionState(enum.StrEnum):
    """CREATING, then READY or FAILED; from those DELETING. Published after the fact."""

    READY = "READY"
    CREATING = "CREATING"
    FAILED = "FAILED"
    DELETING = "DELETING"
    UPDATING = "UPDATING"


class Version(Resource, frozen=True):
    """A deployed model directory. `name` is the bare id in requests, the full name in answers.

    Pilotlight's own additions are `prediction_method`, what of an estimator answers instead of its predict,
    and `warnings`, which say what its owner should know.
    """

    accelerator_config: AcceleratorConfig | None = None
    auto_scaling: AutoScaling | None = None
    container: ContainerSpec | None = None
    create_time: str = ""
    deployment_uri: str = ""
    description: str = ""
    error_message: str = ""
    etag: str = ""
    explanation_config: ExplanationConfig | None = None
    framework: str = ""
    is_default: bool = False
    labels: dict[str, str] = {}
    last_migration_model_id: str = ""
    last_migration_time: str = ""
    last_use_time: str = ""
    machine_type: str = ""
    manual_scaling: ManualScaling | None = None
    name: str = ""
    package_uris: tuple[str, ...] = ()
    prediction_class: str = ""
    prediction_method: str = ""
    python_version: str = ""
    request_logging_config: RequestLoggingConfig | None = None
    routes: RouteMap | None = None
    runtime_version: str = ""
    service_account: str = ""
    state: VersionState | None = None
    warnings: tuple[str, ...] = ()


class Model(Resource, frozen=True):
    """A container of versions, one of which is the default."""

    default_version: Version | None = None
    description: str = ""
    etag: str = ""
    labels: dict[str, str] = {}
    name: str = ""
    online_prediction_console_logging: bool = False
    online_prediction_logging: bool = False
    regions: tuple[str, ...] = ()


class JobState(enum.StrEnum):
    """QUEUED, PREPARING, RUNNING, and one of the ends; CANCELLING before CANCELLED, from any but an end."""

    QUEUED = "QUEUED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether the job stays as it is."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class PredictionInput(Resource, frozen=True):
    """What a batch prediction reads, with which model, and where its results go."""

    batch_size: NumberText = ""
    data_format: str = ""
    input_paths: tuple[str, ...] = ()
    max_worker_count: NumberText = ""
    model_name: str = ""
    output_data_format: str = ""
    output_path: str = ""
    region: str = ""
    runtime_version: str = ""
    signature_name: str = ""
    uri: str = ""
    version_name: str = ""


class PredictionOutput(Resource, frozen=True):
    """What has come of a batch prediction; counts are of records."""

    error_count: NumberText = ""
    node_hours: float = 0.0
    output_path: str = ""
    prediction_count: NumberText = ""


class BatchOptions(Resource, frozen=True):
    """Pilotlight's own addition to a batch prediction.

    `keys` are fields that pass the model by, `parse_max_errors` how many records may be bad ("100", "10%" or
    "0.1"), `runner` and `pipeline_options` are Beam's.
    """

    keys: tuple[str, ...] = ()
    max_errors: NumberText = ""
    pipeline_options: tuple[str, ...] = ()
    runner: str = ""


class DiskConfig(Resource, frozen=True):
    """Accepted and echoed."""

    boot_disk_size_gb: int = 0
    boot_disk_type: str = ""


class EncryptionConfig(Resource, frozen=True):
    """Accepted and echoed."""

    kms_key_name: str = ""


class ReplicaConfig(Resource, frozen=True):
    """The machines of one group of replicas."""

    accelerator_config: AcceleratorConfig | None = None
    container_args: tuple[str, ...] = ()
    container_command: tuple[str, ...] = ()
    disk_config: DiskConfig | None = None
    image_uri: str = ""
    tpu_tf_version: str = ""


class Scheduling(Resource, frozen=True):
    """Durations are decimal seconds with an `s` behind them."""

    max_running_time: str = ""
    max_wait_time: str = ""
    priority: int = 0


class ParameterSpec(Resource, frozen=True):
    """What a parameter of a trial may be. Which of the others count is decided by its `type`."""

    categorical_values: tuple[str, ...] = ()
    discrete_values: tuple[float, ...] = ()
    max_value: float = 0.0
    min_value: float = 0.0
    parameter_name: str = ""
    scale_type: str = ""
    type: str = ""


class HyperparameterSpec(Resource, frozen=True):
    """What a tuning job searches, by which metric, within which limits."""

    algorithm: str = ""
    enable_trial_early_stopping: bool = False
    goal: str = ""
    hyperparameter_metric_tag: str = ""
    max_failed_trials: int = 0
    max_parallel_trials: int = 0
    max_trials: int = 0
    params: tuple[ParameterSpec, ...] = ()
    resume_previous_job_id: str = ""


class TrainingInput(Resource, frozen=True):
    """A program to run, with what arguments, on how many replicas."""

    args: tuple[str, ...] = ()
    enable_web_access: bool = False
    encryption_config: EncryptionConfig | None = None
    evaluator_config: ReplicaConfig | None = None
    evaluator_count: NumberText = ""
    evaluator_type: str = ""
    hyperparameters: HyperparameterSpec | None = None
    job_dir: str = ""
    master_config: ReplicaConfig | None = None
    master_type: str = ""
    network: str = ""
    package_uris: tuple[str, ...] = ()
    parameter_server_config: ReplicaConfig | None = None
    parameter_server_count: NumberText = ""
    parameter_server_type: str = ""
    python_module: str = ""
    python_version: str = ""
    region: str = ""
    runtime_version: str = ""
    scale_tier: str = ""
    scheduling: Scheduling | None = None
    service_account: str = ""
    use_chief_in_tf_config: bool = False
    worker_config: ReplicaConfig | None = None
    worker_count: NumberText = ""
    worker_type: str = ""


class BuiltInAlgorithmOutput(Resource, frozen=True):
    """The model that a built-in algorithm has made."""

    framework: str = ""
    model_path: str = ""
    python_version: str = ""
    runtime_version: str = ""


class HyperparameterMetric(Resource, frozen=True):
    """The value of the metric at a step. Clients read both, also where they are 0."""

    objective_value: float | None = None
    training_step: NumberText = ""


class HyperparameterOutput(Resource, frozen=True):
    """One trial of a tuning job; its values as the program's arguments had them."""

    all_metrics: tuple[HyperparameterMetric, ...] = ()
    built_in_algorithm_output: BuiltInAlgorithmOutput | None = None
    end_time: str = ""
    final_metric: HyperparameterMetric | None = None
    hyperparameters: dict[str, str] = {}
    is_trial_stopped_early: bool = False
    start_time: str = ""
    state: JobState | None = None
    trial_id: str = ""
    web_access_uris: dict[str, str] = {}


class TrainingOutput(Resource, frozen=True):
    """What has come of a training job. `trials` and what goes with them are of tuning jobs."""

    built_in_algorithm_output: BuiltInAlgorithmOutput | None = None
    completed_trial_count: NumberText = ""
    consumed_ml_units: float = msgspec.field(default=0.0, name="consumedMLUnits")
    hyperparameter_metric_tag: str = ""
    is_built_in_algorithm_job: bool = False
    is_hyperparameter_tuning_job: bool = False
    trials: tuple[HyperparameterOutput, ...] = ()
    web_access_uris: dict[str, str] = {}


class DeploymentOptions(Resource, frozen=True):
    """The version that a training job becomes: its ids, and the model's folder below the job's.

    Without `version` it has the id of the job.
    """

    model: str = ""
    path: str = ""
    version: str = ""


class TrainingOptions(Resource, frozen=True):
    """Pilotlight's own addition to a training job.

    `deploy` is done once the job has succeeded. `restarts`: exit code 1 of a replica is an error that another
    start may mend. `threads` are those of libraries in each replica, `memory_bytes` the limit of all replicas
    together, `env` variables that the program finds.
    """

    deploy: DeploymentOptions | None = None
    env: dict[str, str] = {}
    memory_bytes: NumberText = ""
    restarts: bool = False
    threads: int = 0


class Job(Resource, frozen=True):
    """A batch prediction or a training job; `job_id` is bare everywhere.

    `batch_options` and `training_options` are Pilotlight's own additions.
    """

    batch_options: BatchOptions | None = None
    create_time: str = ""
    end_time: str = ""
    error_message: str = ""
    etag: str = ""
    job_id: str = ""
    job_position: NumberText = ""
    labels: dict[str, str] = {}
    prediction_input: PredictionInput | None = None
    prediction_output: PredictionOutput | None = None
    start_time: str = ""
    state: JobState | None = None
    training_input: TrainingInput | None = None
    training_options: TrainingOptions | None = None
    training_output: TrainingOutput | None = None


class OperationMetadata(Resource, frozen=True):
    """What an operation is about; `phase` and `warnings` are Pilotlight's own additions."""

    create_time: str = ""
    end_time: str = ""
    is_cancellation_requested: bool = False
    labels: dict[str, str] = {}
    model_name: str = ""
    operation_type: str = ""
    phase: str = ""
    start_time: str = ""
    version: Version | None = None
    warnings: tuple[str, ...] = ()


class RpcStatus(Resource, frozen=True):
    """google.rpc.Status."""

    code: int = 0
    message: str = ""


class Operation(Resource, frozen=True):
    """A long-running change. `done` is absent while it runs."""

    name: str = ""
    metadata: OperationMetadata = OperationMetadata()
    done: bool = False
    error: RpcStatus | None = None
    response: dict[str, Any] = {}


def resource_from_json(kind: type[T], value: Any, *, where: str = "") -> T:
    """A resource from request JSON. Raises InvalidArgument naming the field at fault."""
    if not isinstance(value, dict):
        raise InvalidArgument(
            f"Invalid JSON payload received. Expected an object for {where or kind.__name__}."
        )
    try:
        return msgspec.convert(_normalize_struct(kind, value, where), kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"Invalid value in the JSON payload: {error}") from error


def resource_to_json(resource: Resource) -> dict[str, Any]:
    """A resource as answers carry it."""
    built: dict[str, Any] = msgspec.to_builtins(resource)
    return built


def operation_to_json(operation: Operation) -> dict[str, Any]:
    """An operation with the `@type` marks that typed clients look for."""
    built = resource_to_json(operation)
    built["metadata"] = {
        "@type": "type.googleapis.com/google.cloud.ml.v1.OperationMetadata",
        **resource_to_json(operation.metadata),
    }
    return built


def format_count(number: int) -> str:
    """Format a number as JSON has it: as text, "" for 0."""
    return str(number) if number else ""


def format_timestamp(moment: datetime.datetime) -> str:
    """RFC 3339 in UTC with `Z`, to the second."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_camel_case(name: str) -> str:
    """The camelCase spelling of a snake_case name; camelCase stays."""
    return _SNAKE.sub(lambda match: match[1].upper(), name)


def _normalize_struct(kind: type[msgspec.Struct], value: dict[str, Any], where: str) -> dict[str, Any]:
    """Known names in camelCase, nulls dropped, nested resources likewise; anything unknown is refused."""
    known = _wire_fields(kind)
    normal: dict[str, Any] = {}
    for key, entry in value.items():
        name = to_camel_case(key)
        if name not in known:
            place = f' at "{where}"' if where else ""
            raise InvalidArgument(
                f'Invalid JSON payload received. Unknown name "{key}"{place}: Cannot find field.'
            )
        if entry is not None:
            normal[name] = _normalize_field(known[name], entry, f"{where}.{name}" if where else name)
    return normal


def _normalize_field(kind: Any, entry: Any, where: str) -> Any:
    if kind is NumberText:
        return _number_to_text(entry)
    if kind == tuple[NumberText, ...] and isinstance(entry, list):
        return [_number_to_text(item) for item in entry]
    if kind is int and not _fits_int32(entry):
        raise InvalidArgument(f'Invalid value in the JSON payload: "{where}" is no number of 32 bits.')
    nested = _find_struct(kind)
    if nested is None:
        return entry
    if isinstance(entry, list):
        return [
            _normalize_struct(nested, item, f"{where}[{index}]") if isinstance(item, dict) else item
            for index, item in enumerate(entry)
        ]
    return _normalize_struct(nested, entry, where) if isinstance(entry, dict) else entry


def _number_to_text(entry: Any) -> Any:
    is_number = isinstance(entry, int | float) and not isinstance(entry, bool)
    return str(entry) if is_number else entry


def _fits_int32(entry: Any) -> bool:
    """Whether this can be an int32, as all integers of the API are; what is no number is somebody else's."""
    if isinstance(entry, str) and len(entry) > _MOST_DIGITS:
        return False
    try:
        return -_INT32 <= int(entry) < _INT32
    except (TypeError, ValueError):
        return True


@lru_cache
def _wire_fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Wire names of a struct's fields, each with its type."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}


def _find_struct(hint: Any) -> type[msgspec.Struct] | None:
    if not typing.get_args(hint):
        return hint if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else None
    found = (_find_struct(argument) for argument in typing.get_args(hint) if argument is not Ellipsis)
    return next((struct for struct in found if struct is not None), None)
