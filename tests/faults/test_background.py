"""Errors in everything the server does in the background: it goes on, or ends with a reason."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bounds import HANG_SECONDS
from tests.end_to_end import models
from tests.faults.injection import SOCKET, Injection
from tests.server import Server, running_server, until

PARENT = "projects/faults/models"
MODEL = f"{PARENT}/m"
VERSION = f"{MODEL}/versions/v1"
ROWS = models.data()[0][:2].tolist()

# All loops of a gateway with access control, once it has logged something.
LOOPS = {
    "audit", "autoscaler", "history", "housekeeping", "log-writer", "memory-limit", "request-log",
    "retention", "server-load", "tokens", "usage", "watchdog",
}  # fmt: skip
# Other tasks by the first word of their name, while a node runs and another is asked for.
TASKS = {"node", "output", "pilot"}
# Tasks without a name of ours: the program itself, the application's start and stop, requests, and calls that
# those who ask at the same moment share, such as a look for tokens.
UNNAMED = {
    "CoalescedCall._run", "LifespanOn.main", "RequestResponseCycle.run_asgi", "Server.serve",
    "serve.<locals>.run_server",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a model."""
    folder = tmp_path_factory.mktemp("files") / "forest"
    models.write_sklearn(folder)
    return folder


@contextmanager
def started(folder: Path, files: Path) -> Iterator[tuple[Server, Injection]]:
    """A server with access control, a node and a log."""
    channel = folder / "injection"
    with running_server(
        folder / "state",
        "--access=on",
        "--tick=0.1",
        environment={SOCKET: str(channel)},
        prefix=(sys.executable, "-m", "tests.faults.injection"),
    ) as server:
        token = (folder / "state" / "admin-token").read_text().strip()
        server.http.headers["authorization"] = f"Bearer {token}"
        server.create_model(MODEL, onlinePredictionConsoleLogging=True, onlinePredictionLogging=True)
        server.create_version(VERSION, deploymentUri=str(files))
        assert server.predict(VERSION, ROWS).status == 200
        injection = Injection(channel)
        until(lambda: {task.name for task in injection.tasks()} >= LOOPS, "all loops run")
        yield server, injection


@pytest.fixture(scope="module")
def running(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Injection]]:
    """One that lives through all the errors."""
    with started(tmp_path_factory.mktemp("background"), files) as (server, injection):
        yield server, injection
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 15


def is_well(server: Server, files: Path, name: str) -> None:
    """All that a server does is done: changes, a new version with its node, predictions, the end of both."""
    model = f"{PARENT}/{name}"
    server.create_model(model)
    server.create_version(f"{model}/versions/v", deploymentUri=str(files))
    assert server.predict(f"{model}/versions/v", ROWS).status == 200
    server.delete(f"{model}/versions/v")
    server.delete(model)
    until(lambda: server.predict(VERSION, ROWS).status == 200, "predictions are answered again")
    until(lambda: server.call("GET", "/readyz").status == 200, "the server is ready")


def errors(server: Server) -> float:
    """How many errors there have been in the background."""
    text = server.http.get(f"{server.url}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("pilotlight_background_errors_total{")]
    assert lines
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_every_task_is_known(running: tuple[Server, Injection]) -> None:
    """Whatever runs on the event loop has a name of ours: nothing is done in the background unsupervised."""
    _, injection = running
    tasks = injection.tasks()
    unknown = [task for task in tasks if task.name.startswith("Task-") and task.coroutine not in UNNAMED]
    assert unknown == []
    named = {task.name.split()[0] for task in tasks if not task.name.startswith("Task-")}
    assert named == LOOPS | TASKS


@pytest.mark.parametrize("error", ["OSError", "RuntimeError"])
@pytest.mark.parametrize("first", sorted(LOOPS | TASKS))
def test_an_error_in_any_of_them(
    first: str, error: str, running: tuple[Server, Injection], files: Path
) -> None:
    """Whatever it waits for raises: the server goes on with all that it does."""
    server, injection = running
    assert server.predict(VERSION, ROWS).status == 200

    def running_now() -> list[str]:
        return [task.name for task in injection.tasks() if task.name.split()[0] == first]

    known = until(running_now, f"{first} runs: what the last error ended has begun again")
    before = errors(server)

    failed = [injection.fail(name, error) for name in known]
    assert any(failed)

    is_well(server, files, f"{first.replace('-', '_')}_{error}")
    names = {task.name.split()[0] for task in injection.tasks()}
    assert names >= LOOPS
    if first in LOOPS:
        assert errors(server) > before


# One mechanism for all, each with a server of its own: the short form takes one that others wait for.
@pytest.mark.parametrize(
    "name",
    [name if name == "audit" else pytest.param(name, marks=pytest.mark.soak) for name in sorted(LOOPS)],
)
def test_a_loop_that_ends(name: str, files: Path, tmp_path: Path) -> None:
    """It takes the server with it, in order: nothing is left, the reason is told, the status is not 0."""
    with started(tmp_path, files) as (server, injection):
        injection.fail(name, "cancel")
        assert server.process.wait(timeout=HANG_SECONDS) == 1
        server.wait_for_end()
        assert f"the server stops: the background loop '{name}' ended unexpectedly" in server.log.read_text()


def test_the_application_that_ends(files: Path, tmp_path: Path) -> None:
    """So does the task in which the application lives."""
    with started(tmp_path, files) as (server, injection):
        (name,) = (task.name for task in injection.tasks() if task.coroutine == "LifespanOn.main")
        injection.fail(name, "RuntimeError")
        assert server.process.wait(timeout=HANG_SECONDS) == 1
        server.wait_for_end()
        assert "the server stops: the application has ended" in server.log.read_text()


def test_an_operation_whose_task_fails(running: tuple[Server, Injection], files: Path) -> None:
    """It ends all the same, with a result or a reason, and the version can be made again."""
    server, injection = running
    for number in range(3):
        name = f"{MODEL}/versions/failing{number}"
        operation = server.begin_version(name, deploymentUri=str(files))
        until(lambda: injection.fail(f"operation {operation}", "OSError"), "it could be failed")  # noqa: B023
        done = server.wait(operation)
        assert "response" in done or "Too many open files" in done["error"]["message"]
        server.delete(name)
    server.create_version(f"{MODEL}/versions/whole", deploymentUri=str(files))
