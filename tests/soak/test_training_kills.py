"""Kills of replicas and of the server during training jobs: short forms, and the long ones."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import Report
from tests.end_to_end.jobs import ENDS, finished, get, submit
from tests.end_to_end.training_jobs import list_log, texts, training_job, write_wheel
from tests.server import Server, running_server, until

INTERVAL = 5
# Each replica counts to a number, at its own pace, and checkpoints at every fifth step.
COUNTING = """
    import argparse, json, os, pathlib, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", type=pathlib.Path)
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    task, index = config["task"]["type"], config["task"]["index"]
    name = f"{task}-{index}"
    print(f"at {config['cluster'][task][index]}", flush=True)
    (args.job_dir / f"{name}.pid").write_text(str(os.getpid()))
    checkpoint = args.job_dir / f"{name}.checkpoint"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    while step < args.steps:
        print(f"step {step}", flush=True)  # in one part: a kill may come between two
        time.sleep(0.1)
        step += 1
        if step % 5 == 0:
            new = checkpoint.with_suffix(".new")
            new.write_text(str(step))
            new.replace(checkpoint)
    others = [f"worker-{number}" for number in range(len(config["cluster"].get("worker", [])))]
    while task == "chief" and any(
        int((args.job_dir / f"{other}.checkpoint").read_text() or 0) < args.steps for other in others
    ):
        time.sleep(0.1)
"""
REPLICAS = {"chief-0": "master-replica-0", "worker-0": "worker-replica-0", "worker-1": "worker-replica-1"}


@pytest.mark.parametrize("kills", [2, pytest.param(15, marks=pytest.mark.soak)])
@pytest.mark.timeout(900)
def test_replicas_that_are_killed_every_two_seconds(tmp_path: Path, report: Report, kills: int) -> None:
    """The job succeeds, at one address for each replica; no kill costs more than a checkpoint's interval."""
    out = tmp_path / "out"
    steps = 25 * kills
    job = training_job(
        "killed", write_wheel(tmp_path, COUNTING), args=["--steps", str(steps)], jobDir=str(out),
        scaleTier="CUSTOM", masterType="n1-standard-4", workerType="n1-standard-4", workerCount="2",
    )  # fmt: skip
    with running_server(tmp_path / "state") as server:
        name = submit(server, job)
        until(lambda: len(list(out.glob("*.checkpoint"))) == len(REPLICAS), "all are at work")
        done = _kill_in_turn(out, kills)
        ended = finished(server, name)

        assert ended["state"] == "SUCCEEDED", ended
        redone, addresses, starts = [], 0, 0
        for task in REPLICAS.values():
            lines = texts(list_log(server, "killed", f'AND resource.labels.task_name="{task}"'))
            places = [line for line in lines if line.startswith("at ")]
            numbers = [int(line.split()[1]) for line in lines if line.startswith("step ")]
            assert set(numbers) == set(range(steps))
            addresses += len(set(places))
            starts += len(places)
            redone += [one - two + 1 for one, two in itertools.pairwise(numbers) if two <= one]
        report(
            f"replicas killed every 2 s: {done} kills, {starts - 3} starts after the first, at most "
            f"{max(redone, default=0)} steps done again per kill (checkpoints every {INTERVAL}), {addresses} "
            "addresses of 3 replicas"
        )
        assert done == kills == starts - 3
        assert max(redone, default=0) <= INTERVAL
        assert addresses == len(REPLICAS)
        assert server.stop() == 0


def _kill_in_turn(folder: Path, count: int) -> int:
    """Kill one replica after the other, two seconds apart; returns how many there were to kill."""
    done = 0
    killed: set[int] = set()
    for name in itertools.islice(itertools.cycle(REPLICAS), count):
        pid = until(lambda name=name: _read_new_pid(folder / f"{name}.pid", killed), f"{name} runs")  # type: ignore[misc]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
            done += 1
        time.sleep(2.0)  # the rate of the kills, not a wait
    return done


def _read_new_pid(file: Path, killed: set[int]) -> int:
    """The pid of a replica that has not been killed yet, 0 if there is none."""
    text = file.read_text()
    return int(text) if text and int(text) not in killed else 0


# It says when it starts, and leaves a mark if another process works in its folder at that time.
ALONE = """
    import argparse, fcntl, os, pathlib, subprocess, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", type=pathlib.Path)
    args = parser.parse_args()
    lock = (args.job_dir / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        (args.job_dir / "twice").touch()
    with (args.job_dir / "starts").open("a") as file:
        file.write(os.environ["PILOTLIGHT_ATTEMPT"] + " " + os.environ["PILOTLIGHT_RESTART"] + "\\n")
    # What has detached itself must not be left either.
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    done = args.job_dir / "step"
    while (step := int(done.read_text() or 0) if done.exists() else 0) < 20:
        time.sleep(0.1)
        new = args.job_dir / "step.new"
        new.write_text(str(step + 1))
        new.replace(done)
    with (args.job_dir / "ends").open("a") as file:
        file.write("end\\n")
"""


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.timeout(1800)
def test_a_server_that_is_killed_at_random(tmp_path: Path, report: Report, kills: int) -> None:
    """Every job ends, none twice; no process is left, and no folder but the logs of jobs."""
    state, wheel = tmp_path / "state", write_wheel(tmp_path, ALONE)
    chance = random.Random(1)
    names: list[str] = []
    ended_before: dict[str, str] = {}
    with running_server(state) as server:
        begin = time.monotonic()
        finished(server, _submit_alone(server, "undisturbed", wheel, tmp_path / "undisturbed"))
        length = time.monotonic() - begin
        assert server.stop() == 0
    for number in range(kills):
        with running_server(state) as server:
            for name in names:
                _check_end_stays(server, name, ended_before)
            names.append(_submit_alone(server, f"job_{number}", wheel, tmp_path / f"job_{number}"))
            time.sleep(chance.uniform(0.0, 1.3 * length))  # that is the moment, not a wait
            for name in names:
                _note_end(server, name, ended_before)
            server.kill()
            server.wait_for_end()
    with running_server(state) as server:
        states = [finished(server, name)["state"] for name in names]
        attempts = [_check_starts(tmp_path / name.rpartition("/")[2]) for name in names]
        assert states == ["SUCCEEDED"] * kills
        until(lambda: not _list_job_processes(server), "no process of a job is left")
        assert server.stop() == 0
    left = [str(path) for folder in (state / "jobs").iterdir() for path in folder.iterdir()]
    report(
        f"server killed {kills} times at random moments of jobs of {length:.1f} s: {len(names)} jobs, whose "
        f"programs were started {sum(attempts)} times, all SUCCEEDED, none twice; {len(ended_before)} had "
        "ended before a kill and stayed so"
    )
    assert {path.rpartition("/")[2] for path in left} <= {"log", "logs"}


def _submit_alone(server: Server, job_id: str, wheel: Path, folder: Path) -> str:
    return submit(server, training_job(job_id, wheel, jobDir=str(folder)))


def _note_end(server: Server, name: str, ended: dict[str, str]) -> None:
    found = get(server, name)
    if found["state"] in ENDS:
        ended[name] = found["endTime"]


def _check_end_stays(server: Server, name: str, ended: dict[str, str]) -> None:
    if name in ended:
        assert get(server, name)["endTime"] == ended[name]


def _check_starts(folder: Path) -> int:
    """How many attempts at a job have started its program, each once at most."""
    starts = (folder / "starts").read_text().splitlines()
    assert len(starts) == len(set(starts)), starts
    assert not (folder / "twice").exists()
    assert (folder / "step").read_text() == "20"
    return len(starts)


def _list_job_processes(server: Server) -> list[str]:
    """The names of all processes but the server's own and its pilots."""
    names = []
    for pid in server.processes().keys() - {server.process.pid}:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            names.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return [name for name in names if name != "pilot"]
