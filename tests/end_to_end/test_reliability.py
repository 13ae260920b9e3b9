"""What people must be able to rely on when processes die, clients go away and many ask at once.

These tests end servers, so they have their own; all of them use one state folder, one after the other.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.bounds import HANG_SECONDS
from tests.end_to_end import models
from tests.end_to_end.conftest import Files
from tests.server import Reply, Server, processes_of, running_server, start, until

MODEL = "projects/trust/models/m"
FOREST = f"{MODEL}/versions/forest"
DOOMED = f"{MODEL}/versions/doomed"
ROUTINE = f"{MODEL}/versions/routine"
ROWS = models.data()[0][:2].tolist()

# A package whose build waits until a file is there.
SLOW_SETUP = """
import pathlib, time
gate = pathlib.Path({gate!r})
gate.with_suffix(".reached").touch()
while not gate.exists():
    time.sleep(0.01)
from setuptools import setup
setup(name="slow", version="0.1", py_modules=["slow"])
"""

Serve = Callable[..., AbstractContextManager[Server]]


@contextmanager
def filled(state_dir: Path, files: Files, environment: dict[str, str]) -> Iterator[Server]:
    """A new server with two forests and a custom routine in it."""
    forest = {"deploymentUri": str(files.root / "sklearn")}
    routine = {
        "predictionClass": "routine.Routine",
        "packageUris": [str(files.root / "routine-0.1.tar.gz")],
    }
    with running_server(state_dir, "--deployments", "4", environment=environment) as server:
        server.create_model(MODEL, description="to be kept")
        server.create_version(FOREST, **forest)
        begun = [server.begin_version(DOOMED, **forest), server.begin_version(ROUTINE, **routine)]
        assert all("error" not in server.wait(operation) for operation in begun)
        yield server
        assert server.stop() == 0


@pytest.fixture(scope="module")
def state_dir(files: Files, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a server that was stopped."""
    with filled(tmp_path_factory.mktemp("trust") / "state", files, environment) as server:
        return server.state_dir


@pytest.fixture(scope="module")
def shared(
    files: Files, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that the tests leave alive."""
    with filled(tmp_path_factory.mktemp("shared") / "state", files, environment) as server:
        yield server


@pytest.fixture
def serve(state_dir: Path, environment: dict[str, str]) -> Serve:
    """Starts a server on that state, with these flags, for the time of a block."""

    @contextmanager
    def serve(*flags: str) -> Iterator[Server]:
        with running_server(state_dir, *flags, environment=environment) as server:
            yield server

    return serve


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@contextmanager
def held(server: Server, threads: ThreadPoolExecutor, gate: Path) -> Iterator[Future[Reply]]:
    """A request that the routine works on until the end of the block."""
    answer = threads.submit(server.predict, ROUTINE, [f"wait {gate}"])
    try:
        until(Path(f"{gate}.reached").exists, "the request has reached the routine")
        yield answer
    finally:
        gate.touch()


# ---- restarts


def test_everything_is_there_after_a_restart(serve: Serve, files: Files, state_dir: Path) -> None:
    """Models, versions and operations; SIGTERM ends all processes, and the exit code is 0."""

    def everything(server: Server) -> list[Any]:
        paths = ("projects/trust/models", f"{MODEL}/versions", "projects/trust/operations", FOREST)
        return [server.call("GET", path).json for path in paths]

    with serve() as server:
        assert server.predict(MODEL, ROWS).json == {"predictions": files.sklearn.predict(ROWS).tolist()}
        assert server.nodes(FOREST)
        before = everything(server)
        assert server.stop() == 0

    with serve() as server:
        assert everything(server) == before
        assert server.nodes() == []
        assert server.predict(ROUTINE, [1]).json == {"predictions": [2]}
        assert server.stop() == 0
    assert before[0]["models"][0]["description"] == "to be kept"
    assert processes_of(state_dir) == {}


def test_a_second_server_on_the_same_state_is_refused(serve: Serve, state_dir: Path, tmp_path: Path) -> None:
    """It says who holds the folder and what to do; the first one does not notice."""
    with serve("--pilots", "off") as server:
        with (tmp_path / "second.log").open("w+") as stderr:
            second = start(("serve", "--port", "0", "--state-dir", str(state_dir)), state_dir, {}, stderr)
            output, _ = second.communicate(timeout=HANG_SECONDS)
            stderr.seek(0)
            said = stderr.read()

        assert second.returncode == 1
        assert output == ""
        assert f"pid {server.process.pid}" in said
        assert "--state-dir" in said
        assert "Traceback" not in said
        assert server.call("GET", MODEL).status == 200


def test_a_killed_server_leaves_no_process_and_its_work_is_resumed(
    serve: Serve, files: Files, tmp_path: Path
) -> None:
    """Nodes and a running pip go with it; the next server takes up the creation, and the one after that."""
    gate = tmp_path / "gate"
    (tmp_path / "slow-0.1.tar.gz").write_bytes(
        models.archive("slow", {"slow": models.ROUTINE}, SLOW_SETUP.format(gate=str(gate)))
    )
    name = f"{MODEL}/versions/resumed"
    with serve() as server:
        assert server.predict(ROUTINE, [1]).status == 200
        operation = server.begin_version(
            name, predictionClass="slow.Routine", packageUris=[str(tmp_path / "slow-0.1.tar.gz")]
        )
        until(gate.with_suffix(".reached").exists, "pip builds the package")
        assert len(server.processes()) >= 4  # the server, a node, the preparing process, pip

        server.kill()
        server.wait_for_end()

    gate.with_suffix(".reached").unlink()
    with serve() as server:
        until(gate.with_suffix(".reached").exists, "pip builds the package again")
        assert server.stop() == 0

    gate.with_suffix(".reached").unlink()
    with serve() as server:
        assert server.call("GET", name).json["state"] == "CREATING"
        until(gate.with_suffix(".reached").exists, "pip builds the package again")
        gate.touch()
        assert server.wait(operation)["response"]["state"] == "READY"
        assert server.predict(name, [1, 2]).json == {"predictions": [2, 4]}
        server.delete(name)


# ---- nodes that die


def test_another_node_answers_when_one_dies(
    shared: Server, files: Files, threads: ThreadPoolExecutor
) -> None:
    """A node is killed with requests inside: all of them are answered, by a new one."""
    wanted = {"predictions": files.sklearn.predict(ROWS).tolist()}
    assert shared.predict(FOREST, ROWS).json == wanted
    (node,) = shared.nodes(FOREST)
    os.kill(node, signal.SIGSTOP)
    answers = [threads.submit(shared.predict, FOREST, ROWS) for _ in range(8)]
    until(lambda: inside(shared, node) == 8, "the requests are inside the node")

    os.kill(node, signal.SIGKILL)

    assert [answer.result().json for answer in answers] == [wanted] * 8
    assert node not in shared.nodes(FOREST)
    assert len(shared.nodes(FOREST)) == 1


def inside(server: Server, pid: int) -> int:
    """How many requests are inside the node of this process."""
    nodes = [node for found in server.get_status()["versions"] for node in found["nodes"]]
    return sum(node["inFlight"] for node in nodes if node["pid"] == pid)


def test_a_routine_that_ends_its_process_is_told_of(shared: Server) -> None:
    """500 with how the process ended; the request is not repeated, and the next one gets a new node."""
    reply = shared.predict(ROUTINE, ["exit 3"])

    assert (reply.status, reply.error["status"]) == (500, "INTERNAL")
    assert "exit code 3" in reply.error["message"]
    assert shared.predict(ROUTINE, ["seen"]).json == {"predictions": [1]}


# ---- requests that wait


def test_a_deadline_ends_the_request_and_not_the_node(
    shared: Server, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """504 after the time the client gave; the node answers the next one."""
    (pid,) = shared.predict(ROUTINE, ["pid"]).json["predictions"]

    reply = shared.predict(ROUTINE, [f"wait {tmp_path / 'gate'}"], {"X-Request-Timeout": "0.2"})
    (tmp_path / "gate").touch()

    assert (reply.status, reply.error["status"]) == (504, "DEADLINE_EXCEEDED")
    assert shared.predict(ROUTINE, ["pid"]).json == {"predictions": [pid]}


def test_the_queue_is_bounded_and_forgets_clients_that_are_gone(
    serve: Serve, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """Past the limit 429 with Retry-After; a waiting request whose client left never reaches the model."""
    short = {"X-Request-Timeout": "0.3"}
    with serve("--node-concurrency", "1", "--queue-requests", "1") as server:
        assert server.predict(ROUTINE, ["seen"]).json == {"predictions": [1]}
        with held(server, threads, tmp_path / "gate") as working:
            gone = waiting(server)

            def refused() -> Reply | None:
                reply = server.predict(ROUTINE, [2], short)
                return reply if reply.status == 429 else None

            reply = until(refused, "a request is refused because another one waits")
            assert reply.error["status"] == "RESOURCE_EXHAUSTED"
            assert "queue_requests = 1" in reply.error["message"]
            assert int(reply.headers["Retry-After"]) >= 1

            gone.close()

            # Now there is room to wait in, and nothing to wait for.
            until(lambda: server.predict(ROUTINE, [3], short).status == 504, "the place is free")
        assert working.result().status == 200
        assert server.predict(ROUTINE, ["seen"]).json == {"predictions": [3]}


def waiting(server: Server) -> socket.socket:
    """A connection on which a request was sent."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    body = b'{"instances": [1]}'
    connection.sendall(
        f"POST /v1/{ROUTINE}:predict HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return connection


def test_a_stopping_server_finishes_what_it_works_on(
    serve: Serve, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """SIGTERM while a slow request is in flight: it is answered, then the server ends with 0."""
    with serve() as server:
        with held(server, threads, tmp_path / "gate") as working:
            server.process.send_signal(signal.SIGTERM)
            until(lambda: not accepts(server), "the server takes no new connections")
            assert server.process.poll() is None
        assert working.result().json == {"predictions": ["done"]}
        assert server.process.wait(timeout=HANG_SECONDS) == 0
        server.wait_for_end()


def accepts(server: Server) -> bool:
    try:
        httpx.get(f"{server.url}/healthz", timeout=5)
    except httpx.TransportError:  # refused, or reset while it was being accepted
        return False
    return True


# ---- many at once


def test_of_many_patches_with_one_etag_one_wins(shared: Server, threads: ThreadPoolExecutor) -> None:
    """No update is lost: all others are told to read again."""
    for name in (MODEL, FOREST):
        etag = shared.call("GET", name).json["etag"]

        def patch(number: int, name: str = name, etag: str = etag) -> Reply:
            body = {"description": f"by {number}", "etag": etag}
            return shared.call("PATCH", name, params={"updateMask": "description"}, json=body)

        replies = list(threads.map(patch, range(12)))

        assert Counter(reply.status for reply in replies) == {200: 1, 409: 11}
        winner = next(number for number, reply in enumerate(replies) if reply.status == 200)
        assert shared.call("GET", name).json["description"] == f"by {winner}"
    shared.call("PATCH", MODEL, params={"updateMask": "description"}, json={"description": "to be kept"})


def test_many_creations_and_deletions_at_once(shared: Server, threads: ThreadPoolExecutor) -> None:
    """Of the same name one wins; different ones do not disturb each other; nothing is left behind."""
    parent = "projects/trust/models/many"
    shared.create_model(parent)

    def create(name: str) -> Reply:
        body = {"name": name, "deploymentUri": "/no/such/folder"}
        return shared.call("POST", f"{parent}/versions", json=body)

    def delete(name: str) -> Reply:
        return shared.call("DELETE", f"{parent}/versions/{name}")

    names = ["same"] * 6 + [f"v{number}" for number in range(6)]
    created = list(threads.map(create, names))
    assert Counter(reply.status for reply in created) == {200: 7, 409: 5}
    for reply in created:
        if reply.status == 200:
            assert shared.wait(reply.json["name"])["error"]["code"] == 5

    deleted = list(threads.map(delete, [*names, "never"]))
    assert Counter(reply.status for reply in deleted)[200] == 7
    assert {reply.status for reply in deleted} <= {200, 400, 404}
    for reply in deleted:
        if reply.status == 200:
            assert "error" not in shared.wait(reply.json["name"])

    assert shared.call("GET", f"{parent}/versions").json == {}
    shared.delete(parent)


def test_a_deletion_during_requests_leaves_no_node(
    serve: Serve, threads: ThreadPoolExecutor, state_dir: Path
) -> None:
    """Requests are answered or told that the version is gone, never with 5xx, and no process outlives it."""
    with serve() as server:
        uid = server.uid(DOOMED)
        begin = threading.Barrier(9)

        def ask() -> list[int]:
            begin.wait()
            return [server.predict(DOOMED, ROWS).status for _ in range(5)]

        # It sleeps: the first request wakes it while it is being deleted.
        asking = [threads.submit(ask) for _ in range(8)]
        begin.wait()
        server.delete(DOOMED)

        statuses = Counter(status for one in asking for status in one.result())
        assert statuses.keys() <= {200, 400, 404}
        assert server.predict(DOOMED, ROWS).status == 404
        until(lambda: server.nodes(DOOMED) == [], "no node of the deleted version is left")
        assert not (state_dir / "versions" / uid).exists()
        assert server.stop() == 0
