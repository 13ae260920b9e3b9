"""Batch predictions whose processes are forked from the pilot of their version, and what ends beside them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end import jobs, models
from tests.server import Server, running_server, until

VERSION = "projects/tests/models/forked/versions/v1"
NUMBERS = list(range(10))


@pytest.fixture(params=["forked", pytest.param("cold", marks=pytest.mark.soak)])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with a ready pilot, or with none at all."""
    pilots = "auto" if request.param == "forked" else "off"
    with running_server(tmp_path / "state", "--jobs", "2", "--pilots", pilots) as server:
        server.create_model(VERSION.partition("/versions")[0])
        server.create_version(VERSION, **models.routine(tmp_path))
        if request.param == "forked":
            wait_for_pilot(server)
        yield server


only_forked = pytest.mark.parametrize("world", ["forked"], indirect=True)


def wait_for_pilot(server: Server) -> int:
    """The pid of the pilot once it can be forked."""

    def find() -> int:
        pilots = server.get_status()["pilots"]
        return next((one["pid"] for one in pilots if one["state"] == "lit"), 0)

    return until(find, "the pilot is ready")


def list_forked(server: Server) -> list[int]:
    """The processes of jobs that a pilot has forked; they keep its command line."""
    commands = server.processes()
    return [pid for pid in jobs.processes(server)["process"] if "autoscaler.pilot" in commands[pid]]


def submit(server: Server, folder: Path, job_id: str, *more: Any) -> str:
    path = jobs.write_lines(folder / "in" / f"{job_id}.jsonl", [*NUMBERS, *more])
    return jobs.submit(server, jobs.job(job_id, str(path), folder / "out" / job_id, versionName=VERSION))


def submit_waiting(server: Server, folder: Path, job_id: str) -> tuple[str, Path]:
    """A job that is at work, and the file for which its model waits."""
    gate = folder / f"{job_id}.gate"
    name = submit(server, folder, job_id, f"wait {gate}")
    until(Path(f"{gate}.reached").exists, "it is at work")
    return name, gate


@pytest.mark.soak
@only_forked
def test_a_pilot_that_is_killed_costs_its_jobs_nothing(world: Server, tmp_path: Path) -> None:
    """Two at once are forked from it, and go on without it; the next one is started all the same."""
    pilot = wait_for_pilot(world)
    waiting = [submit_waiting(world, tmp_path, job_id) for job_id in ("one", "two")]
    forked = list_forked(world)

    os.kill(pilot, signal.SIGKILL)
    until(lambda: pilot not in world.processes(), "the pilot is gone")
    next_ = submit(world, tmp_path, "next")
    for _, gate in waiting:
        gate.touch()
    names = [*(name for name, _ in waiting), next_]
    ended = [jobs.finished(world, name) for name in names]

    assert len(forked) == 2
    assert [jobs.outcome(job)[0] for job in ended] == ["SUCCEEDED"] * 3
    assert [world.call("GET", f"/jobs/{name}").json["attempt"] for name in names] == [1, 1, 1]
    for name in names:
        jobs.check_nothing_is_left(world, tmp_path / "out" / name.rpartition("/")[2])


@pytest.mark.soak
@only_forked
def test_jobs_that_are_cancelled_at_once(world: Server, tmp_path: Path) -> None:
    """Wherever they are between the order to fork and their first report."""
    names = []
    for number in range(8):
        names.append(submit(world, tmp_path, f"job_{number}"))
        reply = world.call("POST", f"{names[-1]}:cancel")
        assert reply.status == 200, reply.json
    last = submit(world, tmp_path, "last")

    assert {jobs.finished(world, name)["state"] for name in names} == {"CANCELLED"}
    assert jobs.finished(world, last)["state"] == "SUCCEEDED"
    for name in names:
        assert not jobs.files(tmp_path / "out" / name.rpartition("/")[2]) - {jobs.CLAIM}
    jobs.check_nothing_is_left(world, tmp_path / "out" / "last")


def test_what_a_model_has_left_behind_ends_with_its_job(world: Server, tmp_path: Path) -> None:
    """Though it is in no group of the job and has no parent any more, and however the job ends."""
    left = tmp_path / "left"
    gate = tmp_path / "gate"
    name = submit(world, tmp_path, "leaving", f"leave {left}", f"wait {gate}")
    until(Path(f"{gate}.reached").exists, "it is at work")
    first = read_pid(left)
    left.unlink()
    (process,) = {*jobs.processes(world)["process"]} - {first}
    other, other_gate = submit_waiting(world, tmp_path, "other")

    os.kill(process, signal.SIGKILL)
    until(lambda: not Path("/proc", str(first)).exists(), "what a killed attempt has left is gone")
    gate.touch()
    assert jobs.finished(world, name)["state"] == "SUCCEEDED"
    second = read_pid(left)
    until(lambda: not Path("/proc", str(second)).exists(), "what an attempt that succeeded has left is gone")
    other_gate.touch()

    assert jobs.finished(world, other)["state"] == "SUCCEEDED"
    assert world.call("GET", f"/jobs/{other}").json["attempt"] == 1


def read_pid(file: Path) -> int:
    return int(until(lambda: file.read_text() if file.exists() else "", "its pid is known"))


@pytest.mark.soak
@only_forked
def test_a_stop_of_the_server_ends_a_forked_attempt(world: Server, tmp_path: Path) -> None:
    """The next server makes another."""
    name, gate = submit_waiting(world, tmp_path, "stopped")
    assert len(list_forked(world)) == 1

    assert world.stop() == 0
    gate.touch()
    with running_server(world.state_dir) as server:
        ended = jobs.finished(server, name)
        attempt = server.call("GET", f"/jobs/{name}").json["attempt"]
        assert server.stop() == 0

    assert jobs.outcome(ended) == ("SUCCEEDED", len(NUMBERS) + 1, 0)
    assert attempt == 2
