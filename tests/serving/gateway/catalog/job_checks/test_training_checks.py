"""What a trainingInput may be, field by field."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from serving.errors import InvalidArgument
from serving.gateway.catalog.job_checks.training_checks import (
    TrainingRules,
    check_training_input,
    check_training_options,
    parse_duration,
)
from serving.gateway.catalog.job_checks.training_replicas import list_replica_groups
from serving.resources import Job, TrainingInput, TrainingOptions, resource_from_json

INPUT: dict[str, Any] = {
    "region": "us-central1",
    "packageUris": ["gs://b/trainer-0.1.tar.gz"],
    "pythonModule": "trainer.task",
}
CUSTOM = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4"}
IMAGE: dict[str, Any] = {
    "packageUris": None,
    "pythonModule": None,
    "masterConfig": {"imageUri": "gcr.io/p/trainer:1"},
}
BUILT_IN = {
    **IMAGE,
    "masterConfig": {"imageUri": "gcr.io/cloud-ml-algos/boosted_trees:latest"},
    "jobDir": "gs://b/out",
}
GPU = {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": "1"}}


def parse(**changes: Any) -> TrainingInput:
    return resource_from_json(TrainingInput, {**INPUT, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scaleTier": None},
        {"scaleTier": "standard_1", "runtimeVersion": "2.11", "pythonVersion": "3.7"},
        {"packageUris": ["/data/trainer-0.1-py3-none-any.whl", "file:///data/more.zip"]},
        {**CUSTOM, "workerCount": 2, "workerType": "n1-highmem-8", "evaluatorCount": "0"},
        # As tensorflow-cloud sends it.
        {
            "scaleTier": "custom",
            "master_type": "n1-standard-4",
            "worker_count": "0",
            "use_chief_in_tf_config": True,
            "master_config": {"acceleratorConfig": {"type": "ACCELERATOR_TYPE_UNSPECIFIED", "count": "0"}},
        },
        {**CUSTOM, "masterConfig": GPU},
        {"jobDir": "/data/out", "args": ["--steps", "5"]},
        {"args": ["x" * 90_000]},
        {"scheduling": {"maxRunningTime": "3600s", "maxWaitTime": "1800.5s", "priority": 1000}},
        {**IMAGE, "args": ["--x"]},
        {**IMAGE, "masterConfig": {"imageUri": "gcr.io/p/t", "containerCommand": ["run"]}},
        BUILT_IN,
        {"enableWebAccess": False, "network": "projects/1/global/networks/n", "serviceAccount": "a@b"},
    ],
)
def test_what_is_taken(changes: dict[str, Any]) -> None:
    check_training_input(parse(**changes))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"region": None}, "region"),
        ({"region": "US Central"}, "region"),
        ({"packageUris": None}, "package_uris"),
        ({"packageUris": [f"gs://b/{n}.whl" for n in range(101)]}, "package_uris"),
        ({"packageUris": ["gs://b/1/t.tar.gz", "gs://b/2/t.tar.gz"]}, "package_uris"),
        ({"packageUris": ["s3://b/t.tar.gz"]}, "package_uris"),
        ({"packageUris": ["t.tar.gz"]}, "package_uris"),
        ({"packageUris": ["gs://b/t.exe"]}, "package_uris"),
        ({"pythonModule": None}, "python_module"),
        ({"pythonModule": "trainer/task.py"}, "python_module"),
        ({**IMAGE, "pythonModule": "trainer.task"}, "python_module"),
        ({**IMAGE, "packageUris": ["gs://b/t.whl"]}, "package_uris"),
        ({**IMAGE, "runtimeVersion": "2.11"}, "runtime_version"),
        ({"masterConfig": {"imageUri": "-v"}, "packageUris": None, "pythonModule": None},
         "master_config.image_uri"),
        ({**BUILT_IN, "masterConfig": {"imageUri": "gcr.io/cloud-ml-algos/tab_net"}},
         "master_config.image_uri"),
        ({**BUILT_IN, "jobDir": None}, "job_dir"),
        ({"runtimeVersion": "two"}, "runtime_version"),
        ({"pythonVersion": "python3"}, "python_version"),
        ({"scaleTier": "HUGE"}, "scale_tier"),
        ({"scaleTier": "CUSTOM"}, "master_type"),
        ({"workerCount": 1}, "worker_count"),
        ({"workerType": "n1-standard-4"}, "worker_type"),
        ({"parameterServerConfig": {}}, "parameter_server_config"),
        ({**CUSTOM, "workerCount": 1}, "worker_type"),
        ({**CUSTOM, "evaluatorType": "n1-standard-4"}, "evaluator_count"),
        ({**CUSTOM, "workerCount": "-1", "workerType": "n1-standard-4"}, "worker_count"),
        ({**CUSTOM, "workerCount": "9999", "workerType": "n1-standard-4"}, "worker_count"),
        ({**CUSTOM, "workerCount": 1, "workerType": "standard"}, "worker_type"),
        ({"scaleTier": "CUSTOM", "masterType": "standard_gpu", "masterConfig": GPU},
         "master_config.accelerator_config"),
        ({**CUSTOM, "masterConfig": {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4"}}},
         "master_config.accelerator_config"),
        ({**CUSTOM, "masterConfig": {"acceleratorConfig": {"count": "2"}}},
         "master_config.accelerator_config"),
        ({"args": ["x"], "masterConfig": {"containerArgs": ["y"]}}, "args"),
        ({"args": ["x" * (128 << 10)]}, "args"),
        ({"args": ["x" * 50_000, "y" * 50_000]}, "args"),
        ({"args": ["é" * 20_000]}, "args"),  # six bytes each in TF_CONFIG
        ({"masterConfig": {"containerArgs": ["y"]}}, "master_config.container_args"),
        ({**CUSTOM, "workerCount": 1, "workerType": "n1-standard-4", "workerConfig": {"imageUri": "i"}},
         "worker_config.image_uri"),
        ({"scheduling": {"maxWaitTime": "60s"}}, "scheduling.max_wait_time"),
        ({"scheduling": {"maxRunningTime": "1h"}}, "scheduling.max_running_time"),
        ({"scheduling": {"maxRunningTime": "0s"}}, "scheduling.max_running_time"),
        ({"scheduling": {"priority": 1001}}, "scheduling.priority"),
        ({"jobDir": "out"}, "job_dir"),
        ({"jobDir": "gs:///out"}, "job_dir"),
        ({"jobDir": "gs://b/*"}, "job_dir"),
        ({"jobDir": "/tmp/a\0b"}, "job_dir"),
        ({"jobDir": "file:///tmp/a%00b"}, "job_dir"),
        ({"packageUris": ["/tmp/a\0b.whl"]}, "package_uris"),
        ({"hyperparameters": {"maxTrials": 2}}, "hyperparameters.params"),
        ({"args": ["a\0b"]}, "args"),
    ],
)  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^Field: training_input\.{field} Error: "):
        check_training_input(parse(**changes))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"threads": -1}, "threads"),
        ({"memoryBytes": "1G"}, "memory_bytes"),
        ({"memoryBytes": "9" * 5000}, "memory_bytes"),
        ({"env": {"A-B": "x"}}, "env"),
        ({"env": {"A": "\0"}}, "env"),
        ({"deploy": {}}, "deploy.model"),
        ({"deploy": {"model": "a b"}}, "deploy.model"),
        ({"deploy": {"model": "m", "version": "1"}}, "deploy.version"),
        ({"deploy": {"model": "m", "path": "../x"}}, "deploy.path"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^Field: training_options\.{field} Error: "):
        check_training_options(resource_from_json(TrainingOptions, options))


@pytest.mark.parametrize(
    ("changes", "replicas"),
    [
        ({}, [("master", 1, 0)]),
        ({"scaleTier": "standard_1"}, [("master", 1, 0), ("worker", 4, 0), ("ps", 3, 0)]),
        ({"scaleTier": "PREMIUM_1"}, [("master", 1, 0), ("worker", 19, 0), ("ps", 11, 0)]),
        ({"scaleTier": "BASIC_GPU"}, [("master", 1, 1)]),
        ({"scaleTier": "CUSTOM", "masterType": "complex_model_m_gpu"}, [("master", 1, 4)]),
        (
            {**CUSTOM, "masterConfig": GPU, "workerCount": 2, "workerType": "n1-standard-4",
             "evaluatorCount": "1", "evaluatorType": "n1-standard-4"},
            [("master", 1, 1), ("worker", 2, 0), ("evaluator", 1, 0)],
        ),
    ],
)  # fmt: skip
def test_tiers_and_counts(changes: dict[str, Any], replicas: list[tuple[str, int, int]]) -> None:
    """Groups without replicas are left out."""
    groups = list_replica_groups(parse(**changes))

    assert [(group.role, group.number, group.gpus) for group in groups] == replicas


def test_durations() -> None:
    assert parse_duration("") == 0
    assert parse_duration("1.5s") == 1.5
    for text in ("5", "s", "-1s", "1.0000000001s", "1e3s"):
        with pytest.raises(ValueError, match=text):
            parse_duration(text)


def test_the_output_of_a_built_in_algorithm_is_shown_as_it_was_sent() -> None:
    """The console sends one, and reads it at once; of other jobs none is taken."""
    rules = TrainingRules()
    sent = {"isBuiltInAlgorithmJob": True, "builtInAlgorithmOutput": {"framework": "XGBOOST"}}
    body = {"trainingInput": {**INPUT, **BUILT_IN}, "trainingOutput": sent}

    output = rules.build_first_output(resource_from_json(Job, body))

    assert output.is_built_in_algorithm_job
    assert output.built_in_algorithm_output is not None
    assert output.built_in_algorithm_output.framework == "XGBOOST"
    plain = resource_from_json(Job, {"trainingInput": INPUT, "trainingOutput": {"consumedMLUnits": 7}})
    assert rules.build_first_output(plain).consumed_ml_units == 0


@pytest.mark.parametrize(
    ("variables", "is_taken"),
    [
        ({"X": "x" * ((128 << 10) - 3)}, True),
        ({"X": "x" * ((128 << 10) - 2)}, False),
        ({f"X{number}": "x" * 100_000 for number in range(11)}, False),
    ],
)
def test_variables_that_no_process_can_have(variables: dict[str, str], is_taken: bool) -> None:
    """The kernel is asked too: it takes what is taken here."""
    options = resource_from_json(TrainingOptions, {"env": variables})
    if is_taken:
        check_training_options(options)
        subprocess.run(["/bin/true"], env=variables, check=True)
    else:
        with pytest.raises(InvalidArgument, match=r"training_options\.env"):
            check_training_options(options)
