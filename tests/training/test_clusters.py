"""Jobs of several replicas, as real processes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.jobs import JobRun, is_alive
from training.messages import ReplicaEvent, ReplicaGroup, ReplicaRole

MASTER = ReplicaGroup(ReplicaRole.MASTER)
CLUSTER = (
    MASTER,
    ReplicaGroup(ReplicaRole.WORKER, 2),
    ReplicaGroup(ReplicaRole.PARAMETER_SERVER),
    ReplicaGroup(ReplicaRole.EVALUATOR),
)
TASKS = {
    "master-replica-0", "worker-replica-0", "worker-replica-1", "ps-replica-0", "evaluator-replica-0",
}  # fmt: skip


def test_the_end_of_the_master_is_that_of_the_job(tmp_path: Path) -> None:
    """Parameter servers never end by themselves."""
    source = """
        import json, os, time
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        print(task["type"], os.environ.get("RANK"), os.environ["OMP_NUM_THREADS"])
        time.sleep(1.0 if task["type"] == "chief" else 0.0 if task["type"] == "worker" else 600)
    """
    with JobRun(tmp_path, source, groups=CLUSTER) as job:
        done = job.finish().done

    assert done is not None
    assert done.replica_seconds > 3 * done.seconds / 2
    started = {report.replica.task: report.replica.pid for report in job.seen if report.replica}
    assert started.keys() == TASKS
    assert not any(map(is_alive, started.values()))
    said = {task: job.lines(task) for task in TASKS}
    assert said["master-replica-0"] == ["chief 0 1"]
    assert said["worker-replica-1"] == ["worker 2 1"]
    assert said["ps-replica-0"] == ["ps None 1"]


def test_the_error_of_any_replica_is_that_of_the_job(tmp_path: Path) -> None:
    source = """
        import os, time
        if os.environ["RANK"] == "1":
            raise SystemExit(2)
        time.sleep(600)
    """
    with JobRun(tmp_path, source, groups=(MASTER, ReplicaGroup(ReplicaRole.WORKER))) as job:
        failed = job.finish().failed

    assert failed is not None
    assert failed.message.startswith("The replica worker 0 exited with a non-zero status of 2.")


def test_a_lost_worker_comes_back_at_its_address(tmp_path: Path) -> None:
    """Others that fail because of it are started again too."""
    source = """
        import os, socket, sys, time, json
        config = json.loads(os.environ["TF_CONFIG"])
        worker = config["cluster"]["worker"][0]
        print(worker)
        host, port = worker.split(":")
        if config["task"]["type"] == "worker":
            server = socket.create_server((host, int(port)))
            while True:
                client, _ = server.accept()
                time.sleep(600)
        while True:
            try:
                peer = socket.create_connection((host, int(port)))
                break
            except OSError:
                time.sleep(0.02)
        print("connected")
        if os.environ["PILOTLIGHT_RESTART"] == "0":
            peer.recv(1)
            raise ValueError("the peer is gone")
    """
    with JobRun(tmp_path, source, groups=(MASTER, ReplicaGroup(ReplicaRole.WORKER))) as job:
        pid = job.wait_for_replica(ReplicaEvent.STARTED, "worker-replica-0").pid
        while "connected" not in job.lines():
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        assert job.finish().done is not None

    assert len(set(job.lines("worker-replica-0"))) == 1
    assert ReplicaEvent.RESTARTED in job.replica_events("worker-replica-0")
    assert ReplicaEvent.RESTARTED in job.replica_events("master-replica-0")


def test_a_program_that_checkpoints_survives_kills(tmp_path: Path) -> None:
    source = """
        import os, pathlib, sys, time
        folder = pathlib.Path(sys.argv[-1])
        checkpoint = folder / "step"
        step = int(checkpoint.read_text()) if checkpoint.exists() else 0
        while step < 60:
            sys.stdout.write(f"step {step}\\n")  # print writes in parts, and a kill may come between them
            time.sleep(0.02)
            step += 1
            if step % 5 == 0:
                new = folder / "step.new"
                new.write_text(str(step))
                new.replace(checkpoint)
    """
    kills = 0
    with JobRun(tmp_path, source) as job:
        for restarts in itertools.count():
            event = ReplicaEvent.RESTARTED if restarts else ReplicaEvent.STARTED
            pid = job.wait_for_replica(event).pid
            before = job.lines().count("step 0")
            if kills == 6:
                break
            deadline = time.monotonic() + 20
            while len(job.lines()) < 7 * (restarts + 1) and time.monotonic() < deadline:
                time.sleep(0.02)
            os.kill(pid, signal.SIGKILL)
            kills += 1
        assert job.finish().done is not None

    steps = [int(line.split()[1]) for line in job.lines()]
    assert before == 1
    assert set(steps) == set(range(60))
    redone = [first - second + 1 for first, second in itertools.pairwise(steps) if second <= first]
    assert len(redone) <= kills
    assert max(redone, default=0) <= 5


def test_a_flood_of_lines_is_kept_whole(tmp_path: Path) -> None:
    source = """
        import os
        for number in range(10_000):
            print(os.environ["RANK"], number)
        if os.environ["RANK"] == "0":
            import time; time.sleep(3)
    """
    with JobRun(tmp_path, source, groups=(MASTER, ReplicaGroup(ReplicaRole.WORKER, 3))) as job:
        assert job.finish().done is not None

    by_task: dict[str, list[str]] = {}
    for entry in job.entries():
        by_task.setdefault(entry.task, []).append(entry.text)
    assert by_task["master-replica-0"] == [f"0 {number}" for number in range(10_000)]
    for rank in (1, 2, 3):
        assert by_task[f"worker-replica-{rank - 1}"] == [f"{rank} {number}" for number in range(10_000)]


def test_a_job_that_takes_too_much_memory_ends_with_the_reason(tmp_path: Path) -> None:
    source = """
        import os, time
        held = []
        while True:
            held.append(bytearray(os.urandom(1 << 20) * 8))
            time.sleep(0.02)
    """
    with JobRun(tmp_path, source, memory_bytes=200 << 20) as job:
        failed = job.finish().failed

    assert failed is not None
    assert failed.status == "RESOURCE_EXHAUSTED"
    assert failed.message.endswith("and may take 200 MiB.")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_fails_the_job_and_not_its_supervisor(tmp_path: Path, small_disk: Path) -> None:
    source = """
        import sys
        print("begin")
        with open(sys.argv[-1] + "/big", "wb") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
    """
    # The log is on it too.
    with JobRun(tmp_path, source, job_dir=str(small_disk), log_dir=str(small_disk / "log")) as job:
        failed = job.finish().failed

    assert failed is not None
    assert "No space left on device" in failed.message


def test_the_configuration_is_that_of_the_job(tmp_path: Path) -> None:
    source = "import os; print(os.environ['TF_CONFIG'])"
    groups = (MASTER, ReplicaGroup(ReplicaRole.EVALUATOR))
    with JobRun(tmp_path, source, groups=groups, primary_name="master", trial="4") as job:
        assert job.finish().done is not None
    config = json.loads(job.lines()[0])

    assert list(config["cluster"]) == ["master"]
    assert config["task"] == {"type": "master", "index": 0, "trial": "4"}
