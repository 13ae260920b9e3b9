"""Airflow's operators of AI Platform, unchanged: training, models and versions, batch prediction."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import joblib
import pytest
from sklearn.linear_model import LinearRegression

from tests.compat.credentials import running_credentials
from tests.compat.environments import Environment, Unavailable, python_of
from tests.end_to_end.jobs import results, write_lines
from tests.end_to_end.training_jobs import write_wheel
from tests.server import Server, running_server

_SECONDS = 900
# Of what the provider requires, its operators of AI Platform need these alone.
_AIRFLOW = (
    *("apache-airflow==2.10.5", "google-api-python-client==2.202.0", "google-auth-httplib2==0.4.4"),
    *("google-cloud-secret-manager==2.32.0", "gcloud-aio-auth==5.6.0"),
)
# In old releases the operator compares a job that is there with its own. The new one is the last that has it.
OLD, NEW = "8.6.0", "10.26.0"
SOURCE = """
    import argparse, pathlib, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir")
    parser.add_argument("--score", type=float)
    parser.add_argument("--wait", type=pathlib.Path)
    parser.add_argument("--fail", action="store_true")
    args = parser.parse_args()
    if args.fail:
        raise ValueError("no such column: age")
    if args.wait:
        args.wait.touch()
        time.sleep(600)
    print("score", args.score)
"""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3 * _SECONDS)]


@pytest.mark.parametrize("release", [OLD, NEW])
def test_the_operators(tmp_path: Path, release: str) -> None:
    """Each ends as its users know it: with the job's message, or with the job that is there already."""
    environment = Environment("3.11", _AIRFLOW, (f"apache-airflow-providers-google=={release}",))
    try:
        python = python_of(environment)
    except Unavailable as error:
        pytest.skip(str(error))
    model = tmp_path / "model"
    model.mkdir()
    joblib.dump(LinearRegression().fit([[0.0, 0], [1, 1], [2, 3]], [0, 1, 2]), model / "model.joblib")
    write_lines(tmp_path / "rows.jsonl", [[1.0, 1.0], [2.0, 3.0]])
    with running_server(tmp_path / "state") as server:
        found = _run_operators(python, server, tmp_path, model)
        left = server.call("GET", "projects/airflow/models").json
        labels = server.call("GET", "projects/airflow/jobs/train").json["labels"]
        tiers = server.call("GET", "projects/airflow/jobs/z_2_tiers_a").json
        assert server.stop() == 0

    is_new = release == NEW
    for name in ("train", "train again", "train on a tier"):
        assert not {"failed", "refused"} & found[name].keys(), found[name]
    assert labels == {"team": "tests", "airflow-version": "v2-10-5"}
    assert tiers["state"] == "SUCCEEDED"
    assert ("refused" in found["train another"]) is not is_new
    assert found["train another"].get("refused", 409) == 409
    assert found["train in vain"]["failed"].endswith("ValueError: no such column: age")
    assert found["train nothing"]["refused"] == 400
    assert found["kill"]["failed"] == "The job was cancelled."
    assert not {"failed", "refused"} & found["cancel again"].keys()  # 400: it has ended
    if is_new:
        assert found["train"]["pushed"]["gcp_metadata"] == {"job_id": "train", "project_id": "airflow"}

    name = "projects/airflow/models/served"
    assert found["model"]["returned"]["name"] == found["model again"]["returned"]["name"] == name
    assert found["version v1"]["returned"]["response"]["state"] == "READY"
    assert found["default"]["returned"]["isDefault"] is True
    assert [one["name"] for one in found["versions"]["returned"]] == [
        f"{name}/versions/v1",
        f"{name}/versions/v2",
    ]
    assert found["get"]["returned"]["defaultVersion"]["name"] == f"{name}/versions/v2"
    assert found["predict"]["returned"]["predictionCount"] == "2"
    assert found["predict again"]["returned"] == found["predict"]["returned"]
    assert results(tmp_path / "predict") == pytest.approx([1.0, 2.0])
    assert found["predict another"]["refused"] == 409
    assert str(tmp_path / "missing.jsonl") in found["predict in vain"]["failed"]
    assert found["delete version"]["returned"]["done"] is True
    assert found["get again"]["returned"] is None
    assert left == {}


def _run_operators(python: Path, server: Server, folder: Path, model: Path) -> dict[str, Any]:
    """What each has done, by what it was for."""
    program = Path(__file__).with_name("airflow_operators.py")
    wheel = write_wheel(folder, SOURCE)
    with running_credentials(folder) as credentials:
        done = subprocess.run(
            [str(python), "-W", "ignore", str(program), server.url, str(wheel), str(model), str(folder)],
            env={
                **os.environ,
                "AIRFLOW_HOME": str(folder / "airflow"),
                "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": "google-cloud-platform://",
                "GOOGLE_APPLICATION_CREDENTIALS": str(credentials),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
