"""Versions whose runtimeVersion has an interpreter of its own, which is that of the tests here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.bounds import JOB_SECONDS
from tests.end_to_end import models
from tests.server import Server, running_server, until

MODEL = "projects/runtimes/models/m"
FOREST, ROUTINE = f"{MODEL}/versions/forest", f"{MODEL}/versions/routine"
OLD = {"runtimeVersion": "1.15", "pythonVersion": "3.7"}
_PREDICTOR = "predictor/program.py"

CODE = dedent(
    """
    import os, sys, time

    class Routine:
        def predict(self, instances, **kwargs):
            return [getattr(self, instance)() for instance in instances]

        def pid(self):
            return os.getpid()

        def hang(self):
            while True:
                pass

        def take(self):
            self.taken = os.urandom(1 << 20) * 400
            time.sleep(30)

        def name(self):
            return open("/proc/self/comm").read().strip()

        def request(self):
            return os.environ["create_version_request"]

        def say(self):
            print("said over there", flush=True)
            return "done"

        @classmethod
        def from_path(cls, model_dir):
            return cls()
    """
)


@dataclass(frozen=True)
class World:
    """A server, and the estimator that its model is."""

    server: Server
    forest: Any

    def predictors(self) -> list[int]:
        """The processes that compute models, pilots left out."""
        found = self.server.processes()
        return [pid for pid, command in found.items() if _PREDICTOR in command and self.is_predictor(pid)]

    def is_predictor(self, pid: int) -> bool:
        """Whether it has become one: a pilot has another name."""
        try:
            return Path(f"/proc/{pid}/comm").read_text().strip() == "pilot-predict"
        except OSError:
            return False

    def reasons(self, version: str) -> str:
        """What `why` tells."""
        return str(self.server.call("GET", f"/why/{version}").json)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Versions of both kinds on a server that knows an interpreter for runtime version 1.15."""
    root = tmp_path_factory.mktemp("runtimes")
    forest = models.write_sklearn(root / "forest")
    # Its name is one that the server has itself.
    package = models.wheel(root, "routine", "0.1", {"serving/__init__.py": CODE})
    counting = root / "python"
    counting.write_text(f'#!/bin/sh\necho started >> {root}/started\nexec {sys.executable} "$@"\n')
    counting.chmod(0o755)
    runtimes = ("--runtime", f"1.15={sys.executable}", "--runtime", f"1.14={counting}")
    flags = (*runtimes, "--idle-timeout", "300", "--call-timeout", "3")
    with running_server(root / "state", *flags, "--node-memory-bytes", str(300 << 20)) as server:
        server.create_model(MODEL)
        server.create_version(FOREST, deploymentUri=str(root / "forest"), **OLD)
        server.create_version(
            ROUTINE, packageUris=[str(package)], predictionClass="serving.Routine", runtimeVersion="2.11"
        )
        yield World(server, forest)


def test_the_answers_are_the_librarys(world: World) -> None:
    """Online, by the process of the other interpreter."""
    rows = models.data()[0][:20].tolist()

    reply = world.server.predict(FOREST, rows)

    assert reply.json == {"predictions": world.forest.predict(rows).tolist()}
    assert world.predictors()


def test_a_package_named_as_one_of_the_server(world: World) -> None:
    """It runs beside the server's own, in another process."""
    reply = world.server.predict(ROUTINE, ["pid"])

    assert reply.json["predictions"][0] in world.predictors()


def test_a_routine_sees_what_its_version_was_created_with(world: World) -> None:
    """In its environment, though its predictor was forked from a pilot that has another one."""
    (request,) = world.server.predict(ROUTINE, ["request"]).json["predictions"]

    assert json.loads(request)["version"]["prediction_class"] == "serving.Routine"


def test_a_killed_predictor_is_a_killed_node(world: World) -> None:
    """Whoever asks next is answered by another, and the reason can be read."""
    (pid,) = world.server.predict(ROUTINE, ["pid"]).json["predictions"]
    (node,) = world.server.nodes(ROUTINE)
    os.kill(pid, signal.SIGKILL)

    def replaced() -> bool:
        reply = world.server.predict(ROUTINE, ["pid"])
        return reply.status == 200 and reply.json["predictions"] != [pid]

    until(replaced, "another predictor answers")
    assert world.server.nodes(ROUTINE) != [node]
    assert "SIGKILL" in world.reasons(ROUTINE)


def test_a_predictor_that_dies_while_nobody_asks_is_replaced_before_somebody_does(world: World) -> None:
    """Its node ends with it, and no request is lost."""
    (pid,) = world.server.predict(ROUTINE, ["pid"]).json["predictions"]
    (node,) = world.server.nodes(ROUTINE)

    os.kill(pid, signal.SIGKILL)

    until(lambda: node not in world.server.nodes(ROUTINE), "its node is gone")
    assert world.server.predict(ROUTINE, ["say"]).json == {"predictions": ["done"]}


def test_a_predictor_that_hangs_is_killed(world: World) -> None:
    """By the watchdog of its node."""
    (pid,) = world.server.predict(ROUTINE, ["pid"]).json["predictions"]

    reply = world.server.predict(ROUTINE, ["hang"])

    assert reply.status == 500
    until(lambda: pid not in world.predictors(), "the predictor is gone with its node")
    assert world.server.predict(ROUTINE, ["say"]).json == {"predictions": ["done"]}


def test_a_predictor_takes_no_more_memory_than_a_node_may(world: World) -> None:
    """What it takes counts as its node's."""
    reply = world.server.predict(ROUTINE, ["take"])

    assert reply.status == 500
    assert "node_memory_bytes" in reply.error["message"]


def test_what_it_prints_is_in_the_log(world: World) -> None:
    """As what a node prints."""
    world.server.predict(ROUTINE, ["say"])

    until(lambda: "said over there" in world.server.log.read_text(), "the line is in the log")


def test_nothing_is_left_of_a_version(world: World) -> None:
    """Its predictor goes with its node."""
    name = f"{MODEL}/versions/short"
    world.server.create_version(name, deploymentUri=str(world.server.state_dir.parent / "forest"), **OLD)
    before = world.predictors()

    world.server.delete(name)

    until(lambda: len(world.predictors()) < len(before), "one predictor less")


@pytest.mark.soak
def test_without_pilots(tmp_path: Path) -> None:
    """Predictors start cold, and nothing is left of them when the server ends."""
    package = models.wheel(tmp_path, "routine", "0.1", {"own/__init__.py": CODE})
    flags = ("--runtime", f"1.15={sys.executable}", "--pilots", "off")
    with running_server(tmp_path / "state", *flags) as server:
        server.create_model(MODEL)
        server.create_version(
            ROUTINE, packageUris=[str(package)], predictionClass="own.Routine", runtimeVersion="1.15"
        )
        (pid,) = server.predict(ROUTINE, ["pid"]).json["predictions"]
        assert Path(f"/proc/{pid}/comm").read_text().strip() == "pilot-predict"

    assert server.processes() == {}


@pytest.mark.soak
def test_jobs_are_computed_by_the_same_interpreter(world: World, tmp_path: Path) -> None:
    """Those with a version, and those with a folder and a runtime version."""
    rows = models.data()[0][:20].tolist()
    started = world.server.state_dir.parent / "started"
    (tmp_path / "rows").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "names").write_text('"name"\n')
    folder = world.server.state_dir.parent / "forest"

    def results(job: str, lines: str, **source: str) -> list[Any]:
        name = f"projects/runtimes/jobs/{job}"
        given = {
            **source,
            "dataFormat": "JSON",
            "inputPaths": [str(tmp_path / lines)],
            "outputPath": str(tmp_path / job),
            "region": "us-central1",
        }
        reply = world.server.call(
            "POST", "projects/runtimes/jobs", json={"jobId": job, "predictionInput": given}
        )
        assert reply.status == 200, reply.json
        ended = until(
            lambda: _ended(world.server.call("GET", name).json), f"{job} has ended", seconds=JOB_SECONDS
        )
        assert ended["state"] == "SUCCEEDED", ended
        (file,) = (tmp_path / job).glob("prediction.results-*")
        return [json.loads(line) for line in file.read_text().splitlines()]

    assert results("version", "rows", versionName=FOREST) == world.forest.predict(rows).tolist()
    assert results("routine", "names", versionName=ROUTINE) == ["pilot-predict"]
    assert not started.exists()
    assert results("folder", "rows", uri=str(folder), runtimeVersion="1.14") == (
        world.forest.predict(rows).tolist()
    )
    assert started.exists()


def _ended(job: dict[str, Any]) -> dict[str, Any] | None:
    return job if job["state"] in ("SUCCEEDED", "FAILED") else None


@pytest.mark.soak
def test_commands_without_a_server(tmp_path: Path) -> None:
    """By runtime version, as a server with the same settings chooses, or by an interpreter's path."""
    models.write_sklearn(tmp_path / "forest")
    package = models.wheel(tmp_path, "routine", "0.1", {"own/__init__.py": CODE})
    (tmp_path / "names").write_text('"name"\n')
    environment = {
        **os.environ,
        "PILOTLIGHT_RUNTIME": f"1.15={sys.executable}",
        "PILOTLIGHT_CACHE_DIR": str(tmp_path / "cache"),
    }
    code = ("--package-uris", str(package), "--prediction-class", "own.Routine")
    model = ("--model-dir", str(tmp_path / "forest"), *code)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from serving.cli import main; main()", *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    predict = ("local", "predict", *model, "--json-instances", str(tmp_path / "names"), "--format", "json")
    for flags, expected in (
        ((), "python"),
        (("--runtime-version", "1.15"), "pilot-predict"),
        (("--interpreter", sys.prefix), "pilot-predict"),
        (("--runtime-version", "2.11"), "python"),
    ):
        done = run(*predict, *flags)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
        assert ("has no interpreter of its own" in done.stderr) == ("2.11" in flags)

    batch = ("local", "batch", *model, "--input-paths", str(tmp_path / "names"), "--data-format", "json")
    done = run(*batch, "--output-path", str(tmp_path / "out"), "--runtime-version", "1.15")
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "out").glob("prediction.results-*")
    assert "pilot-predict" in file.read_text()

    done = run("parity", *model, "--input", str(tmp_path / "names"), "--runtime-version", "1.15")
    assert done.returncode == 0, done.stderr
    assert "1 rows equal" in done.stdout
