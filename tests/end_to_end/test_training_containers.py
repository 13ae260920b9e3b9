"""Training jobs whose replicas are containers, run by a stand-in for docker's command."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.containers.stand_in import Engine
from tests.end_to_end.jobs import finished, submit
from tests.end_to_end.training_jobs import PARENT, list_log, texts
from tests.server import Server, running_server, until

IMAGE = "trainer:1"
# It says who it is, and goes on from the step that it finds; at step 2 it waits as long as it is told.
PROGRAM = """
    import json, os, pathlib, signal, sys, time
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    print(task["type"], task["index"], os.environ["CLOUD_ML_JOB_ID"], *sys.argv[1:], flush=True)
    folder = pathlib.Path(sys.argv[-1])
    signal.signal(signal.SIGTERM, lambda *_: ((folder / "asked").touch(), sys.exit(3)))
    if task["type"] == "worker":
        print("at work", file=sys.stderr, flush=True)
        time.sleep(600)
    done = folder / "step"
    while (step := int(done.read_text()) if done.exists() else 0) < 3:
        print("step", step + 1, flush=True)  # first: who sees the file may kill the program
        done.write_text(str(step + 1))
        while step == 1 and (folder / "wait").exists():
            time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("engine")
    program = folder / "program.py"
    program.write_text(dedent(PROGRAM))
    engine = Engine.make(folder)
    engine.add("registry/trainer.json", IMAGE, [sys.executable, str(program)], ["by", "default"])
    return engine


@pytest.fixture(scope="module")
def server(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    state = tmp_path_factory.mktemp("containers") / "state"
    with running_server(state, "--container-engine", engine.command) as server:
        yield server


def container_job(job_id: str, folder: Path, **given: Any) -> dict[str, Any]:
    fields = {"region": "us-central1", "masterConfig": {"imageUri": IMAGE}, "jobDir": str(folder), **given}
    return {"jobId": job_id, "trainingInput": fields}


def list_pids(engine: Engine) -> list[int]:
    return [container["pid"] for container in engine.containers]


def test_a_cluster_of_containers(server: Server, engine: Engine, tmp_path: Path) -> None:
    """Each is told its task, and has the job's folder; the master's end is the job's."""
    job = container_job(
        "cluster", tmp_path, args=["--epochs", "2"], scaleTier="CUSTOM", masterType="n1-standard-4",
        workerType="n1-standard-4", workerCount="1",
    )  # fmt: skip

    ended = finished(server, submit(server, job))

    assert ended["state"] == "SUCCEEDED", ended
    assert ended["trainingInput"] == job["trainingInput"]
    assert (tmp_path / "step").read_text() == "3"
    log = list_log(server, "cluster")
    lines = {name: [one for one in log if one["resource"]["labels"]["task_name"] == name] for name in TASKS}
    arguments = f"cluster --epochs 2 --job-dir {tmp_path}"
    assert texts(lines["master-replica-0"]) == [f"master 0 {arguments}", "step 1", "step 2", "step 3"]
    assert texts(lines["worker-replica-0"])[:1] == [f"worker 0 {arguments}"]
    assert "Pulling images." in texts(lines["service"])
    assert engine.containers == []


TASKS = ("master-replica-0", "worker-replica-0", "service")


def test_words_in_place_of_an_images_own(server: Server, tmp_path: Path) -> None:
    """A command and arguments of the container are taken as they are; nothing is added."""
    config = {
        "imageUri": "trainer:1",
        "containerCommand": ["/bin/sh", "-c"],
        "containerArgs": ["echo $0 $CLOUD_ML_JOB_ID; exit 3", "shell"],
    }

    ended = finished(server, submit(server, container_job("words", tmp_path, masterConfig=config)))

    assert ended["state"] == "FAILED"
    assert "exited with a non-zero status of 3" in ended["errorMessage"]
    assert "shell words" in texts(list_log(server, "words"))


def test_a_container_that_is_killed(server: Server, engine: Engine, tmp_path: Path) -> None:
    """It is started again, and goes on from what it has written."""
    (tmp_path / "wait").touch()
    name = submit(server, container_job("killed_container", tmp_path))
    until(lambda: (tmp_path / "step").exists() and (tmp_path / "step").read_text() == "2", "it is at step 2")

    (pid,) = list_pids(engine)
    os.killpg(pid, signal.SIGKILL)

    assert finished(server, name)["state"] == "SUCCEEDED"
    started = [text for text in texts(list_log(server, "killed_container")) if text.startswith("master 0 ")]
    assert len(started) == 2


def test_a_cancelled_container(server: Server, engine: Engine, tmp_path: Path) -> None:
    """It is asked to end first, and nothing of it is left."""
    (tmp_path / "wait").touch()
    name = submit(server, container_job("cancelled_container", tmp_path))
    until((tmp_path / "step").exists, "it is at work")

    server.call("POST", f"{name}:cancel")

    assert finished(server, name)["state"] == "CANCELLED"
    assert (tmp_path / "asked").exists()
    assert engine.containers == []


def test_an_image_that_is_not_there(server: Server, tmp_path: Path) -> None:
    job = container_job("no_image", tmp_path, masterConfig={"imageUri": "registry.example.com/nobody:1"})

    ended = finished(server, submit(server, job))

    assert ended["state"] == "FAILED"
    assert "registry.example.com/nobody:1 cannot be had" in ended["errorMessage"]
    assert "manifest unknown" in ended["errorMessage"]


def test_containers_of_a_server_that_is_killed(engine: Engine, tmp_path: Path) -> None:
    """They are removed, and the next server's go on."""
    out, state = tmp_path / "out", tmp_path / "state"
    out.mkdir()
    (out / "wait").touch()
    with running_server(state, "--container-engine", engine.command) as server:
        name = submit(server, container_job("killed_server", out))
        until(lambda: (out / "step").exists() and (out / "step").read_text() == "2", "it is at step 2")
        server.kill()
        until(lambda: not engine.containers, "the container is removed")
        server.wait_for_end()
    (out / "wait").unlink()
    with running_server(state, "--container-engine", engine.command) as server:
        assert finished(server, name)["state"] == "SUCCEEDED"
        steps = [text for text in texts(list_log(server, "killed_server")) if text.startswith("step")]
        assert steps == ["step 1", "step 2", "step 3"]
        assert server.call("GET", f"{PARENT}/jobs/killed_server").json["state"] == "SUCCEEDED"


# A trial: it reports as the package cloudml-hypertune does, and waits as long as it is told.
TRIAL = """
    import json, os, pathlib, sys, time
    folder = pathlib.Path(sys.argv[-1])
    print("trial", os.environ["CLOUD_ML_TRIAL_ID"], flush=True)
    (folder / "begun").touch()
    while (folder.parent / "wait").exists():
        time.sleep(0.01)
    trial, now = os.environ["CLOUD_ML_TRIAL_ID"], time.time()
    report = dict(accuracy="0.5", global_step="1", timestamp=now, trial=trial, checkpoint_path="")
    with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w") as file:
        file.write(json.dumps(report) + "\\n")
"""


def test_trials_in_containers_of_a_server_that_is_killed(engine: Engine, tmp_path: Path) -> None:
    """All containers are removed, and the trials are run again."""
    program = tmp_path / "trial.py"
    program.write_text(dedent(TRIAL))
    engine.add("images/trial.json", "trial:1", [sys.executable, str(program)], [])
    out, state = tmp_path / "out", tmp_path / "state"
    out.mkdir()
    (out / "wait").touch()
    rate = {"parameterName": "rate", "type": "DOUBLE", "minValue": 0, "maxValue": 1}
    spec = {
        "hyperparameterMetricTag": "accuracy", "params": [rate], "maxTrials": 2, "maxParallelTrials": 2,
    }  # fmt: skip
    job = container_job("trials", out, masterConfig={"imageUri": "trial:1"}, hyperparameters=spec)
    with running_server(state, "--container-engine", engine.command) as server:
        name = submit(server, job)
        until(lambda: len(list(out.glob("*/begun"))) == 2, "both trials are at work")
        server.kill()
        until(lambda: not engine.containers, "the containers are removed")
        server.wait_for_end()
    (out / "wait").unlink()
    with running_server(state, "--container-engine", engine.command) as server:
        ended = finished(server, name)

        assert ended["state"] == "SUCCEEDED", (ended, texts(list_log(server, "trials")))
        assert ended["trainingOutput"]["completedTrialCount"] == "2"
        assert engine.containers == []


def test_a_server_that_is_started_without_an_engine(engine: Engine, tmp_path: Path) -> None:
    """The job fails, and says what is missing."""
    out, state = tmp_path / "out", tmp_path / "state"
    out.mkdir()
    (out / "wait").touch()
    with running_server(state, "--container-engine", engine.command) as server:
        name = submit(server, container_job("no_engine", out))
        until((out / "step").exists, "it is at work")
        assert server.stop() == 0
    assert engine.containers == []
    with running_server(state) as server:
        ended = finished(server, name)

        assert ended["state"] == "FAILED"
        assert "This server runs no containers" in ended["errorMessage"]
        assert server.stop() == 0
