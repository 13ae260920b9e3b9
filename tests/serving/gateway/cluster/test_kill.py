"""Two real servers on one database, of which one is killed."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.bounds import HANG_SECONDS
from tests.conftest import Report
from tests.end_to_end.jobs import submit
from tests.end_to_end.models import write_sklearn
from tests.end_to_end.training_jobs import PARENT, list_log, texts, training_job, write_wheel
from tests.postgres import Postgres
from tests.server import Server, running_server, start, until

# It waits after each step while the file is there.
STEPS = """
    import argparse, pathlib, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir")
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    folder = pathlib.Path(args.job_dir)
    done = folder / "step"
    while (step := int(done.read_text()) if done.exists() else 0) < args.steps:
        done.write_text(str(step + 1))
        print("step", step + 1, flush=True)
        while (folder.parent / "wait").exists():
            time.sleep(0.01)
"""
VERSION = "projects/p/models/m/versions/v"


def owns_work(server: Server) -> bool:
    return "this server does the work" in server.log.read_text()


def test_what_a_killed_server_had_begun_is_done_by_another(
    postgres: Postgres, tmp_path: Path, report: Report
) -> None:
    """Within 10 s it has begun again; nothing that was acknowledged is missing."""
    state = {"PILOTLIGHT_STATE": postgres.create_database()}
    write_sklearn(tmp_path / "forest")
    with (
        running_server(tmp_path / "a", "--pilots", "off", environment=state) as a,
        running_server(tmp_path / "b", "--pilots", "off", environment=state) as b,
    ):
        until(lambda: owns_work(a), "the first one does the work")
        a.create_model("projects/p/models/m")
        until(lambda: b.call("GET", "projects/p/models/m").status == 200, "the other knows the model")
        operation = b.begin_version(VERSION, deploymentUri=str(tmp_path / "forest"))
        a.kill()
        killed = time.monotonic()
        until(lambda: owns_work(b), "the other does the work")
        taken_over = time.monotonic() - killed

        assert "error" not in b.wait(operation)
        assert b.call("GET", VERSION).json["state"] == "READY"
        assert not (tmp_path / "b" / "state.db").exists()
        report(f"the work of a killed server is taken over after {taken_over:.1f} s")
        assert taken_over < 10


@pytest.mark.soak  # `test_job_logs.py` is the short form
def test_a_job_is_followed_over_the_kill_of_the_server_that_runs_it(
    postgres: Postgres, tmp_path: Path
) -> None:
    """By the command, at the other one: it tells what is missing, until the first one is started again."""
    state = {"PILOTLIGHT_STATE": postgres.create_database()}
    wheel = write_wheel(tmp_path / "wheel", STEPS)
    (tmp_path / "wait").touch()
    job = training_job("steps", wheel, args=["--steps", "2"], jobDir=str(tmp_path / "dir"))
    flags = ("--pilots", "off", "--port", "0")
    with (
        running_server(tmp_path / "b", *flags, environment=state) as b,
        running_server(tmp_path / "a", *flags, environment=state) as a,
    ):
        until(lambda: owns_work(b), "the first one does the work")
        submit(a, job)
        until(lambda: "step 1" in texts(list_log(a, "steps")), "the log of the one is read at the other")
        told = a.call("GET", f"/jobs/{PARENT}/jobs/steps").json
        assert (told["phase"], told["replicas"][0]["task"]) == ("RUNNING", "master-replica-0")
        command = ("jobs", "stream-logs", "steps", "--server", a.url, "--project", "tests")
        follower = start(command, tmp_path, {}, subprocess.DEVNULL)
        assert follower.stdout is not None
        assert any("step 1" in line for line in iter(follower.stdout.readline, ""))

        b.kill()
        # Not at once: what the killed server had started may go on for a moment.
        until(lambda: owns_work(a), "the other one does the work")
        (tmp_path / "wait").unlink()
        printed, _ = follower.communicate(timeout=HANG_SECONDS)
        assert follower.returncode == 0, printed
        seen, told_missing, rest = printed.partition("Lines before this one are on ")
        assert told_missing
        assert rest.startswith(f"{socket.gethostname()}:")
        assert ("step 2" in seen, "step 2" in rest) == (False, True)

        with running_server(tmp_path / "b", *flags, environment=state):
            until(lambda: "step 1" in texts(list_log(a, "steps")), "the whole log is read")
            entries = list_log(a, "steps")
        assert not any(" this one are on " in text for text in texts(entries))
        assert texts(entries).index("step 1") < texts(entries).index("step 2")
