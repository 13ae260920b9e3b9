"""Training jobs through a real server, by Google's client and by plain HTTP."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from googleapiclient.errors import HttpError

from tests.emulator import Emulator
from tests.end_to_end.jobs import ENDS, finished, get, submit
from tests.end_to_end.training_jobs import PARENT, list_log, start_pilot, texts, training_job, write_wheel
from tests.server import Server, processes_of, running_server, until

STEPS = """
    import argparse, json, os, pathlib, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir")
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    folder = pathlib.Path(args.job_dir)
    done = folder / "step"
    print("task", json.loads(os.environ["TF_CONFIG"])["task"], "attempt", os.environ["PILOTLIGHT_ATTEMPT"])
    while (step := int(done.read_text()) if done.exists() else 0) < args.steps:
        print("step", step + 1, flush=True)  # first: who sees the file may kill the program
        done.write_text(str(step + 1))
        while (folder / "wait").exists():
            time.sleep(0.01)
    print("in all", args.steps)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(tmp_path_factory.mktemp("wheel"), STEPS)


def test_a_job_by_googles_client(server: Server, ml: Any, wheel: Path, tmp_path: Path) -> None:
    """It is shown as it was sent, runs where it says, and its log has what the program prints."""
    body = training_job("by_client", wheel, scaleTier=None, args=["--steps", "2"], jobDir=str(tmp_path))
    jobs = ml.projects().jobs()

    created = jobs.create(parent=PARENT, body=body).execute()
    ended = until(
        lambda: (found := jobs.get(name=f"{PARENT}/jobs/by_client").execute())["state"] in ENDS and found,
        "the job has ended",
    )

    assert created["state"] == "QUEUED"
    assert created["jobPosition"] == "1"
    assert created["trainingInput"] == ended["trainingInput"] == body["trainingInput"]
    assert ended["state"] == "SUCCEEDED", ended
    assert ended["trainingOutput"]["consumedMLUnits"] > 0
    assert (tmp_path / "step").read_text() == "2"
    lines = list_log(server, "by_client", 'AND resource.labels.task_name="master-replica-0"')
    assert texts(lines) == ["task {'type': 'chief', 'index': 0} attempt 1", "step 1", "step 2", "in all 2"]
    assert "Job completed successfully." in texts(list_log(server, "by_client"))
    # Who sends it again reads that it is there, and compares what was sent, as Airflow's operator does.
    with pytest.raises(HttpError, match="A job with this id already exists") as again:
        jobs.create(parent=PARENT, body=body).execute()
    assert again.value.status_code == 409
    listed = jobs.list(parent=PARENT, filter="jobId:by_client").execute()["jobs"]
    assert [job["jobId"] for job in listed] == ["by_client"]


def test_a_program_that_fails_says_why(server: Server, tmp_path: Path) -> None:
    """The message ends with its traceback."""
    wheel = write_wheel(tmp_path, "raise ValueError('no such column: age')")

    ended = finished(server, submit(server, training_job("failing", wheel)))

    assert ended["state"] == "FAILED"
    assert "master 0 exited with a non-zero status of 1" in ended["errorMessage"]
    assert ended["errorMessage"].endswith("ValueError: no such column: age")


def test_broken_packages(server: Server, wheel: Path, tmp_path: Path) -> None:
    """A job fails with the name of the package, what is wrong with it and what to do."""
    half = tmp_path / wheel.name
    half.write_bytes(wheel.read_bytes()[:200])
    damaged = submit(server, training_job("damaged", half))
    astray = submit(server, training_job("astray", wheel, pythonModule="trainer.tusk"))

    ended = finished(server, damaged)
    assert (ended["state"], ended["errorMessage"]) == (
        "FAILED",
        f"User-provided package {wheel.name} failed to install: it is damaged, or ends too early (File is "
        "not a zip file). Copy it again, and see that it is copied whole.",
    )
    assert ended["errorMessage"] in texts(list_log(server, "damaged"))
    ended = finished(server, astray)
    assert ended["state"] == "FAILED"
    assert ended["errorMessage"].endswith(
        "No module named trainer.tusk\nSet pythonModule to a module of the packages. They have trainer.task."
    )


def test_a_cancelled_job(server: Server, wheel: Path, tmp_path: Path) -> None:
    """It says so, which Airflow reads, and cannot be cancelled again."""
    (tmp_path / "wait").touch()
    name = submit(server, training_job("cancelled", wheel, args=["--steps", "9"], jobDir=str(tmp_path)))
    until((tmp_path / "step").exists, "the program is at work")

    assert server.call("POST", f"{name}:cancel").status == 200
    ended = finished(server, name)

    assert (ended["state"], ended["errorMessage"]) == ("CANCELLED", "The job was cancelled.")
    assert server.call("POST", f"{name}:cancel").status == 400


def test_a_job_that_runs_for_too_long(server: Server, wheel: Path, tmp_path: Path) -> None:
    """It is cancelled, not failed, and says why."""
    (tmp_path / "wait").touch()
    job = training_job(
        "too_long", wheel, args=["--steps", "9"], jobDir=str(tmp_path), scheduling={"maxRunningTime": "1.5s"}
    )

    ended = finished(server, submit(server, job))

    assert ended["state"] == "CANCELLED"
    assert ended["errorMessage"] == (
        "The job was cancelled: it ran for longer than scheduling.maxRunningTime allows, 1.5s."
    )


@pytest.mark.parametrize(
    ("is_killed", "is_forked"),
    [
        (True, True),
        (False, False),
        pytest.param(True, False, marks=pytest.mark.soak),
        pytest.param(False, True, marks=pytest.mark.soak),
    ],
)
def test_a_restart_of_the_server(tmp_path: Path, wheel: Path, is_killed: bool, is_forked: bool) -> None:
    """The next server starts another attempt, which goes on from what the program has written."""
    out, state = tmp_path / "out", tmp_path / "state"
    out.mkdir()
    (out / "wait").touch()
    with running_server(state) as server:
        if is_forked:
            start_pilot(server, wheel, args=["--steps", "0"], jobDir=str(tmp_path / "other"))
        name = submit(server, training_job("killed", wheel, args=["--steps", "3"], jobDir=str(out)))
        until(lambda: (out / "step").exists() and (out / "step").read_text() == "1", "it is at step 1")
        if is_killed:
            server.kill()
            server.wait_for_end()
        else:
            assert server.stop() == 0
        until(lambda: not processes_of(state), "nothing is left")
    (out / "wait").unlink()
    with running_server(state) as server:
        ended = finished(server, name)

        assert ended["state"] == "SUCCEEDED"
        lines = texts(list_log(server, "killed", 'AND resource.labels.task_name="master-replica-0"'))
        assert lines == [
            "task {'type': 'chief', 'index': 0} attempt 1",
            "step 1",
            "task {'type': 'chief', 'index': 0} attempt 2",
            "step 2",
            "step 3",
            "in all 3",
        ]
        assert server.stop() == 0


def test_stored_jobs_that_the_checks_would_refuse(tmp_path: Path, wheel: Path) -> None:
    """They fail with the field, and hold up neither the server nor other jobs."""
    out, state = tmp_path / "out", tmp_path / "state"
    changes = {
        "count": {"scaleTier": "CUSTOM", "workerCount": "many"},
        "duration": {"scheduling": {"maxRunningTime": "soon"}},
        "none": {},
    }
    with running_server(state) as server:
        jobs = {
            job_id: submit(
                server, training_job(job_id, wheel, args=["--steps", "1"], jobDir=str(out / job_id))
            )
            for job_id in changes
        }
        server.kill()
        server.wait_for_end()
    with closing(sqlite3.connect(state / "state.db")) as database, database:
        for job_id, change in changes.items():
            query = "SELECT document FROM jobs WHERE name = ?"
            record = json.loads(database.execute(query, (jobs[job_id],)).fetchone()[0])
            record["job"]["trainingInput"].update(change)
            update = "UPDATE jobs SET document = ? WHERE name = ?"
            database.execute(update, (json.dumps(record), jobs[job_id]))
    with running_server(state) as server:
        ended = {job_id: finished(server, name) for job_id, name in jobs.items()}

        assert ended["none"]["state"] == "SUCCEEDED"
        assert ended["count"]["state"] == ended["duration"]["state"] == "FAILED"
        assert "training_input.master_type" in ended["count"]["errorMessage"]
        assert "training_input.scheduling.max_running_time" in ended["duration"]["errorMessage"]
        assert server.stop() == 0


def test_a_job_is_forked_from_a_pilot(tmp_path: Path) -> None:
    """Of the second job on a server the program finds its library imported."""
    wheel = write_wheel(tmp_path, "import sys; print('sklearn' in sys.modules)\nimport sklearn")
    with running_server(tmp_path / "state") as server:
        start_pilot(server, wheel)
        assert finished(server, submit(server, training_job("second", wheel)))["state"] == "SUCCEEDED"

        lines = {
            job: texts(list_log(server, job, 'AND resource.labels.task_name="master-replica-0"'))
            for job in ("starts_the_pilot", "second")
        }
        assert lines == {"starts_the_pilot": ["False"], "second": ["True"]}
        assert server.stop() == 0


def test_a_cluster_waits_for_its_seats(tmp_path: Path, wheel: Path) -> None:
    """All replicas or none; the job says what it waits for, and one that never fits what would."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "wait").touch()
    with running_server(tmp_path / "state", "--training-seats", "3") as server:
        first = training_job("first", wheel, args=["--steps", "1"], jobDir=str(out))
        cluster = training_job(
            "cluster", wheel, scaleTier="custom", masterType="n1-standard-4", workerType="n1-standard-4",
            workerCount="2", args=["--steps", "1"], jobDir=str(tmp_path / "cluster"),
        )  # fmt: skip
        running, waiting = submit(server, first), submit(server, cluster)
        until((out / "step").exists, "the first job is at work")

        reason = server.call("GET", f"/jobs/{waiting}").json["waitReason"]
        assert reason == "The job waits for 3 seats, of which 2 of 3 are free."
        assert get(server, waiting)["state"] == "QUEUED"
        too_large = training_job("too_large", wheel, scaleTier="STANDARD_1")
        reply = server.call("POST", f"{PARENT}/jobs", json=too_large)
        assert reply.status == 400
        assert "8 replicas, and this server has seats for 3" in reply.json["error"]["message"]
        (out / "wait").unlink()
        assert finished(server, running)["state"] == "SUCCEEDED"
        assert finished(server, waiting)["state"] == "SUCCEEDED"
        assert server.stop() == 0


ESTIMATOR = """
    import argparse, pathlib, joblib
    from sklearn.linear_model import LinearRegression
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir")
    parser.add_argument("--copies", type=int, default=1)
    args = parser.parse_args()
    for number in range(args.copies):
        folder = pathlib.Path(args.job_dir, f"export{number}")
        folder.mkdir()
        joblib.dump(LinearRegression().fit([[0.0], [1.0]], [1.0, 3.0]), folder / "model.joblib")
"""


def test_a_job_that_becomes_a_version(server: Server, tmp_path: Path) -> None:
    """The server finds the model, deploys it, and it predicts; of several it says that it deploys none."""
    wheel = write_wheel(tmp_path, ESTIMATOR)
    server.create_model(f"{PARENT}/models/trained")
    one = training_job("one_model", wheel, jobDir=str(tmp_path / "one"))
    two = training_job("two_models", wheel, jobDir=str(tmp_path / "two"), args=["--copies", "2"])

    names = [
        submit(server, {**job, "trainingOptions": {"deploy": {"model": "trained", "version": job["jobId"]}}})
        for job in (one, two)
    ]
    assert [finished(server, name)["state"] for name in names] == ["SUCCEEDED", "SUCCEEDED"]

    version = f"{PARENT}/models/trained/versions/one_model"
    until(lambda: server.call("GET", version).json.get("state") == "READY", "the version is ready")
    assert server.predict(version, [[2.0]]).json == {"predictions": [pytest.approx(5.0)]}
    (note,) = [text for text in texts(list_log(server, "two_models")) if "not deployed" in text]
    assert "several models" in note
    assert server.call("GET", f"{PARENT}/models/trained/versions/two_models").status == 404
    models = server.call("GET", f"/jobs/{names[1]}/models").json["models"]
    assert models == [str(tmp_path / "two" / f"export{number}") for number in range(2)]


def test_a_folder_that_cannot_be_written(server: Server, wheel: Path) -> None:
    """The job is not queued."""
    for folder in ("/proc/pilotlight", "gs://no-such-bucket-1/out"):
        reply = server.call("POST", f"{PARENT}/jobs", json=training_job("nowhere", wheel, jobDir=folder))
        (violation,) = reply.json["error"]["details"][0]["fieldViolations"]
        assert (reply.status, violation["field"]) == (400, "training_input.job_dir")
    assert server.call("GET", f"{PARENT}/jobs/nowhere").status == 404


STORING = """
    import sys, joblib
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from sklearn.linear_model import LinearRegression
    bucket, _, folder = sys.argv[-1].removeprefix("gs://").partition("/")
    joblib.dump(LinearRegression().fit([[0.0], [1.0]], [1.0, 3.0]), "model.joblib")
    client = storage.Client(project="tests", credentials=AnonymousCredentials())
    client.bucket(bucket).blob(f"{folder}/model/model.joblib").upload_from_filename("model.joblib")
"""


def test_a_job_in_a_bucket(server: Server, emulator_server: Emulator, tmp_path: Path) -> None:
    """Its package is there, its folder is there, and so is the model that is deployed."""
    bucket = f"gs://{emulator_server.bucket('training')}"
    wheel = write_wheel(tmp_path, STORING)
    emulator_server.put(f"{bucket}/staging/{wheel.name}", wheel.read_bytes())
    server.create_model(f"{PARENT}/models/in_bucket")
    fields = {"packageUris": [f"{bucket}/staging/{wheel.name}"], "jobDir": f"{bucket}/out"}
    job = training_job("in_bucket", wheel, **fields)

    name = submit(server, {**job, "trainingOptions": {"deploy": {"model": "in_bucket", "version": "v1"}}})
    ended = finished(server, name)

    assert ended["state"] == "SUCCEEDED", ended
    version = f"{PARENT}/models/in_bucket/versions/v1"
    found = until(
        lambda: (one := server.call("GET", version).json).get("state") == "READY" and one,
        "the version is ready",
    )
    assert found["deploymentUri"] == f"{bucket}/out/model"
    assert server.predict(version, [[2.0]]).json == {"predictions": [pytest.approx(5.0)]}
