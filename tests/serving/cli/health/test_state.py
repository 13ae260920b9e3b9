from __future__ import annotations

import datetime
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from serving.cli.health import state
from serving.cli.health.finding import Level
from serving.cli.health.state import Process
from serving.config import ServeConfig
from serving.gateway.schema import MIGRATIONS, open_database


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder with a state file."""
    folder = tmp_path / "state"
    folder.mkdir()
    open_database(folder / "state.db").dispose()
    return folder


def test_a_folder_that_can_be_written(folder: Path) -> None:
    """Nothing is left in it, and it need not be there yet."""
    before = sorted(folder.iterdir())

    assert state.writable(folder).level is not Level.FAIL
    assert state.writable(folder / "a" / "b").level is not Level.FAIL
    assert sorted(folder.iterdir()) == before


def test_folders_that_cannot_be_written(folder: Path) -> None:
    """The error says which and why."""
    for hopeless in (folder / "state.db", Path("/proc/1")):
        finding = state.writable(hopeless)
        assert finding.level is Level.FAIL
        assert str(hopeless) in finding.message
        assert "--state-dir" in finding.advice


def test_a_slow_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change would wait for it."""
    monkeypatch.setattr(state, "_SLOW_FSYNC", 0.0)

    assert "slow" in state.writable(folder).message


def test_space(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that may grow over what is free is told of, a disk that is full fails."""
    free = shutil.disk_usage(folder).free

    assert state.space(ServeConfig(cache_bytes=free * 2), folder).level is Level.WARN
    assert "cache_bytes" in state.space(ServeConfig(cache_bytes=free * 2), folder).message
    monkeypatch.setattr(state, "_GOOD_FREE", 0)
    assert state.space(ServeConfig(cache_bytes=0), folder).level is Level.OK
    monkeypatch.setattr(state, "_GOOD_FREE", free * 2)
    assert state.space(ServeConfig(cache_bytes=0), folder).level is Level.WARN
    monkeypatch.setattr(state, "_LEAST_FREE", free * 2)
    assert state.space(ServeConfig(cache_bytes=0), folder).level is Level.FAIL


@pytest.mark.parametrize(
    ("version", "level", "said"),
    [
        (len(MIGRATIONS), Level.OK, "the newest"),
        (1, Level.OK, f"brings it to {len(MIGRATIONS)}"),
        (99, Level.FAIL, "schema 99"),
    ],
)
def test_the_schema(folder: Path, version: int, level: Level, said: str) -> None:
    """Older files are fine, newer ones are not; looking changes nothing."""
    with closing(sqlite3.connect(folder / "state.db")) as database:
        database.execute(f"PRAGMA user_version = {version}")
    content = (folder / "state.db").read_bytes()
    finding = state.schema(folder)

    assert finding.level is level
    assert said in finding.message
    assert (folder / "state.db").read_bytes() == content


def test_no_state_file_yet(tmp_path: Path) -> None:
    """It will be made."""
    assert state.schema(tmp_path).level is Level.OK


def test_a_damaged_state_file(folder: Path) -> None:
    """The copies that are there are named."""
    (folder / "state.db").write_bytes(b"no database at all" * 1000)
    (folder / "state.db.v1").touch()
    finding = state.schema(folder)

    assert finding.level is Level.FAIL
    assert "state.db.v1" in finding.advice


def test_when_the_state_was_changed(folder: Path, tmp_path: Path) -> None:
    """By its files."""
    for name in ("state.db", "state.db-wal"):
        (folder / name).touch()
        os.utime(folder / name, (1000, 1000))

    assert state.newest_change(folder) == datetime.datetime.fromtimestamp(1000, datetime.UTC)
    assert state.newest_change(tmp_path / "none") is None


def test_the_server_that_uses_the_folder(folder: Path) -> None:
    """By the lock that it holds."""
    assert state.server_pid(folder) is None
    with (folder / "lock").open("w") as file:
        file.write("4711")
        file.flush()
        assert state.server_pid(folder) is None
        fcntl.flock(file, fcntl.LOCK_EX)
        assert state.server_pid(folder) == 4711


SERVER = Process(10, 1, "/venv/bin/python /venv/bin/pilotlight serve --port 8080")
PILOT = Process(11, 10, "/venv/bin/python -m autoscaler.pilot {}")
NODE = Process(12, 11, "/venv/bin/python -m autoscaler.launch {}")
SHELL = Process(1, 0, "/sbin/init")


def test_leftovers() -> None:
    """What works for a server that is no more; a living server's processes are none."""
    assert state.leftovers([SHELL, SERVER, PILOT, NODE]).level is Level.OK
    orphaned = [SHELL, PILOT, NODE, Process(13, 1, "vim -m autoscaler.py"), Process(14, 1, "")]
    finding = state.leftovers(orphaned)

    assert finding.level is Level.WARN
    assert "kill 11 12" in finding.advice


def test_leftovers_of_this_machine() -> None:
    """A process that says it is a pilot is found, with its parent."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    arguments = [sys.executable, "-c", code, "-m", "autoscaler.pilot"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (found,) = [one for one in state.processes() if one.pid == process.pid]
        assert found.parent == os.getpid()
        assert state.leftovers([found]).level is Level.WARN
        process.communicate()
