"""Checks of new training jobs that need no look at their files, and at no setting."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal

import msgspec

from serving.errors import InvalidArgument, ServingError, field_error
from serving.gateway.catalog.checks import NUMERIC_VERSION, check_image_name
from serving.gateway.catalog.job_checks.file_paths import find_path_problem
from serving.gateway.catalog.job_checks.training_replicas import (
    ALGORITHMS,
    CUSTOM,
    LEGACY_MACHINES,
    TIERS,
    find_algorithm,
    master_image,
    scale_tier,
)
from serving.gateway.catalog.job_checks.tuning_checks import check_tuning, find_metric_tag
from serving.gateway.catalog.tuning_jobs import create_tuning_study
from serving.gateway.state.catalog_state import StateDraft
from serving.gateway.state.records import (
    ChangeStamp,
    JobKindName,
    JobRecord,
    TuningRecord,
    VersionRecord,
)
from serving.names import check_id, check_location
from serving.resources import (
    AcceleratorConfig,
    BuiltInAlgorithmOutput,
    DeploymentOptions,
    Job,
    ReplicaConfig,
    Scheduling,
    TrainingInput,
    TrainingOptions,
    TrainingOutput,
)

_MAX_PACKAGES, _MAX_COUNT = 100, 1000
_MAX_PRIORITY, _MIN_WAIT_SECONDS = 1000, 1800
_ARCHIVES = (".tar.gz", ".tgz", ".zip", ".whl", ".tar.bz2", ".tar")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)s")
_COUNT = re.compile(r"[0-9]{1,4}")
_BYTES = re.compile(r"[0-9]{1,18}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A process takes no argument and no variable of 128 KiB or more. One of the variables, TF_CONFIG, has the
# whole input in it, with the addresses of the cluster. All variables together have a limit too.
_MAX_TEXT_BYTES, _MAX_INPUT_BYTES, _MAX_VARIABLES_BYTES = (128 << 10) - 1, 96 << 10, 1 << 20
# The groups beside the master, by their fields.
_GROUPS = ("worker", "parameter_server", "evaluator")


class TrainingRules:
    """What a new job must be; see `serving.gateway.catalog.jobs.NewJobRules`."""

    name = JobKindName.TRAINING

    def check_new_job(self, draft: StateDraft, job: Job) -> VersionRecord | None:
        given, options = job.training_input or TrainingInput(), job.training_options or TrainingOptions()
        check_training_input(given)
        check_training_options(options)
        if options.deploy is not None and not given.job_dir:
            raise _input_error("job_dir", "A job whose model is deployed needs a place for it.")
        return None

    def build_first_output(self, job: Job) -> TrainingOutput:
        """What a client has sent of a built-in algorithm is shown at once, as there."""
        given, sent = job.training_input or TrainingInput(), job.training_output or TrainingOutput()
        output = TrainingOutput()
        if given.hyperparameters is not None:
            tag = find_metric_tag(given.hyperparameters)
            output = TrainingOutput(is_hyperparameter_tuning_job=True, hyperparameter_metric_tag=tag)
        if find_algorithm(given) is None and not sent.is_built_in_algorithm_job:
            return output
        built = sent.built_in_algorithm_output or BuiltInAlgorithmOutput()
        return msgspec.structs.replace(
            output, is_built_in_algorithm_job=True, built_in_algorithm_output=built
        )

    def create_study(self, draft: StateDraft, stamp: ChangeStamp, record: JobRecord) -> TuningRecord | None:
        given = record.job.training_input
        if given is None or given.hyperparameters is None:
            return None
        return create_tuning_study(draft, stamp, record, given.region, given.hyperparameters)

    def get_priority(self, job: Job) -> int:
        given = job.training_input or TrainingInput()
        return (given.scheduling or Scheduling()).priority


def check_training_input(given: TrainingInput) -> None:
    """Raises InvalidArgument with the field."""
    if not given.region:
        raise _input_error("region", "Give a region, e.g. us-central1; they are all this one server.")
    try:
        check_location(given.region)
    except InvalidArgument as error:
        raise _input_error("region", error.message) from error
    if master_image(given):
        _check_image_job(given)
    else:
        _check_package_job(given)
    _check_versions(given)
    _check_tier(given)
    for group in ("master", *_GROUPS):
        _check_group(given, group)
    _check_machine_families(given)
    _check_commands(given)
    _check_scheduling(given.scheduling or Scheduling())
    _check_job_dir(given)
    if given.hyperparameters is not None:
        check_tuning(given.hyperparameters)
    if any("\0" in text for text in given.args):
        raise _input_error("args", "An argument cannot hold a NUL character.")
    _check_input_bytes(given)


def check_training_options(given: TrainingOptions) -> None:
    """Raises InvalidArgument with the field."""
    if given.threads < 0:
        raise _option_error("threads", f"It must be 0 (a fair share) or more; {given.threads} is not.")
    if given.memory_bytes and not _BYTES.fullmatch(given.memory_bytes):
        raise _option_error("memory_bytes", f"{given.memory_bytes!r} is no number of up to 18 digits.")
    for name, value in given.env.items():
        if not _VARIABLE.fullmatch(name):
            raise _option_error("env", f"{name!r} is no name of a variable: letters, digits and '_'.")
        if "\0" in value:
            raise _option_error("env", f"The value of {name} cannot hold a NUL character.")
    _check_variables_size(given.env)
    if given.deploy is not None:
        check_deployment(given.deploy)


def _check_input_bytes(given: TrainingInput) -> None:
    """The program finds the whole input in TF_CONFIG, where JSON takes six bytes for some characters."""
    sizes = {
        field: len(json.dumps(msgspec.to_builtins(getattr(given, field))))
        for field in given.__struct_fields__
    }
    if sum(sizes.values()) > _MAX_INPUT_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise _input_error(
            largest,
            f"It takes {sizes[largest]:,} bytes of an input of {sum(sizes.values()):,}, of which programs "
            f"get {_MAX_INPUT_BYTES:,} at most. Put large values into a file, and pass its place.",
        )


def _check_variables_size(variables: Mapping[str, str]) -> None:
    sizes = {name: len(f"{name}={value}".encode()) for name, value in variables.items()}
    largest = max(sizes, key=sizes.__getitem__, default="")
    if sizes.get(largest, 0) > _MAX_TEXT_BYTES or sum(sizes.values()) > _MAX_VARIABLES_BYTES:
        raise _option_error(
            "env",
            f"{largest} takes {sizes[largest]:,} bytes of {sum(sizes.values()):,}. A variable may take "
            f"{_MAX_TEXT_BYTES:,} and all together {_MAX_VARIABLES_BYTES:,}: put large values into a file.",
        )


def check_deployment(given: DeploymentOptions) -> None:
    """Check where a job's model is to go. Raises InvalidArgument."""
    field = "training_options.deploy"
    check_id(given.model, f"{field}.model")
    if given.version:
        check_id(given.version, f"{field}.version")
    if given.path.startswith("/") or not {".", ".."}.isdisjoint(given.path.split("/")) or "*" in given.path:
        raise field_error(
            InvalidArgument, f"{field}.path", f"{given.path!r} is no folder below the job's, as export/1."
        )


def parse_duration(text: str) -> float:
    """Seconds of a duration like 3600s; 0 for "". Raises ValueError."""
    if not text:
        return 0.0
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return float(Decimal(found[1]))


def _check_package_job(given: TrainingInput) -> None:
    if not given.package_uris:
        raise _input_error(
            "package_uris",
            "Give the archives of the program (gs://BUCKET/trainer-0.1.tar.gz or an absolute path), or the "
            "image of a built-in algorithm as masterConfig.imageUri.",
        )
    if len(given.package_uris) > _MAX_PACKAGES:
        raise _input_error(
            "package_uris", f"At most {_MAX_PACKAGES} can be given; there are {len(given.package_uris)}."
        )
    for uri in given.package_uris:
        _check_uri("package_uris", uri)
        if not uri.endswith(_ARCHIVES):
            raise _input_error(
                "package_uris",
                f"{uri!r} is no archive that pip installs, by its name: {', '.join(_ARCHIVES)}.",
            )
    names = Counter(uri.rpartition("/")[2] for uri in given.package_uris)
    name, count = names.most_common(1)[0]
    if count > 1:
        raise _input_error("package_uris", f"{count} archives are called {name}; their names must differ.")
    if not given.python_module:
        raise _input_error("python_module", "Name the module to run, e.g. trainer.task.")
    if not _MODULE.fullmatch(given.python_module):
        raise _input_error(
            "python_module", f"{given.python_module!r} is no name of a module like trainer.task."
        )


def _check_image_job(given: TrainingInput) -> None:
    for field in ("package_uris", "python_module"):
        if getattr(given, field):
            raise _input_error(
                field, "Give either packages with a module, or masterConfig.imageUri; both are given."
            )
    algorithm = find_algorithm(given)
    if algorithm is None:
        _check_image_names(given)
    elif algorithm not in ALGORITHMS:
        raise _input_error(
            "master_config.image_uri",
            f"This server does not have the built-in algorithm {algorithm!r}, but {', '.join(ALGORITHMS)}.",
        )
    elif not given.job_dir:
        raise _input_error("job_dir", "A built-in algorithm needs a place for its model.")


def _check_image_names(given: TrainingInput) -> None:
    for group in ("master", *_GROUPS):
        config: ReplicaConfig = getattr(given, f"{group}_config") or ReplicaConfig()
        if config.image_uri:
            check_image_name(config.image_uri, f"training_input.{group}_config.image_uri")


def _check_versions(given: TrainingInput) -> None:
    if given.runtime_version and master_image(given):
        raise _input_error(
            "runtime_version", "Give either a runtimeVersion or masterConfig.imageUri; both are given."
        )
    for field, text in (("runtime_version", given.runtime_version), ("python_version", given.python_version)):
        if text and not NUMERIC_VERSION.fullmatch(text):
            raise _input_error(field, f"{text!r} is not a version like 2.11.")


def _check_tier(given: TrainingInput) -> None:
    tier = scale_tier(given)
    if tier != CUSTOM and tier not in TIERS:
        raise _input_error(
            "scale_tier", f"{given.scale_tier!r} is unknown; there are {', '.join(TIERS)} and {CUSTOM}."
        )
    if tier == CUSTOM and not given.master_type:
        raise _input_error("master_type", "scaleTier CUSTOM needs a machine type for the master.")


def _check_group(given: TrainingInput, group: str) -> None:
    config: ReplicaConfig = getattr(given, f"{group}_config") or ReplicaConfig()
    machine: str = getattr(given, f"{group}_type")
    if group != "master":
        _check_count(given, group, machine, has_config=getattr(given, f"{group}_config") is not None)
        if config.image_uri and not master_image(given):
            raise _input_error(
                f"{group}_config.image_uri", "Only jobs with masterConfig.imageUri have images."
            )
    accelerator = config.accelerator_config or AcceleratorConfig()
    has_type = accelerator.type.upper() not in ("", "ACCELERATOR_TYPE_UNSPECIFIED")
    field = f"{group}_config.accelerator_config"
    if accelerator.count and not _COUNT.fullmatch(accelerator.count):
        raise _input_error(field, f"count must be a whole number; {accelerator.count!r} is not.")
    count = int(accelerator.count or 0)
    if has_type and count < 1:
        raise _input_error(field, "count must be at least 1.")
    if count and not has_type:
        raise _input_error(field, "Name the type of the accelerators, e.g. NVIDIA_TESLA_T4.")
    if has_type and machine in LEGACY_MACHINES:
        raise _input_error(
            field,
            f"{machine} has its accelerators in its name; leave the config out, or name an n1-... type.",
        )


def _check_count(given: TrainingInput, group: str, machine: str, *, has_config: bool) -> None:
    text: str = getattr(given, f"{group}_count")
    if text and not _COUNT.fullmatch(text):
        raise _input_error(
            f"{group}_count", f"It must be a whole number, at most {_MAX_COUNT}; {text!r} is not."
        )
    count = int(text or 0)
    if count > _MAX_COUNT:
        raise _input_error(f"{group}_count", f"At most {_MAX_COUNT} can be asked for, not {count}.")
    if scale_tier(given) != CUSTOM:
        for field, is_set in (("count", count), ("type", machine), ("config", has_config)):
            if is_set:
                raise _input_error(f"{group}_{field}", f"It goes with scaleTier {CUSTOM} only.")
    elif count and not machine:
        raise _input_error(f"{group}_type", "Replicas need a machine type.")
    elif machine and not text:
        raise _input_error(f"{group}_count", f"Say how many replicas of {machine} there are to be.")


def _check_machine_families(given: TrainingInput) -> None:
    types = [(group, getattr(given, f"{group}_type")) for group in ("master", *_GROUPS)]
    legacy = [machine in LEGACY_MACHINES for _, machine in types if machine]
    if any(legacy) and not all(legacy):
        group, machine = [one for one in types if one[1]][-1]
        raise _input_error(
            f"{group}_type",
            "All machine types must be legacy names (as standard) or all Compute Engine names (as "
            f"n1-standard-4); {machine} is of another family than the others.",
        )


def _check_commands(given: TrainingInput) -> None:
    for group in ("master", *_GROUPS):
        config: ReplicaConfig = getattr(given, f"{group}_config") or ReplicaConfig()
        for field in ("container_command", "container_args"):
            if not getattr(config, field):
                continue
            if given.args:
                raise _input_error("args", f"Give either args or {group}_config.{field}; both are given.")
            if not (config.image_uri or master_image(given)):
                raise _input_error(f"{group}_config.{field}", "It goes with an imageUri only.")


def _check_scheduling(given: Scheduling) -> None:
    for field in ("max_wait_time", "max_running_time"):
        try:
            seconds = parse_duration(getattr(given, field))
        except ValueError as error:
            raise _input_error(
                f"scheduling.{field}", f"{error} is no duration: decimal seconds, as 3600s or 1.5s."
            ) from error
        if field == "max_wait_time" and getattr(given, field) and seconds < _MIN_WAIT_SECONDS:
            raise _input_error(f"scheduling.{field}", f"It must be at least {_MIN_WAIT_SECONDS}s.")
        if field == "max_running_time" and getattr(given, field) and not seconds:
            raise _input_error(f"scheduling.{field}", "It must be more than 0s.")
    if not 0 <= given.priority <= _MAX_PRIORITY:
        raise _input_error(
            "scheduling.priority", f"It must be from 0 to {_MAX_PRIORITY}; {given.priority} is not."
        )


def _check_job_dir(given: TrainingInput) -> None:
    if given.job_dir:
        _check_uri("job_dir", given.job_dir)
    if given.job_dir and "*" in given.job_dir:
        raise _input_error("job_dir", f"'*' can not be in it: {given.job_dir!r}.")


def _check_uri(field: str, uri: str) -> None:
    if problem := find_path_problem(uri):
        raise _input_error(field, problem)


def _input_error(field: str, description: str) -> ServingError:
    return field_error(InvalidArgument, f"training_input.{field}", description)


def _option_error(field: str, description: str) -> ServingError:
    return field_error(InvalidArgument, f"training_options.{field}", description)
