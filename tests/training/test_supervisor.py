"""Jobs of one replica, as real processes."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from serving.errors import InvalidArgument
from serving.predictor import python_environments
from tests.training.jobs import JobRun, is_alive
from training.messages import ReplicaEvent, RestartLimits, TrainingPhase


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(pid)


def test_a_program_finds_what_python_m_gives_it(tmp_path: Path) -> None:
    source = """
        import atexit, json, os, sys, threading, time
        print(json.dumps([__name__, __spec__.name, sys.argv[1:], os.listdir(), sys.path[0] == os.getcwd()]))
        atexit.register(print, "at exit")
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    """
    with JobRun(tmp_path, source, args=("--steps", "3")) as job:
        last = job.finish()

    assert last.done is not None
    assert 0 < last.done.replica_seconds <= last.done.seconds < 60
    assert [report.phase for report in job.seen if report.phase] == list(TrainingPhase)
    assert job.replica_events() == [ReplicaEvent.STARTED, ReplicaEvent.ENDED]
    first, *rest = job.lines()
    arguments = ["--steps", "3", "--job-dir", str(job.job_dir)]
    assert json.loads(first) == ["__main__", "trainer", arguments, [], True]
    assert rest == ["thread", "at exit"]
    assert job.job_dir.is_dir()


def test_the_environment_describes_the_job(tmp_path: Path) -> None:
    source = """
        import json, os
        print(json.dumps({name: value for name, value in os.environ.items()}))
    """
    with JobRun(tmp_path, source, training_input={"region": "here"}, variables={"MINE": "1"}) as job:
        job.finish()
    found = json.loads(job.lines()[0])
    config = json.loads(found["TF_CONFIG"])

    assert config["job"] == {"region": "here"}
    assert config["task"] == {"type": "chief", "index": 0}
    assert list(config["cluster"]) == ["chief"]
    expected = {"CLOUD_ML_JOB_ID": "job_1", "PILOTLIGHT_ATTEMPT": "1", "PILOTLIGHT_RESTART": "0", "MINE": "1"}
    assert expected.items() <= found.items()
    assert not {"CLOUD_ML_TRIAL_ID", "CLOUD_ML_HP_METRIC_FILE"} & found.keys()


def test_online_predictions_come_first(tmp_path: Path) -> None:
    """The program gives way to nodes, and is ended before them when memory runs out."""
    source = """
        import os
        print(os.nice(0), open("/proc/self/oom_score_adj").read().strip())
    """
    with JobRun(tmp_path, source) as job:
        job.finish()

    assert job.lines() == [f"{min(19, os.nice(0) + 10)} 800"]


def test_an_older_interpreter_runs_the_program(tmp_path: Path) -> None:
    try:
        python = python_environments.find_python("3.7")
    except InvalidArgument as error:
        pytest.skip(error.message)
    source = "import sys, hypertune; print(sys.version_info[:2], hypertune.HyperTune().trial_id)"
    with JobRun(tmp_path, source, interpreter=python, variables={"CLOUD_ML_TRIAL_ID": "4"}) as job:
        last = job.finish()

    assert last.done is not None, last
    assert job.lines() == ["(3, 7) 4"]


def test_an_exception_is_the_reason_of_the_failure(tmp_path: Path) -> None:
    source = """
        import sys
        print("before", file=sys.stderr)
        raise ValueError("no such column: age")
    """
    with JobRun(tmp_path, source) as job:
        failed = job.finish().failed

    assert failed is not None
    lines = failed.message.splitlines()
    assert lines[0] == ("The replica master 0 exited with a non-zero status of 1. Termination reason: Error.")
    assert lines[1].startswith("Traceback")
    assert lines[-1] == "ValueError: no such column: age"
    logged = [
        entry for entry in job.entries() if entry.text.startswith(("Trace", "ValueError", "The replica"))
    ]
    assert [(entry.task, entry.severity) for entry in logged] == [
        ("master-replica-0", "ERROR"),
        ("master-replica-0", "ERROR"),
        ("service", "ERROR"),
    ]


def test_a_reason_of_any_length_is_told_in_short(tmp_path: Path) -> None:
    """The server takes no report of a megabyte, and keeps the message of each job."""
    with JobRun(tmp_path, "raise ValueError('a' * 1_200_000)") as job:
        failed = job.finish().failed

    assert failed is not None
    assert failed.message.startswith("The replica master 0 exited with a non-zero status of 1.")
    assert "a ...\n" in failed.message
    assert len(failed.message) < 7000


def test_a_program_killed_from_outside_is_started_again(tmp_path: Path) -> None:
    source = """
        import os, signal, sys
        print(os.environ["PILOTLIGHT_RESTART"], os.environ["TF_CONFIG"])
        if os.environ["PILOTLIGHT_RESTART"] != "2":
            os.kill(os.getpid(), signal.SIGKILL)
    """
    with JobRun(tmp_path, source) as job:
        assert job.finish().done is not None

    numbers, configs = zip(*(line.split(" ", 1) for line in job.lines()), strict=True)
    assert numbers == ("0", "1", "2")
    assert len(set(configs)) == 1
    assert job.replica_events().count(ReplicaEvent.RESTARTED) == 2


def test_a_job_that_is_killed_for_ever_fails(tmp_path: Path) -> None:
    source = "import os, signal; print(os.environ['TF_CONFIG']); os.kill(os.getpid(), signal.SIGSEGV)"
    with JobRun(tmp_path, source, restarts=RestartLimits(in_place=1, whole_job=1)) as job:
        failed = job.finish().failed

    assert failed is not None
    assert "SIGSEGV" in failed.message
    assert len(job.lines()) == 4
    assert len(set(job.lines())) == 2  # other addresses for each start of the whole job


def test_daemons_end_with_the_job(tmp_path: Path) -> None:
    source = """
        import os, signal, time
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.write(writer, str(os.getpid()).encode())
                time.sleep(600)
            os._exit(0)
        print(os.read(reader, 10).decode())
    """
    with JobRun(tmp_path, source, grace_seconds=0.3) as job:
        assert job.finish().done is not None

    assert not is_alive(int(job.lines()[0]))


def test_cancel_kills_a_program_that_ignores_sigterm(tmp_path: Path) -> None:
    source = """
        import signal, time
        signal.signal(signal.SIGTERM, lambda *_: print("not me"))
        print("ready")
        while True:
            time.sleep(600)
    """
    with JobRun(tmp_path, source, grace_seconds=0.5) as job:
        pid = job.wait_for_replica(ReplicaEvent.STARTED).pid
        while "ready" not in job.lines():
            time.sleep(0.01)
        job.cancel()
        failed = job.finish().failed

    assert failed is not None
    assert failed.status == "CANCELLED"
    assert "not me" in job.lines()
    assert not is_alive(pid)


def test_all_ends_when_the_server_is_gone(tmp_path: Path) -> None:
    source = """
        import os, time
        pid = os.fork()
        if pid == 0:
            os.setsid()
        else:
            print(pid)
        time.sleep(600)
    """
    with JobRun(tmp_path, source) as job:
        pid = job.wait_for_replica(ReplicaEvent.STARTED).pid
        while not job.lines():
            time.sleep(0.01)
        job.cut_lifeline()
        job.process.wait(10)

    wait_until_gone(pid)
    wait_until_gone(int(job.lines()[0]))


def test_the_time_of_replicas_is_told_while_they_run(tmp_path: Path) -> None:
    with JobRun(tmp_path, "import time; time.sleep(600)") as job:
        heartbeat = job.wait_for(lambda one: one.heartbeat and one.heartbeat.replica_seconds).heartbeat
        job.cancel()
        failed = job.finish().failed

    assert heartbeat is not None
    assert failed is not None
    assert 0 < heartbeat.replica_seconds < failed.replica_seconds


def test_replicas_end_with_their_supervisor(tmp_path: Path) -> None:
    source = """
        import subprocess, sys, time
        print(subprocess.Popen(["sleep", "600"]).pid)
        time.sleep(600)
    """
    with JobRun(tmp_path, source) as job:
        pid = job.wait_for_replica(ReplicaEvent.STARTED).pid
        while not job.lines():
            time.sleep(0.01)
        os.kill(job.process.pid, signal.SIGKILL)
        wait_until_gone(pid)
        wait_until_gone(int(job.lines()[0]))


def test_a_module_that_is_missing_is_named(tmp_path: Path) -> None:
    with JobRun(tmp_path, "", module="no_such_module") as job:
        failed = job.finish().failed

    assert failed is not None
    assert "No module named no_such_module" in failed.message
