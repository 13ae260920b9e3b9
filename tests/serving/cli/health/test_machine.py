from __future__ import annotations

import datetime
import itertools
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from serving.cli.health import machine
from serving.cli.health.machine import check_grpc_port, check_port
from serving.cli.health.result import CheckLevel
from serving.config import ServeConfig

NOW = datetime.datetime(2030, 1, 2, tzinfo=datetime.UTC)

OPEN_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
from serving.cli.health import machine
print(machine.check_open_files().level)
"""


def root(folder: Path, files: dict[str, str]) -> Path:
    """A machine whose kernel says this about our cgroup."""
    for name, text in {"proc/self/cgroup": "0::/\n", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def memory_of(folder: Path, limit: int) -> Path:
    """A machine with a cgroup of version 2 that has a limit and uses nothing."""
    cgroup = "sys/fs/cgroup/memory."
    return root(folder, {cgroup + "max": str(limit), cgroup + "current": "0", cgroup + "stat": ""})


def test_the_system() -> None:
    """Where these tests run nodes can be forked."""
    assert machine.check_system().level is CheckLevel.OK


@pytest.mark.parametrize(
    "files",
    [
        {"sys/fs/cgroup/cpu.max": "100000 100000"},
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    ],
    ids=["v2", "v1"],
)
def test_settings_that_ask_for_more_cores_than_the_cgroup_has(files: dict[str, str], tmp_path: Path) -> None:
    """In both versions of cgroups; the setting is named."""
    limited = root(tmp_path, files)
    asking = machine.check_cores(ServeConfig(max_nodes=3), limited)

    assert machine.check_cores(ServeConfig(), limited).level is CheckLevel.OK
    assert asking.level is CheckLevel.WARN
    assert "1 of" in asking.message
    assert "max_nodes" in asking.message
    assert "threads" in machine.check_cores(ServeConfig(threads=2), limited).message


@pytest.mark.parametrize(
    ("limit", "level", "said"),
    [
        (100 << 20, CheckLevel.FAIL, "too little"),
        (700 << 20, CheckLevel.WARN, "TensorFlow"),
        (1100 << 20, CheckLevel.OK, "may be taken"),
    ],
)
def test_the_memory_that_the_cgroup_leaves(limit: int, level: CheckLevel, said: str, tmp_path: Path) -> None:
    """Less than a node takes fails."""
    finding = machine.check_memory(ServeConfig(), memory_of(tmp_path, limit))

    assert finding.level is level
    assert said in finding.message


def test_more_memory_promised_than_there_is(tmp_path: Path) -> None:
    """The setting is named."""
    finding = machine.check_memory(ServeConfig(memory_bytes=4 << 30), memory_of(tmp_path, 2 << 30))

    assert finding.level is CheckLevel.WARN
    assert "memory_bytes" in finding.advice


@pytest.mark.parametrize(("limit", "level"), [(100, "fail"), (1000, "warn")])
def test_open_files(limit: int, level: str) -> None:
    """A process with a low limit is told of it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert machine.check_open_files().level is (
        CheckLevel.OK if hard >= 4096 or hard < 0 else CheckLevel.WARN
    )
    done = subprocess.run(
        [sys.executable, "-c", OPEN_FILES, str(limit)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == level


def test_the_clock() -> None:
    """A likely time that goes steadily is fine."""
    assert machine.check_clock(None).level is CheckLevel.OK


def test_a_clock_that_says_what_cannot_be() -> None:
    """Neither the beginning of time nor a day in a hundred years."""
    for seconds in (0.0, (NOW + datetime.timedelta(days=40_000)).timestamp()):
        finding = machine.check_clock(None, wall=lambda seconds=seconds: seconds)  # type: ignore[misc]
        assert finding.level is CheckLevel.FAIL


def test_a_clock_that_jumps() -> None:
    """Whatever the steady clock says."""
    times = itertools.count(NOW.timestamp(), 3600)
    finding = machine.check_clock(None, wall=lambda: next(times), steady=lambda: 0.0, pause=lambda _: None)

    assert finding.level is CheckLevel.WARN
    assert "jumped by 3600" in finding.message


def test_a_clock_that_went_back() -> None:
    """The state was changed in its future."""
    finding = machine.check_clock(NOW + datetime.timedelta(hours=1), wall=NOW.timestamp)

    assert finding.level is CheckLevel.WARN
    assert "2030-01-02 01:00:00" in finding.message


def test_a_port_that_is_free() -> None:
    """Any is, when one is to be picked."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        number = listener.getsockname()[1]

    assert check_port("127.0.0.1", number, None).level is CheckLevel.OK
    assert check_port("127.0.0.1", 0, None).level is CheckLevel.OK


def test_a_port_that_is_taken() -> None:
    """It may be by the server itself."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        number = listener.getsockname()[1]

        taken = check_port("127.0.0.1", number, None)
        assert taken.level is CheckLevel.WARN
        assert str(number) in taken.advice
        assert check_port("127.0.0.1", number, 4711).level is CheckLevel.OK


def test_an_address_that_is_not_ours() -> None:
    """The server could not listen there."""
    finding = check_port("192.0.2.1", 8080, None)

    assert finding.level is CheckLevel.FAIL
    assert "192.0.2.1:8080" in finding.message


def test_the_port_of_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is checked as the other, and so is whether gRPC is there."""
    assert "switched off" in check_grpc_port(ServeConfig(), None).message
    settings = ServeConfig(grpc_port="0")
    assert check_grpc_port(settings, None).level is CheckLevel.OK
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = check_grpc_port(ServeConfig(grpc_port=str(listener.getsockname()[1])), None)
    assert (taken.level, taken.check) == (CheckLevel.WARN, "grpc port")
    assert "--grpc-port" in taken.advice

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "grpc_health" else name)
    missing = check_grpc_port(settings, None)
    assert (missing.level, "grpc_health" in missing.message) == (CheckLevel.FAIL, True)
    assert "pilotlight[grpc]" in missing.advice
