"""Versions with a container, run by a stand-in for docker's command (tests/containers/engine.py)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.containers.stand_in import IMAGE, Engine
from tests.server import Server, processes_of, running_server, until

MODEL = "projects/containers/models/m"
VERSION = f"{MODEL}/versions/v1"


def is_alive(pid: int) -> bool:
    """Whether there is such a process, dead ones that nobody has waited for left out."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The engine of the server."""
    return Engine.make(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def server(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the engine, and a version that its container serves."""
    folder = tmp_path_factory.mktemp("containers")
    (folder / "model").mkdir()
    (folder / "model" / "weights.bin").write_bytes(b"1")
    with running_server(
        folder / "state",
        *("--container-engine", str(engine.folder / "docker"), "--call-timeout", "3"),
        *("--max-answer-bytes", "1000000"),
    ) as server:
        server.create_model(MODEL)
        server.create_version(
            VERSION,
            deploymentUri=str(folder / "model"),
            container={
                "image": IMAGE,
                "args": ["--mode=$(AIP_MODE)", "$$(AIP_MODE)", "$(NOBODY)"],
                "env": [
                    {"name": "OWN_A", "value": "a"},
                    {"name": "OWN_B", "value": "$(OWN_A)-$(AIP_MODEL_NAME)"},
                ],
                "ports": [{"containerPort": 9000}],
            },
            routes={"predict": "/ask"},
        )
        yield server


def ask(server: Server, instance: Any) -> Any:
    """The prediction for one instance."""
    reply = server.predict(VERSION, [instance])
    assert reply.status == 200, reply.json
    return reply.json["predictions"][0]


def test_the_contract(server: Server) -> None:
    """It has its variables, arguments and files; requests go in and predictions come out as they are."""
    found = ask(server, "environment")
    assert found.pop("AIP_HTTP_PORT").isdecimal()
    assert found.pop("AIP_STORAGE_URI")
    assert found == {
        "AIP_HEALTH_ROUTE": "/v1/models/m/versions/v1",
        "AIP_PREDICT_ROUTE": "/ask",
        "AIP_MODEL_NAME": "m",
        "AIP_VERSION_NAME": "v1",
        "AIP_MODE": "PREDICTION",
        "AIP_MODE_VERSION": "1.0.0",
        "AIP_FRAMEWORK": "CUSTOM_CONTAINER",
        "AIP_MACHINE_TYPE": "mls1-c1-m2",
        "AIP_ACCELERATOR_TYPE": "",
        "AIP_PROJECT_NUMBER": "containers",
        "OWN_A": "a",
        "OWN_B": "a-m",
    }
    assert ask(server, "arguments") == ["--mode=PREDICTION", "$(AIP_MODE)", "$(NOBODY)"]
    assert ask(server, "files") == ["weights.bin"]
    instances = [1.5, {"x": [None, True, "ä"]}, "body"]
    sent = {"instances": instances, "parameters": {"top": 3}, "signature_name": "s"}
    reply = server.call("POST", f"{VERSION}:predict", json=sent)
    assert reply.json == {"predictions": [1.5, instances[1], sent]}


def test_one_container_is_asked_several_requests_at_a_time(server: Server) -> None:
    """Two that wait for each other, through one node."""
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda _: ask(server, "meet"), range(2)))

    assert answers == ["met", "met"]
    assert len(server.nodes(VERSION)) == 1


def test_what_the_engine_is_told(engine: Engine, server: Server) -> None:
    """The container is published to this machine alone, and may not gain rights."""
    ask(server, 1)
    command = engine.containers[0]["command"]

    assert command[:3] == ["run", "--rm", "--name"]
    assert command[command.index("--publish") + 1] == "127.0.0.1::9000"
    assert command[command.index("--security-opt") + 1] == "no-new-privileges"
    assert command[command.index("--volume") + 1].endswith("/model:/mnt/models:ro")


def test_the_version_is_as_it_was_given(server: Server) -> None:
    """Also its routes; it has no framework."""
    version = server.call("GET", VERSION).json

    assert version["container"]["image"] == IMAGE
    assert version["routes"] == {"predict": "/ask"}
    assert "framework" not in version


@pytest.mark.parametrize(
    ("instance", "status", "text"),
    [
        (404, 400, "The container answered 404: {"),
        (422, 400, "as was asked"),
        (500, 500, "The container answered 500"),
        (503, 503, "The container answered 503"),
        ("nonsense", 500, 'The container must answer {"predictions": [...]}'),
    ],
)
def test_errors_of_the_container(server: Server, instance: Any, status: int, text: str) -> None:
    """They have the container's own words."""
    reply = server.predict(VERSION, [instance])

    assert reply.status == status
    assert text in reply.error["message"]


@pytest.mark.parametrize("instance", ["much", "endless"])
def test_an_answer_over_the_limit_is_not_read(server: Server, instance: str) -> None:
    """Whether its length is told or not; the container is asked again afterwards."""
    before = ask(server, "pid")
    reply = server.predict(VERSION, [instance])

    assert reply.status == 500
    assert "setting max_answer_bytes" in reply.error["message"]
    assert ask(server, "pid") == before


def test_its_log_is_that_of_the_node(server: Server) -> None:
    """What a container prints is in the server's log, as what nodes print."""
    ask(server, "say")

    until(lambda: "said in the container" in server.log.read_text(), "the line is in the log")


def test_a_container_that_dies_is_replaced(server: Server) -> None:
    """The request is not sent again; the next one is answered by another container."""
    before = ask(server, "pid")
    nodes = server.nodes(VERSION)
    reply = server.predict(VERSION, ["die"])

    assert reply.status == 500
    until(lambda: not is_alive(before), "the container is gone")
    until(lambda: not set(nodes) & set(server.nodes(VERSION)), "its node has learnt of it")
    assert ask(server, "pid") != before
    log = server.log.read_text()
    assert "The container of the model ended (exit code 3; it said: " in log
    assert "about to die)." in log
    assert server.predict(VERSION, ["die loudly"]).status == 500
    until(lambda: f"it said: {'x' * 300})." in server.log.read_text(), "its last line is told, in part")


def test_a_container_goes_with_its_node(server: Server, engine: Engine) -> None:
    """Also if that is killed, and when it is killed because a call hangs."""
    container = ask(server, "pid")
    versions = server.call("GET", "/nodes").json["versions"]
    for node in (one for version in versions for one in version["nodes"] if version["version"] == VERSION):
        os.kill(node["pid"], signal.SIGKILL)
    until(lambda: not is_alive(container), "the container is gone")

    container = ask(server, "pid")
    reply = server.predict(VERSION, ["hang"])
    assert reply.status in (500, 504)
    until(lambda: not is_alive(container), "the container is gone")
    assert ask(server, 1) == 1
    until(lambda: len(engine.containers) == 1, "there is one container")


def test_versions_that_cannot_be(server: Server) -> None:
    """An image that is nowhere, and a container that ends, fail the creation and say why."""
    nowhere = server.wait(server.begin_version(f"{MODEL}/versions/nowhere", container={"image": "nowhere"}))
    broken = server.wait(server.begin_version(f"{MODEL}/versions/broken", container={"image": "broken"}))

    assert "manifest unknown" in nowhere["error"]["message"]
    assert "exit code 7; it said: no model here" in broken["error"]["message"]


@pytest.mark.parametrize(
    ("version", "field"),
    [
        ({"container": {}}, "version.container.image"),
        ({"container": {"image": "--privileged"}}, "version.container.image"),
        ({"container": {"image": "i"}, "runtimeVersion": "2.11"}, "version.runtime_version"),
        ({"container": {"image": "i"}, "framework": "XGBOOST"}, "version.framework"),
        ({"container": {"image": "i", "env": [{"name": "AIP_MODE"}]}}, "version.container.env"),
        ({"container": {"image": "i", "env": [{"name": "a-b"}]}}, "version.container.env"),
        ({"container": {"image": "i", "ports": [{"containerPort": 70000}]}}, "version.container.ports"),
        ({"container": {"image": "i"}, "routes": {"health": "health"}}, "version.routes.health"),
    ],
)
def test_wrong_containers(server: Server, version: dict[str, Any], field: str) -> None:
    """They are refused at once, with the field."""
    reply = server.call("POST", f"{MODEL}/versions", json={"name": "wrong", **version})

    assert reply.status == 400
    assert f"Field: {field} Error" in reply.error["message"]


def test_no_batch_predictions(server: Server) -> None:
    """As AI Platform had none of containers."""
    job = {
        "dataFormat": "JSON",
        "inputPaths": ["/x"],
        "outputPath": "/y",
        "region": "r",
        "versionName": VERSION,
    }
    reply = server.call("POST", "projects/containers/jobs", json={"jobId": "j", "predictionInput": job})

    assert reply.status == 400
    assert "has a container" in reply.error["message"]


def test_without_the_setting(tmp_path: Path) -> None:
    """The refusal names it; so does that of a setting that names no program."""
    with running_server(tmp_path / "state") as server:
        server.create_model(MODEL)
        reply = server.call("POST", f"{MODEL}/versions", json={"name": "v1", "container": {"image": "i"}})

    assert reply.status == 400
    assert "container_engine" in reply.error["message"]
    assert "--container-engine docker" in reply.error["message"]


@pytest.mark.soak
def test_idle_versions_have_no_container(engine: Engine, server: Server, tmp_path: Path) -> None:
    """It goes to zero, wakes with a request, and is gone when the server is killed."""
    with running_server(
        tmp_path / "state", "--container-engine", str(engine.folder / "docker"), "--idle-timeout", "1"
    ) as other:
        other.create_model(MODEL)
        other.create_version(VERSION, container={"image": IMAGE})
        first = ask(other, "pid")
        until(lambda: not is_alive(first), "the idle container is gone")
        assert ask(other, "environment")["AIP_STORAGE_URI"] == ""
        second = ask(other, "pid")
        assert second != first
        other.process.kill()
        until(lambda: not is_alive(second), "the container of a killed server is gone")
        other.process.wait()
        until(lambda: not processes_of(other.state_dir), "all that belonged to it is gone")
