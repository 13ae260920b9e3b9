"""Clusters and built-in algorithms through a real server: strategies that users of AI Platform train with."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.jobs import finished, submit
from tests.end_to_end.training_jobs import PARENT, list_log, texts, training_job, write_wheel
from tests.server import Server, until
from tests.training.strategies import CUSTOM_LOOP, DISTRIBUTED_XGBOOST, KERAS, PARAMETER_SERVER, QUIET

CUSTOM = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4"}
WORKER = {"workerType": "n1-standard-4", "workerCount": "1"}
SERVER = {"parameterServerType": "n1-standard-4", "parameterServerCount": "1"}
ALGORITHMS = "gcr.io/cloud-ml-algos"
# Raw rows of `mixed`: a number, a category, and one that is not known.
LARGE_RED, SMALL_BLUE = [0.95, "red", None], [0.05, "blue", 3]


def run(server: Server, job_id: str, wheel: Path, env: Any = None, **given: Any) -> dict[str, list[str]]:
    """Have the job succeed; returns the lines of each task."""
    job = training_job(job_id, wheel, **CUSTOM, **given)
    ended = finished(server, submit(server, {**job, "trainingOptions": {"env": {**QUIET, **(env or {})}}}))
    assert ended["state"] == "SUCCEEDED", (ended, texts(list_log(server, job_id))[-30:])
    found: dict[str, list[str]] = {}
    for entry in list_log(server, job_id):
        found.setdefault(entry["resource"]["labels"]["task_name"], []).append(entry["textPayload"])
    return found


@pytest.mark.timeout(900)
def test_distributed_xgboost(server: Server, tmp_path: Path) -> None:
    """Both ranks have the same model."""
    lines = run(server, "xgboost_cluster", write_wheel(tmp_path, DISTRIBUTED_XGBOOST), **WORKER)

    master, worker = lines["master-replica-0"], lines["worker-replica-0"]
    assert "rank 0 of 2" in master
    assert "rank 1 of 2" in worker
    models = [[line for line in lines if line.startswith("model ")] for lines in (master, worker)]
    assert len(models[0]) == 1
    assert models[0] == models[1]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_custom_loop_across_workers(server: Server, tmp_path: Path) -> None:
    lines = run(server, "custom_loop", write_wheel(tmp_path, CUSTOM_LOOP), **WORKER)

    assert lines["master-replica-0"][-1] == "replicas 2 weight 3.0"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_keras_across_workers(server: Server, tmp_path: Path) -> None:
    env = {"TF_USE_LEGACY_KERAS": "1"}
    lines = run(server, "keras_workers", write_wheel(tmp_path, KERAS), env, **WORKER)

    assert lines["master-replica-0"][-1] == "losses 2 tf_keras"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_parameter_servers(server: Server, tmp_path: Path) -> None:
    """Worker and parameter server never end by themselves."""
    wheel = write_wheel(tmp_path, PARAMETER_SERVER)
    lines = run(server, "parameter_servers", wheel, **WORKER, **SERVER)

    assert lines["master-replica-0"][-1] == "total 10.0"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target, a number, a category, and a number that may be missing."""
    chance = random.Random(1)
    file = tmp_path_factory.mktemp("data") / "mixed.csv"
    with file.open("w") as table:
        for _ in range(300):
            number, colour = chance.random(), chance.choice(["red", "green", "blue"])
            target = int(number + (0.5 if colour == "red" else 0) > 0.7)
            known = "" if chance.random() < 0.05 else chance.randint(0, 9)
            table.write(",".join(map(str, [target, number, colour, known])) + "\n")
    return file


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = random.Random(2)
    file = tmp_path_factory.mktemp("data") / "numbers.csv"
    rows = [(chance.random(), chance.random()) for _ in range(300)]
    file.write_text("".join(f"{int(first + second > 1)},{first},{second}\n" for first, second in rows))
    return file


def deploy_algorithm(
    server: Server, name: str, folder: Path, args: list[str], **given: Any
) -> dict[str, Any]:
    """Train with a built-in algorithm and have it deployed; returns the job."""
    model = f"{PARENT}/models/{name}"
    server.create_model(model)
    fields = {
        "region": "us-central1", "masterConfig": {"imageUri": f"{ALGORITHMS}/{name}:latest"}, "args": args,
        "jobDir": str(folder), **given,
    }  # fmt: skip
    options = {"deploy": {"model": name, "version": "v1"}}
    body = {"jobId": f"algorithm_{name}", "trainingInput": fields, "trainingOptions": options}

    ended = finished(server, submit(server, body))

    assert ended["state"] == "SUCCEEDED", ended
    output: dict[str, Any] = ended["trainingOutput"]
    assert output["isBuiltInAlgorithmJob"] is True
    assert output["builtInAlgorithmOutput"]["modelPath"] == f"{folder}/model"
    until(lambda: server.call("GET", f"{model}/versions/v1").json.get("state") == "READY", "it is deployed")
    return output


@pytest.mark.timeout(900)
def test_the_linear_learner(server: Server, mixed: Path, tmp_path: Path) -> None:
    args = ["--preprocess", "--model_type=classification", f"--training_data_path={mixed}"]

    output = deploy_algorithm(server, "linear_learner_cpu", tmp_path, args)

    assert output["builtInAlgorithmOutput"]["framework"] == "SCIKIT_LEARN"
    reply = server.predict(f"{PARENT}/models/linear_learner_cpu", [LARGE_RED, SMALL_BLUE])
    assert reply.json["predictions"] == [1, 0]


@pytest.mark.timeout(900)
def test_boosted_trees(server: Server, mixed: Path, tmp_path: Path) -> None:
    args = ["--preprocess", "--objective=binary:logistic", f"--training_data_path={mixed}"]

    output = deploy_algorithm(server, "boosted_trees", tmp_path, args)

    assert output["builtInAlgorithmOutput"]["framework"] == "SCIKIT_LEARN"
    reply = server.predict(f"{PARENT}/models/boosted_trees", [LARGE_RED, SMALL_BLUE])
    assert reply.json["predictions"] == [1, 0]


@pytest.mark.timeout(900)
def test_distributed_boosted_trees(server: Server, numbers: Path, tmp_path: Path) -> None:
    args = ["--objective=binary:logistic", "--num_boost_round=20", f"--training_data_path={numbers}"]

    output = deploy_algorithm(server, "xgboost_dist", tmp_path, args, **CUSTOM, **WORKER)

    assert output["builtInAlgorithmOutput"]["framework"] == "XGBOOST"
    high, low = server.predict(f"{PARENT}/models/xgboost_dist", [[0.9, 0.9], [0.1, 0.1]]).json["predictions"]
    assert high > 0.9
    assert low < 0.1
