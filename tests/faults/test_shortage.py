"""A moment without file descriptors, threads, processes or memory: whatever is asked for is answered, and
afterwards everything works again without a restart."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bounds import HANG_SECONDS
from tests.end_to_end import models
from tests.server import Reply, Server, running_server, start, until

PARENT = "projects/faults/models"
MODEL = f"{PARENT}/m"
AWAKE, ASLEEP = f"{MODEL}/versions/awake", f"{MODEL}/versions/asleep"
UNUSED = f"{MODEL}/versions/unused"
ROWS = models.data()[0][:2].tolist()

# Seconds that the shortest answer to whatever is asked may take on a busy machine.
_ANSWERED_WITHIN = 20.0


@pytest.fixture(scope="module")
def group() -> Iterator[Path | None]:
    """A cgroup of the server's own, in which processes and threads are counted; None if there can be none."""
    with new_group("server") as group:
        yield group


@contextmanager
def new_group(name: str) -> Iterator[Path | None]:
    for parent in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        group = Path(parent, f"pilotlight-tests-{os.getpid()}-{name}")
        with contextlib.suppress(OSError):
            group.mkdir()
            if (group / "pids.max").exists():
                yield group
                group.rmdir()
                return
            group.rmdir()
    yield None


def joining(group: Path) -> tuple[str, ...]:
    """What runs a command in the group."""
    return ("sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, group: Path | None) -> Iterator[Server]:
    """A server that lives through all of it, with a version that is awake and one that sleeps."""
    folder = tmp_path_factory.mktemp("shortage")
    models.write_sklearn(folder / "forest")
    with running_server(
        folder / "state", "--idle-timeout=2", "--tick=0.2", prefix=joining(group) if group else ()
    ) as server:
        server.create_model(MODEL)
        files = str(folder / "forest")
        server.create_version(AWAKE, deploymentUri=files, autoScaling={"minNodes": 1})
        assert server.predict(AWAKE, ROWS).status == 200
        server.create_version(UNUSED, deploymentUri=files, autoScaling={"minNodes": 1})
        server.create_version(ASLEEP, deploymentUri=files)
        yield server
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 15


@contextmanager
def limited(server: Server, which: int, limit: int) -> Iterator[None]:
    """The server's process may take no more of something than it has."""
    pid = server.process.pid
    old = resource.prlimit(pid, which)
    resource.prlimit(pid, which, (limit, old[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, which, old)


@contextmanager
def no_files(server: Server) -> Iterator[None]:
    """No further file, pipe or socket."""
    open_files = {int(path.name) for path in Path(f"/proc/{server.process.pid}/fd").iterdir()}
    first_free = min(set(range(len(open_files) + 1)) - open_files)
    with limited(server, resource.RLIMIT_NOFILE, first_free):
        yield


@contextmanager
def no_memory(server: Server) -> Iterator[None]:
    """Some for small objects, none for the stack of a thread."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0])
    with limited(server, resource.RLIMIT_AS, pages * resource.getpagesize() + (4 << 20)):
        yield


@contextmanager
def no_processes(group: Path) -> Iterator[None]:
    """No further process or thread, of the server or of those that it has started."""
    (group / "pids.max").write_text("1")
    try:
        yield
    finally:
        (group / "pids.max").write_text("max")


def in_time(server: Server, method: str, path: str, **details: object) -> Reply:
    """An answer that does not keep its client waiting."""
    began = time.monotonic()
    reply = server.call(method, path, **details)
    assert time.monotonic() - began < _ANSWERED_WITHIN, path
    return reply


def test_a_start_without_threads(tmp_path: Path) -> None:
    """The server ends and says what it is short of: who watches over it starts it again."""
    with new_group("start") as group:
        if group is None:
            pytest.skip("needs a cgroup in which processes are counted")
        (group / "pids.max").write_text("1")
        arguments = ("serve", "--port", "0", "--state-dir", str(tmp_path / "state"))
        with (tmp_path / "log").open("w") as log:
            process = start(arguments, tmp_path / "state", {}, log, joining(group))
            process.communicate(timeout=HANG_SECONDS)

    said = (tmp_path / "log").read_text()
    assert process.returncode == 1
    assert "The server cannot start. The server is short of processes or threads" in said
    assert "Traceback" not in said


def test_a_node_that_cannot_be_reached(server: Server) -> None:
    """Its version has a node, but nobody has asked it yet: the client is told what the server is short of."""
    with no_files(server):
        reply = in_time(server, "POST", f"{UNUSED}:predict", json={"instances": ROWS})
    assert (reply.status, reply.error["status"]) == (503, "UNAVAILABLE")
    assert "short of file descriptors" in reply.error["message"]
    assert int(reply.headers["retry-after"]) >= 1
    assert server.predict(UNUSED, ROWS).status == 200


@pytest.mark.parametrize("what", ["files", "memory", pytest.param("processes", marks=pytest.mark.soak)])
def test_a_shortage(what: str, server: Server, group: Path | None) -> None:
    """Who is awake predicts; all else is done or refused with a reason; afterwards all is done again."""
    if what == "processes":
        if group is None:
            pytest.skip("needs the right to make a cgroup")
        shortage = no_processes(group)
    else:
        shortage = no_files(server) if what == "files" else no_memory(server)
    files = str(server.state_dir.parent / "forest")
    until(lambda: not server.nodes(ASLEEP), "the version sleeps")
    begun: list[str] = []
    created: list[str] = []

    with shortage:
        end = time.monotonic() + 4
        number = 0
        while time.monotonic() < end:
            number += 1
            assert in_time(server, "POST", f"{AWAKE}:predict", json={"instances": ROWS}).status == 200
            woken = in_time(
                server, "POST", f"{ASLEEP}:predict", json={"instances": ROWS},
                headers={"X-Request-Timeout": "2"},
            )  # fmt: skip
            assert woken.status == 200 or woken.error["message"], woken
            assert woken.status in (200, 503, 504)
            made = in_time(server, "POST", PARENT, json={"name": f"{what}{number}"})
            assert made.status in (200, 503)
            if made.status == 200:
                created.append(f"{PARENT}/{what}{number}")
            version = {"name": f"{what}{number}", "deploymentUri": files}
            asked = in_time(server, "POST", f"{MODEL}/versions", json=version)
            assert asked.status in (200, 503)
            if asked.status == 200:
                begun.append(asked.json["name"])
            assert in_time(server, "GET", "/healthz").status == 200
            time.sleep(0.3)

    for operation in begun:
        done = server.wait(operation)
        assert "response" in done or done["error"]["message"]
    for name in created:
        assert server.call("GET", name).status == 200
        server.delete(name)
    until(lambda: server.predict(ASLEEP, ROWS).status == 200, "the version that slept is woken")
    server.create_model(f"{PARENT}/after_{what}")
    server.create_version(f"{PARENT}/after_{what}/versions/v", deploymentUri=files)
    assert server.predict(f"{PARENT}/after_{what}/versions/v", ROWS).status == 200
    until(lambda: server.call("GET", "/readyz").status == 200, "the server is ready")
    server.delete(f"{PARENT}/after_{what}/versions/v")
