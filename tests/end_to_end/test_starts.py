"""Nodes that start slowly, never, or without enough memory; and numbers of nodes that the owner sets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end import models
from tests.end_to_end.test_autoscaling import asleep, short_or_long, version
from tests.server import Server, running_server, until

MODEL = "projects/starts/models/m"
QUICK = (
    "--idle-timeout", "1", "--stable-window", "1", "--panic-window", "0.5", "--scale-down-delay", "0.2",
    "--tick", "0.1",
)  # fmt: skip


class Gated:
    """A version whose nodes start only while a file is there."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.gate = folder / "gate"
        self.gate.touch()
        model_dir = folder / "gated"
        model_dir.mkdir()
        (model_dir / "gate.txt").write_text(str(self.gate))
        self.name = f"{MODEL}/versions/gated"
        server.create_version(self.name, deploymentUri=str(model_dir), **models.routine(folder))

    def close(self, server: Server) -> None:
        """Let it fall asleep, not to wake."""
        asleep(server, self.name)
        self.gate.unlink()


@contextmanager
def starting(folder: Path, *flags: str) -> Iterator[Server]:
    """A server with a model; it must end well."""
    with running_server(folder / "state", *flags) as server:
        if server.call("GET", MODEL).status == 404:
            server.create_model(MODEL)
        yield server
        assert server.stop() == 0


@short_or_long(3, 60)
def test_a_node_that_starts_slowly_is_not_reaped(tmp_path: Path, size: float) -> None:
    """However short the idle time: it comes to be ready, and answers who waited."""
    with (
        starting(tmp_path, *QUICK, "--request-timeout", "100") as server,
        ThreadPoolExecutor() as pool,
    ):
        server.http.timeout = size + 60
        gated = Gated(server, tmp_path)
        gated.close(server)

        asked = pool.submit(server.predict, gated.name, [1])
        until(lambda: server.nodes(gated.name), "a node starts")
        (node,) = server.nodes(gated.name)
        time.sleep(size)
        assert server.nodes(gated.name) == [node]
        gated.gate.touch()

        assert asked.result().json == {"predictions": [2]}
        asleep(server, gated.name)


def test_a_node_that_never_gets_ready_is_explained(tmp_path: Path) -> None:
    """By the answer, within the start time-out, and on the version until a node is ready again."""
    with starting(tmp_path, *QUICK, "--start-timeout", "2") as server:
        gated = Gated(server, tmp_path)
        gated.close(server)

        start = time.monotonic()
        reply = server.predict(gated.name, [1])
        assert time.monotonic() - start < 30  # half of what a request may take
        assert (reply.status, reply.error["status"]) == (503, "UNAVAILABLE")
        assert "start_timeout" in reply.error["message"]
        assert int(reply.headers["retry-after"]) >= 1
        shown = until(
            lambda: server.call("GET", gated.name).json.get("errorMessage"), "the version tells why"
        )
        assert "start_timeout" in shown
        assert version(server, gated.name)["state"] == "failing"
        again = server.predict(gated.name, [1])
        assert (again.status, server.nodes(gated.name)) == (503, [])

        gated.gate.touch()
        until(lambda: server.predict(gated.name, [1]).status == 200, "it is tried again")
        until(lambda: "errorMessage" not in server.call("GET", gated.name).json, "the error is gone")


def test_a_request_that_cannot_wait_for_the_start_is_told_when_to_come_back(tmp_path: Path) -> None:
    """The start goes on; who comes back then is answered."""
    with starting(tmp_path, *QUICK, "--pilots", "off") as server:
        name = f"{MODEL}/versions/v1"
        server.create_version(name, **models.routine(tmp_path))
        asleep(server, name)

        reply = server.predict(name, [1], {"x-request-timeout": "0.05"})

        assert (reply.status, reply.error["status"]) == (503, "UNAVAILABLE")
        assert "starting" in reply.error["message"]
        assert 1 <= int(reply.headers["retry-after"]) <= 20
        assert server.predict(name, [1]).json == {"predictions": [2]}


@pytest.mark.soak
def test_versions_make_room_for_each_other(tmp_path: Path) -> None:
    """With memory for one node, the idle one goes; a busy one stays, and who waits in vain is told why."""
    gate = tmp_path / "gate"
    heavy = tmp_path / "heavy"
    heavy.mkdir()
    (heavy / "mebibytes.txt").write_text("80")
    flags = ("--tick", "0.1", "--idle-timeout", "2", "--memory-bytes", str(150 << 20))
    with starting(tmp_path, *flags) as server, ThreadPoolExecutor() as pool:
        first, second = (f"{MODEL}/versions/{name}" for name in ("first", "second"))
        for name in (first, second):
            server.create_version(name, deploymentUri=str(heavy), **models.routine(tmp_path))
            assert server.predict(name, [1]).json == {"predictions": [2]}
            asleep(server, name)  # the node has lived for the idle time at least, and was measured

        assert server.predict(first, [1]).json == {"predictions": [2]}
        assert server.predict(second, [1]).json == {"predictions": [2]}
        assert server.nodes(first) == []

        busy = pool.submit(server.predict, second, [f"wait {gate}"])
        until(Path(f"{gate}.reached").exists, "the second is busy")
        reply = server.predict(first, [1], {"x-request-timeout": "1"})
        assert (reply.status, reply.error["status"]) == (503, "UNAVAILABLE")
        assert "memory" in reply.error["message"]
        gate.touch()
        assert busy.result().status == 200
        assert server.predict(first, [1]).json == {"predictions": [2]}


def test_the_owner_sets_how_many_nodes_there_are(tmp_path: Path) -> None:
    """minNodes are kept through idleness and a restart, manualScaling is exact, a patch changes them."""
    name = f"{MODEL}/versions/v1"
    with starting(tmp_path, *QUICK) as server:
        server.create_version(name, **models.routine(tmp_path), autoScaling={"minNodes": 1})
        assert len(server.nodes(name)) == 1
        time.sleep(1.5)
        assert len(server.nodes(name)) == 1

    with starting(tmp_path, *QUICK) as server:
        until(lambda: version(server, name)["ready"] == 1, "the node is there without a request")
        scaled = server.call(
            "PATCH",
            name,
            params={"updateMask": "autoScaling,manualScaling"},
            json={"manualScaling": {"nodes": 2}},
        )
        assert scaled.status == 200, scaled.json
        until(lambda: version(server, name)["ready"] == 2, "two nodes")
        scaled = server.call(
            "PATCH",
            name,
            params={"updateMask": "autoScaling,manualScaling"},
            json={"autoScaling": {"minNodes": 0}},
        )
        assert scaled.status == 200, scaled.json
        asleep(server, name)


@pytest.mark.parametrize("bad", ["on", "-1", ""])
def test_bad_pilots_are_refused(tmp_path: Path, bad: str) -> None:
    """With the values that are allowed."""
    with pytest.raises(AssertionError, match="auto"), running_server(tmp_path / "state", "--pilots", bad):
        pass
