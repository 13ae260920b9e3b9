from __future__ import annotations

import datetime
import fcntl
import importlib.util
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from serving.cli.health import state
from serving.cli.health.result import CheckLevel
from serving.cli.health.state import ProcessInfo
from serving.config import ServeConfig
from serving.gateway.state.migrations import MIGRATIONS, open_sqlite_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder with a state file."""
    folder = tmp_path / "state"
    folder.mkdir()
    open_sqlite_file(folder / "state.db").dispose()
    return folder


def test_a_folder_that_can_be_written(folder: Path) -> None:
    """Nothing is left in it, and it need not be there yet."""
    before = sorted(folder.iterdir())

    assert state.check_writable(folder).level is not CheckLevel.FAIL
    assert state.check_writable(folder / "a" / "b").level is not CheckLevel.FAIL
    assert sorted(folder.iterdir()) == before


def test_folders_that_cannot_be_written(folder: Path) -> None:
    """The error says which and why."""
    for hopeless in (folder / "state.db", Path("/proc/1")):
        finding = state.check_writable(hopeless)
        assert finding.level is CheckLevel.FAIL
        assert str(hopeless) in finding.message
        assert "--state-dir" in finding.advice


def test_a_slow_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change would wait for it."""
    monkeypatch.setattr(state, "_SLOW_FSYNC", 0.0)

    assert "slow" in state.check_writable(folder).message


def test_space(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that may grow over what is free is told of, a disk that is full fails."""
    free = shutil.disk_usage(folder).free

    assert state.check_free_space(ServeConfig(cache_bytes=free * 2), folder).level is CheckLevel.WARN
    assert "cache_bytes" in state.check_free_space(ServeConfig(cache_bytes=free * 2), folder).message
    monkeypatch.setattr(state, "_GOOD_FREE", 0)
    assert state.check_free_space(ServeConfig(cache_bytes=0), folder).level is CheckLevel.OK
    monkeypatch.setattr(state, "_GOOD_FREE", free * 2)
    assert state.check_free_space(ServeConfig(cache_bytes=0), folder).level is CheckLevel.WARN
    monkeypatch.setattr(state, "_LEAST_FREE", free * 2)
    assert state.check_free_space(ServeConfig(cache_bytes=0), folder).level is CheckLevel.FAIL


@pytest.mark.parametrize(
    ("version", "level", "said"),
    [
        (len(MIGRATIONS), CheckLevel.OK, "the newest"),
        (1, CheckLevel.OK, f"brings it to {len(MIGRATIONS)}"),
        (99, CheckLevel.FAIL, "schema 99"),
    ],
)
def test_the_schema(folder: Path, version: int, level: CheckLevel, said: str) -> None:
    """Older files are fine, newer ones are not; looking changes nothing."""
    with closing(sqlite3.connect(folder / "state.db")) as database:
        database.execute(f"PRAGMA user_version = {version}")
    content = (folder / "state.db").read_bytes()
    finding = state.check_state_file(folder)

    assert finding.level is level
    assert said in finding.message
    assert (folder / "state.db").read_bytes() == content


def test_no_state_file_yet(tmp_path: Path) -> None:
    """It will be made."""
    assert state.check_state_file(tmp_path).level is CheckLevel.OK
    gone = state.check_state_file(tmp_path, is_running=True)
    assert gone.level is CheckLevel.FAIL
    assert "state.db is gone while the server runs" in gone.message


def test_a_damaged_state_file(folder: Path) -> None:
    """The copies that are there are named."""
    (folder / "state.db").write_bytes(b"no database at all" * 1000)
    (folder / "state.db.v1").touch()
    finding = state.check_state_file(folder)

    assert finding.level is CheckLevel.FAIL
    assert "state.db.v1" in finding.advice


def test_when_the_state_was_changed(folder: Path, tmp_path: Path) -> None:
    """By its files."""
    for name in ("state.db", "state.db-wal"):
        (folder / name).touch()
        os.utime(folder / name, (1000, 1000))

    assert state.find_newest_change(folder) == datetime.datetime.fromtimestamp(1000, datetime.UTC)
    assert state.find_newest_change(tmp_path / "none") is None


def test_the_server_that_uses_the_folder(folder: Path) -> None:
    """By the lock that it holds."""
    assert state.find_server_pid(folder) is None
    with (folder / "lock").open("w") as file:
        file.write("4711")
        file.flush()
        assert state.find_server_pid(folder) is None
        fcntl.flock(file, fcntl.LOCK_EX)
        assert state.find_server_pid(folder) == 4711


SERVER = ProcessInfo(10, 1, "/venv/bin/python /venv/bin/pilotlight serve --port 8080")
PILOT = ProcessInfo(11, 10, "/opt/pilotlight/venv/bin/python -m autoscaler.pilot {}")
NODE = ProcessInfo(12, 11, "/venv/bin/python -m autoscaler.node_process {}")
SHELL = ProcessInfo(1, 0, "/sbin/init")


def test_leftovers() -> None:
    """What works for a server that is no more; a living server's processes are none."""
    assert state.check_leftovers([SHELL, SERVER, PILOT, NODE]).level is CheckLevel.OK
    orphaned = [SHELL, PILOT, NODE, ProcessInfo(13, 1, "vim -m autoscaler.py"), ProcessInfo(14, 1, "")]
    finding = state.check_leftovers(orphaned)

    assert finding.level is CheckLevel.WARN
    assert "kill 11 12" in finding.advice


@pytest.mark.parametrize(
    "command",
    [
        "python -m batch.pool --port 50000",
        "python -m batch.boot --id=1",
        "/venv/bin/python /venv/bin/pilotlight local batch --model-dir m",
        "python -m serving.cli local batch --model-dir m",
    ],
)
def test_what_works_without_a_server_is_no_leftover(command: str) -> None:
    """Workers beside an engine, and the process of a job on this machine alone."""
    job = ProcessInfo(12, 11, "python -m autoscaler.module_process 3 batch")
    found = [SHELL, ProcessInfo(11, 1, command), *([] if "-m batch" in command else [job])]

    assert state.check_leftovers(found).level is CheckLevel.OK


@pytest.mark.parametrize(
    "module",
    (
        "autoscaler.pilot",
        "autoscaler.node_process",
        "autoscaler.module_process",
        "serving.artifacts.prepare",
        "serving.logs.sinks",
        "batch",
    ),
)
def test_leftovers_by_module(module: str) -> None:
    """Each kind of child process is known by a module that exists."""
    assert importlib.util.find_spec(module) is not None
    assert state.check_leftovers([ProcessInfo(12, 1, f"python -m {module} {{}}")]).level is CheckLevel.WARN


def test_leftovers_of_this_machine() -> None:
    """A process that says it is a pilot is found, with its parent."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    arguments = [sys.executable, "-c", code, "-m", "autoscaler.pilot"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (found,) = [one for one in state.list_processes() if one.pid == process.pid]
        assert found.parent == os.getpid()
        assert state.check_leftovers([found]).level is CheckLevel.WARN
        process.communicate()
