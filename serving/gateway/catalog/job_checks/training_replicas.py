"""The replicas that a training job asks for: how many of which role, on what machines, with what image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from serving.resources import ReplicaConfig, TrainingInput

CUSTOM = "CUSTOM"
_UNSPECIFIED_ACCELERATOR = "ACCELERATOR_TYPE_UNSPECIFIED"
# Workers and parameter servers beside the master, by scale tier.
TIERS: Mapping[str, tuple[int, int]] = {
    "BASIC": (0, 0),
    "STANDARD_1": (4, 3),
    "PREMIUM_1": (19, 11),
    "BASIC_GPU": (0, 0),
    "BASIC_TPU": (0, 0),
}
# Images whose name ends so train with an algorithm of this server, by the module that has it.
_ALGORITHM_FOLDER = "cloud-ml-algos/"
ALGORITHM_PACKAGE = "training.algorithms."
ALGORITHMS: Mapping[str, str] = {
    "boosted_trees": f"{ALGORITHM_PACKAGE}boosted_trees",
    "xgboost_dist": f"{ALGORITHM_PACKAGE}distributed_boosted_trees",
    "linear_learner_cpu": f"{ALGORITHM_PACKAGE}linear_learner",
    "linear_learner_gpu": f"{ALGORITHM_PACKAGE}linear_learner",
}


class ReplicaRequest(NamedTuple):
    """Replicas of one role, as `training.messages.ReplicaRole` has it.

    `field` is the role's in TrainingInput; `gpus` is for each replica.
    """

    role: str
    field: str
    number: int
    machine_type: str
    config: ReplicaConfig
    gpus: int


def scale_tier(given: TrainingInput) -> str:
    """The tier in capitals; BASIC where none is given."""
    return given.scale_tier.upper() or "BASIC"


def list_replica_groups(given: TrainingInput) -> Sequence[ReplicaRequest]:
    """The groups that have replicas, the master first, for an input that has been checked."""
    tier = scale_tier(given)
    workers, servers = TIERS.get(tier, (int(given.worker_count or 0), int(given.parameter_server_count or 0)))
    evaluators = int(given.evaluator_count or 0)
    groups = (
        ("master", "master", 1, given.master_type, given.master_config),
        ("worker", "worker", workers, given.worker_type, given.worker_config),
        ("ps", "parameter_server", servers, given.parameter_server_type, given.parameter_server_config),
        ("evaluator", "evaluator", evaluators, given.evaluator_type, given.evaluator_config),
    )
    return [
        ReplicaRequest(
            role, field, number, machine, config or ReplicaConfig(), _count_gpus(tier, machine, config)
        )
        for role, field, number, machine, config in groups
        if number
    ]


def master_image(given: TrainingInput) -> str:
    return given.master_config.image_uri if given.master_config is not None else ""


def find_algorithm(given: TrainingInput) -> str | None:
    """The name of the built-in algorithm that the master's image stands for; None for any other image."""
    _, separator, name = master_image(given).rpartition(_ALGORITHM_FOLDER)
    return name.partition("@")[0].partition(":")[0] if separator else None


def choose_algorithm_framework(module: str, args: Sequence[str]) -> str:
    """The framework of the model that an algorithm makes: with preprocessing in it, it is scikit-learn's."""
    return "XGBOOST" if module.endswith("boosted_trees") and "--preprocess" not in args else "SCIKIT_LEARN"


def is_tpu(given: TrainingInput) -> bool:
    machines = (given.master_type, given.worker_type, given.parameter_server_type, given.evaluator_type)
    configs = (given.master_config, given.worker_config)
    accelerators = [one.accelerator_config for one in configs if one is not None]
    return (
        scale_tier(given) == "BASIC_TPU"
        or "cloud_tpu" in machines
        or any(one is not None and one.type.upper().startswith("TPU") for one in accelerators)
    )


def _count_gpus(tier: str, machine_type: str, config: ReplicaConfig | None) -> int:
    """GPUs of one replica. Legacy machine types have theirs in the name."""
    accelerator = config.accelerator_config if config is not None else None
    if accelerator is not None and accelerator.type.upper() not in ("", _UNSPECIFIED_ACCELERATOR):
        return int(accelerator.count or 0)
    if tier == "BASIC_GPU":
        return 1
    return _LEGACY_GPUS.get(machine_type, 0)


_LEGACY_GPUS: Mapping[str, int] = {
    "standard_gpu": 1,
    "complex_model_m_gpu": 4,
    "complex_model_l_gpu": 8,
    "standard_p100": 1,
    "complex_model_m_p100": 4,
    "standard_v100": 1,
    "large_model_v100": 1,
    "complex_model_m_v100": 4,
    "complex_model_l_v100": 8,
}
LEGACY_MACHINES = frozenset(
    (
        *_LEGACY_GPUS,
        "standard",
        "large_model",
        "complex_model_s",
        "complex_model_m",
        "complex_model_l",
        "cloud_tpu",
    )
)
