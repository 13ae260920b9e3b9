"""Nodes that hang are replaced: of a model that does not come back, and of a process that does not react."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.bounds import HANG_SECONDS
from tests.end_to_end import models
from tests.server import Server, running_node, running_server, until
from tests.serving.runtimes.onnx_runtime.models import ENDLESS, make_endless

MODEL = "projects/hangs/models/m"
ROUTINE = f"{MODEL}/versions/routine"
PLAIN = f"{MODEL}/versions/plain"
LOOPING = f"{MODEL}/versions/looping"

CALL_TIMEOUT = 1.5

# Answers a number with its double, and does what words say.
MOODY = dedent(
    """
    import os
    import time

    def leave():  # a process in a session of its own, without a parent
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setsid()
            pid = os.fork()
            if pid == 0:
                time.sleep(600)
            os.write(writing, str(pid).encode())
            os._exit(0)
        return int(os.read(reading, 20))

    class Panic(BaseException):  # as libraries written in Rust raise it
        pass

    class Moody:
        def predict(self, instances, **kwargs):
            return [self.answer(instance) for instance in instances]

        def answer(self, instance):
            if instance == "loop":
                while True:
                    pass
            if instance == "native":
                return len(str(7 ** (10 ** 8)))  # minutes, in which no other thread runs
            if instance == "leave":
                return leave()
            if instance == "panic":
                raise Panic
            if instance == "sleep":
                time.sleep(4)
                return "slept"
            return instance * 2

        @classmethod
        def from_path(cls, model_dir):
            return cls()
    """
)


def routine(folder: Path) -> dict[str, Any]:
    """The fields of a version with that routine."""
    folder.mkdir(exist_ok=True)
    (folder / "model.txt").write_text("any")
    package = models.wheel(folder.parent, "moody", "0.1", {"moody.py": MOODY})
    return {
        "deploymentUri": str(folder), "predictionClass": "moody.Moody", "packageUris": [str(package)]
    }  # fmt: skip


@dataclass(frozen=True)
class World:
    """A server with two versions, and where its temporary files go."""

    server: Server
    temporary: Path

    def hung(self, version: str) -> float:
        """How many nodes of a version were killed because they hung, as `/metrics` tells."""
        text = self.server.http.get(f"{self.server.url}/metrics").text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "pilotlight_hung_nodes_total"
            and sample.labels["version"] == version.rpartition("/")[2]
        )

    def why(self, version: str) -> str:
        """All that `pilotlight why` has of a version."""
        return str(self.server.call("GET", f"/why/{version}").json)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Calls may take a moment only."""
    root = tmp_path_factory.mktemp("hangs")
    temporary = root / "tmp"
    temporary.mkdir()
    models.write_sklearn(root / "plain")
    flags = ("--call-timeout", str(CALL_TIMEOUT), "--max-nodes", "1")
    with running_server(root / "state", *flags, environment={"TMPDIR": str(temporary)}) as server:
        server.create_model(MODEL)
        server.create_version(ROUTINE, **routine(root / "routine"))
        server.create_version(PLAIN, deploymentUri=str(root / "plain"), framework="SCIKIT_LEARN")
        yield World(server, temporary)
        assert server.stop() == 0


@pytest.mark.parametrize("poison", ["loop", "native"])
def test_a_node_whose_model_does_not_come_back_is_replaced(world: World, poison: str) -> None:
    """The request that it hangs on fails and says why; those behind it are answered by the next node."""
    server, before = world.server, world.hung(ROUTINE)
    assert server.predict(ROUTINE, [1]).json == {"predictions": [2]}
    (node,) = server.nodes(ROUTINE)
    with ThreadPoolExecutor() as threads:
        bad = threads.submit(server.predict, ROUTINE, [poison])
        good = [threads.submit(server.predict, ROUTINE, [number]) for number in range(8)]

        replies = [future.result() for future in good]
        assert [reply.json for reply in replies] == [{"predictions": [2 * number]} for number in range(8)]
        error = bad.result().error
    assert error["code"] == 500
    assert "call_timeout" in error["message"]

    assert server.predict(ROUTINE, [1]).json == {"predictions": [2]}
    assert node not in server.nodes(ROUTINE)
    assert world.hung(ROUTINE) > before
    assert "setting call_timeout" in world.why(ROUTINE)


def test_a_loop_of_a_graph_that_does_not_end(world: World, tmp_path: Path) -> None:
    """ONNX's Loop has no limit of its own; the node that computes it is replaced too."""
    (tmp_path / "model.onnx").write_bytes(make_endless().SerializeToString())
    server = world.server
    server.create_version(LOOPING, deploymentUri=str(tmp_path), framework="ONNX")
    (node,) = server.nodes(LOOPING)

    error = server.predict(LOOPING, [[ENDLESS]]).error
    assert error["code"] == 500
    assert "call_timeout" in error["message"]

    assert server.predict(LOOPING, [[1.0]]).json == {"predictions": [{"y": [1.0]}]}
    assert node not in server.nodes(LOOPING)


def test_a_model_that_raises_no_exception_costs_the_request_alone(world: World) -> None:
    """What is raised would end a thread; the node answers with it, and goes on."""
    server = world.server
    assert server.predict(ROUTINE, [1]).json == {"predictions": [2]}
    node = server.nodes(ROUTINE)

    error = server.predict(ROUTINE, ["panic"]).error
    assert (error["code"], "Panic" in error["message"]) == (500, True)
    assert server.predict(ROUTINE, [1]).json == {"predictions": [2]}
    assert server.nodes(ROUTINE) == node


def test_a_node_that_does_not_react_is_replaced(world: World) -> None:
    """What it had been sent goes to the next one."""
    server, before = world.server, world.hung(ROUTINE)
    assert server.predict(ROUTINE, [1]).json == {"predictions": [2]}
    (node,) = server.nodes(ROUTINE)
    os.kill(node, signal.SIGSTOP)

    assert server.predict(ROUTINE, [1]).json == {"predictions": [2]}
    assert node not in server.nodes(ROUTINE)
    assert world.hung(ROUTINE) == before + 1
    assert "did not react" in world.why(ROUTINE)


def _remove_all(folder: Path) -> bool:
    """Whether nothing is left; processes may add to it and remove from it meanwhile."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_a_version_wakes_though_temporary_files_were_cleaned_away(world: World) -> None:
    """Whether it has nodes at that time or none; and the server says that it is ready."""
    server = world.server
    instances = [[1.0, 2.0, 3.0, 4.0]]
    expected = server.predict(PLAIN, instances).json
    until(lambda: _remove_all(world.temporary), "nothing is left of them")

    assert server.predict(PLAIN, instances).json == expected
    for node in server.nodes(PLAIN):
        os.kill(node, signal.SIGKILL)
    until(lambda: server.predict(PLAIN, instances).json == expected, "it is awake again")
    assert server.call("GET", "/readyz").status == 200
    world.temporary.mkdir(exist_ok=True)  # it may be there again


def test_a_node_alone_ends_when_its_model_does_not_come_back(tmp_path: Path) -> None:
    """Whoever runs it starts it again. Its log says why, and where the model is."""
    version = routine(tmp_path / "routine")
    flags = ("--prediction-class", version["predictionClass"], "--package-uris", version["packageUris"][0])
    with running_node(tmp_path / "routine", *flags, "--call-timeout", str(CALL_TIMEOUT)) as node:
        ready = partial(node.call, "GET", "/readyz")
        until(lambda: ready().status == 200, "the model is loaded")
        assert node.predict(MODEL, [1]).json == {"predictions": [2]}
        with pytest.raises(httpx.TransportError):
            node.predict(MODEL, ["loop"])
        assert node.process.wait(timeout=HANG_SECONDS) == 1
        log = node.log.read_text()
    assert f"one call of its model took more than {CALL_TIMEOUT:g} s (setting call_timeout)" in log
    assert "moody.py" in log


def test_who_computes_for_long_on_purpose_may(tmp_path: Path) -> None:
    """Nothing is killed where the setting is off."""
    with running_server(tmp_path / "state", "--call-timeout", "off") as server:
        server.create_model(MODEL)
        server.create_version(ROUTINE, **routine(tmp_path / "routine"))
        nodes = server.nodes(ROUTINE)
        assert server.predict(ROUTINE, ["sleep"]).json == {"predictions": ["slept"]}
        assert server.nodes(ROUTINE) == nodes
        assert server.stop() == 0


def test_a_preparation_that_was_stopped_is_given_up(tmp_path: Path) -> None:
    """As a build can do to it: the creation fails in time, and leaves no process."""
    models.write_sklearn(tmp_path / "plain")
    with running_server(tmp_path / "state", "--build-timeout", "1") as server:

        def preparing() -> list[int]:
            return [pid for pid, line in server.processes().items() if " serving.artifacts.prepare " in line]

        server.create_model(MODEL)
        operation = server.begin_version(PLAIN, deploymentUri=str(tmp_path / "plain"))
        (pid,) = until(preparing, "it is being prepared")
        os.killpg(pid, signal.SIGSTOP)
        error = server.wait(operation)["error"]

        assert "reported no progress for 11 s" in error["message"]
        assert "setting build_timeout" in error["message"]
        until(lambda: not preparing(), "it has ended")
        assert server.stop() == 0


@pytest.mark.soak
def test_what_a_model_has_left_behind_ends_with_the_server(tmp_path: Path) -> None:
    """Though it is in no group of a node, and has no parent any more."""
    with running_server(tmp_path / "state") as server:
        server.create_model(MODEL)
        server.create_version(ROUTINE, **routine(tmp_path / "routine"))
        (left,) = server.predict(ROUTINE, ["leave"]).json["predictions"]
        os.kill(left, 0)
        server.delete(ROUTINE)

        assert server.stop() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(left, 0)
