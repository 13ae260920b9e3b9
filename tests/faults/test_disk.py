"""A state folder that cannot be written: a full disk, a read-only one, a locked or a damaged database."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from serving.gateway.state.records import ModelRecord
from serving.gateway.state.store import SqliteStore
from serving.names import ModelName
from serving.resources import Model
from tests.bounds import HANG_SECONDS
from tests.end_to_end import models
from tests.server import Reply, Server, processes_of, running_server, start

PARENT = "projects/faults/models"
MODEL = f"{PARENT}/m"
VERSION = f"{MODEL}/versions/v1"
ROWS = models.data()[0][:2].tolist()
# Locks a database until the end of its standard input. SQLite resolves /proc/PID/root: that is another file.
_LOCK = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a model."""
    folder = tmp_path_factory.mktemp("files") / "forest"
    models.write_sklearn(folder)
    return folder


@cache
def mounting() -> bool:
    """Whether this user may have file systems that nobody else sees."""
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") is not None and not subprocess.run(command, check=False).returncode


def mounted(mount: str, folder: Path) -> tuple[str, ...]:
    """What runs a command with a file system of its own at `folder`, which is `$0` in `mount`."""
    return ("unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', str(folder)) if mounting() else ()


@pytest.fixture(scope="module")
def server(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that lives through all that happens to its disk: one of 64 MiB, where that can be had."""
    folder = tmp_path_factory.mktemp("disk") / "state"
    folder.mkdir()
    with running_server(folder, prefix=mounted('mount -t tmpfs -o size=64m none "$0"', folder)) as server:
        server.create_model(MODEL)
        server.create_version(VERSION, deploymentUri=str(files))
        yield server
        assert server.stop() == 0


def seen(server: Server) -> Path:
    """The state folder, which only the server's own processes see at its place."""
    return Path(f"/proc/{server.process.pid}/root{server.state_dir}")


def predicts(server: Server) -> bool:
    return server.predict(VERSION, ROWS).status == 200


@contextmanager
def no_room(server: Server) -> Iterator[None]:
    """No byte can be added to any file: what a process sees of a full disk."""
    old = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, old)


@contextmanager
def locked(server: Server) -> Iterator[None]:
    """Another program writes into the database: one that sees the server's file at its place."""
    enter = ("nsenter", "-t", f"{server.process.pid}", "-U", "-m", "--preserve-credentials")
    command = [
        *(enter if mounting() else ()),
        sys.executable,
        "-c",
        _LOCK,
        str(server.state_dir / "state.db"),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        yield
        other.communicate()


def refused(reply: Reply) -> str:
    """The message of a change that cannot be made now; the test fails if it is another answer."""
    assert (reply.status, reply.error["status"]) == (503, "UNAVAILABLE")
    assert int(reply.headers["retry-after"]) >= 1
    message: str = reply.error["message"]
    return message


# ---- a full disk


def test_a_full_disk_refuses_changes_and_nothing_else(server: Server) -> None:
    """Predictions and reads go on; changes work again as soon as there is room."""
    new = f"{PARENT}/full"
    with no_room(server):
        message = refused(server.call("POST", PARENT, json={"name": "full"}))
        assert server.call("GET", new).status == 404
        assert (
            server.call("PATCH", f"{MODEL}?updateMask=description", json={"description": "x"}).status == 503
        )
        assert predicts(server)

    server.create_model(new)
    server.delete(new)
    assert "state.db cannot be written" in message or "audit" in message
    assert "description" not in server.call("GET", MODEL).json


def test_a_version_for_which_there_is_no_room(server: Server, files: Path) -> None:
    """Its creation fails and says why, without blame on the model; once there is room, it works."""
    name = f"{MODEL}/versions/big"
    # Some room, for the database; not for the model.
    size = max(file.stat().st_size for file in seen(server).glob("state.db*")) + (1 << 20)
    folder = server.state_dir.parent / "big"
    folder.mkdir()
    shutil.copy(files / "model.joblib", folder)
    with (folder / "weights.bin").open("wb") as weights:
        weights.truncate(size + (8 << 20))
    old = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        operation = server.wait(server.begin_version(name, deploymentUri=str(folder)))
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, old)

    message = operation["error"]["message"]
    assert message.startswith("Create Version failed. The server cannot keep the version's files")
    assert "File too large" in message
    server.delete(name)
    server.create_version(name, deploymentUri=str(folder))
    server.delete(name)


# ---- a locked database


@pytest.mark.parametrize("seconds", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_a_locked_database(server: Server, files: Path, seconds: float) -> None:
    """Reads and predictions go on, and so do operations later; changes wait for a few seconds at most."""
    name = f"{MODEL}/versions/locked_{seconds}"
    operation = server.begin_version(name, deploymentUri=str(files))
    labels = {"seconds": f"{seconds}"}
    with ThreadPoolExecutor(1) as pool:
        with locked(server):
            changing = pool.submit(
                server.call, "PATCH", f"{MODEL}?updateMask=labels", json={"labels": labels}
            )
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                assert predicts(server)
                assert server.call("GET", name).status == 200
            assert seconds > 10 or not changing.done()
        reply = changing.result()

    if reply.status != 200:
        assert seconds > 10
        assert "locked" in refused(reply)
        assert server.call("PATCH", f"{MODEL}?updateMask=labels", json={"labels": labels}).status == 200
    assert server.call("GET", MODEL).json["labels"] == labels
    assert server.wait(operation)["response"]["state"] == "READY"
    server.delete(name)


# ---- a file system of its own


def test_a_file_system_that_fills_up(server: Server, files: Path) -> None:
    """To the last byte, and is then emptied again: no restart is needed, and nothing is lost."""
    if not mounting():
        pytest.skip("needs the right to mount, in a user namespace at least")
    ballast = seen(server) / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(b"x" * 4096)

    replies = [server.call("POST", PARENT, json={"name": f"full{n}"}) for n in range(40)]
    assert predicts(server)
    ballast.unlink()

    # What fits into pages that are there already is still written.
    made = {f"{PARENT}/full{n}" for n, reply in enumerate(replies) if reply.status == 200}
    assert any("state.db cannot be written" in refused(reply) for reply in replies if reply.status != 200)
    server.create_model(f"{PARENT}/after")
    server.create_version(f"{MODEL}/versions/after", deploymentUri=str(files))
    listed = server.call("GET", PARENT, params={"pageSize": 100}).json["models"]
    assert {model["name"] for model in listed} == {*made, MODEL, f"{PARENT}/after"}


@contextmanager
def read_only(server: Server, folder: str) -> Iterator[None]:
    """A folder of the state is on a disk that cannot be written. What is open already is on another one."""
    enter = ("nsenter", "-t", f"{server.process.pid}", "-U", "-m", "--preserve-credentials")
    place = str(server.state_dir / folder)
    subprocess.run([*enter, "mount", "-t", "tmpfs", "-o", "ro", "none", place], check=True)
    try:
        yield
    finally:
        subprocess.run([*enter, "umount", place], check=True)


def test_a_disk_that_becomes_read_only(server: Server, files: Path) -> None:
    """A version cannot be made, and says why; predictions go on. Once the disk is well again, it works."""
    if not mounting():
        pytest.skip("needs the right to mount, in a user namespace at least")
    name = f"{MODEL}/versions/readonly"
    with read_only(server, "versions"):
        operation = server.wait(server.begin_version(name, deploymentUri=str(files)))
        assert predicts(server)

    assert "Read-only file system" in operation["error"]["message"]
    server.delete(name)
    server.create_version(name, deploymentUri=str(files))
    server.delete(name)


# ---- at the start


def said_at_start(place: Path | str, log: Path, prefix: tuple[str, ...] = ()) -> str:
    """What a server says that does not start; the test fails if it does, or shows a traceback."""
    with log.open("w+") as stderr:
        arguments = ("serve", "--port", "0", "--state-dir", str(place))
        process = start(arguments, log, {}, stderr, prefix)
        try:
            process.communicate(timeout=HANG_SECONDS)
        finally:
            process.kill()
        stderr.seek(0)
        said = stderr.read()
    assert process.returncode == 1, said
    assert "Traceback" not in said
    assert processes_of(log) == {}
    return said


@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_at_the_start(there: bool, tmp_path: Path) -> None:
    """The folder is named, with the system's reason, whether it is there already or not."""
    if not mounting():
        pytest.skip("needs the right to mount, in a user namespace at least")
    folder = tmp_path / "disk"
    folder.mkdir()
    make = 'mkdir -m 700 "$0/state" && ' if there else ""
    full = f'mount -t tmpfs -o size=1m none "$0" && {make}! head -c 2m /dev/zero 2>/dev/null >"$0/ballast"'

    said = said_at_start(folder / "state", tmp_path / "full.log", mounted(full, folder))

    assert f"Cannot use the state folder {folder / 'state'}: No space left on device" in said


def test_a_damaged_database(tmp_path: Path) -> None:
    """The server does not start, names the file and says what can be done."""
    file = tmp_path / "state.db"
    store = SqliteStore(file)
    for number in range(200):
        name = ModelName("p", f"m{number}")
        store.commit({("models", str(name)): ModelRecord(name=name, model=Model(name=str(name)))})
    store.close()
    # The first pages, with the schema, are as they were.
    whole = file.read_bytes()
    file.write_bytes(whole[: 2 * 4096] + b"\xa5" * (len(whole) - 2 * 4096))

    said = said_at_start(tmp_path, tmp_path.parent / "damaged.log")

    assert str(file) in said
    assert "--state-dir" in said


@pytest.mark.parametrize("how", ["read-only", "no folder"])
def test_a_state_folder_that_cannot_be_written(how: str, tmp_path: Path) -> None:
    """It is named, with the system's reason."""
    prefix: tuple[str, ...] = ()
    place, reason = "/dev/null/state", "Not a directory"
    if how == "read-only":
        if not mounting():
            pytest.skip("needs the right to mount, in a user namespace at least")
        place, reason = str(tmp_path), "Read-only file system"
        prefix = mounted('mount -t tmpfs -o ro none "$0"', tmp_path)

    said = said_at_start(place, tmp_path.parent / "folder.log", prefix)

    assert f"Cannot use the state folder {place}: {reason}" in said
