"""Locust changes the standard library of its process, so it runs in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import joblib
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from loadtests.run_record import read_run
from tests.loadtests.sleeper import WAKE_SECONDS, running_sleeper
from tests.server import running_server

ROOT = Path(__file__).parents[2]


def locust(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command of the locustfile's head, typed in a folder."""
    file = Path(os.path.relpath(ROOT / "loadtests" / "locustfile.py", folder))
    return subprocess.run(
        [str(Path(sys.executable).with_name("locust")), "-f", str(file), "--headless", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file of instances."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in load_iris().data[::10].tolist()))
    return file


def test_a_load_on_a_real_server(tmp_path: Path, rows: Path) -> None:
    """A version that sleeps takes a burst without a loss, and the report says so."""
    data, target = load_iris(return_X_y=True)
    (tmp_path / "iris").mkdir()
    joblib.dump(LogisticRegression(max_iter=1000).fit(data, target), tmp_path / "iris" / "model.joblib")
    out = tmp_path / "out"
    with running_server(tmp_path / "state", "--idle-timeout", "1") as server:
        server.create_model("projects/local/models/iris")
        server.create_version("projects/local/models/iris/versions/v1", deploymentUri=str(tmp_path / "iris"))
        done = locust(
            "--host", server.url, "--model", "iris", "--instances", str(rows), "--report", str(out),
            "--shape", "burst", "--idle-seconds", "5", "--step-seconds", "2", "--rate", "60", "--users", "16",
            "--wake-within", "20", "--p99-within", "20",
        )  # fmt: skip
    found = read_run(out)

    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / "report.txt").read_text().strip() in done.stdout
    assert (out / "report.png").stat().st_size > 10_000
    assert "burst: passed" in done.stdout
    assert "asleep: " in done.stdout
    assert len(found.requests) == 120
    assert not any(one.failure for one in found.requests)
    assert max(sample.ready for sample in found.samples) == 1
    assert found.run.target == "projects/local/models/iris"


@pytest.mark.alone
def test_a_sleeping_version_is_seen_to_wake(tmp_path: Path, rows: Path) -> None:
    """Twice, from no node each time, in the time its node takes to start; and no request comes twice.

    What is due while the only user waits is late, which counts.
    """
    out = tmp_path / "out"
    with running_sleeper(idle_seconds=0.5) as server:
        done = locust(
            "--host", server.url, "--model", "sleeper", "--instances", str(rows), "--report", str(out),
            "--shape", "idle-wake-idle", "--cycles", "2", "--idle-seconds", "1.5", "--step-seconds", "0.5",
            "--rate", "40", "--users", "1", "--rows", "2",
        )  # fmt: skip
    report = (out / "report.txt").read_text()
    first, second = (read_run(out).requests[at::20] for at in (0, 1))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok          no node at the end of each pause: none" in report
    assert report.count("asleep: ") == 2
    assert [one.due for one in first] == [1.5, 3.5]
    assert [one.latency for one in first] == pytest.approx([WAKE_SECONDS] * 2, abs=0.25)
    assert all(one.latency > WAKE_SECONDS - 0.03 > one.done - one.sent for one in second)
    assert len(server.bodies) == len(set(server.bodies)) == 40


def test_a_missed_objective_is_an_exit_code(tmp_path: Path, rows: Path) -> None:
    """A model that is not there fails every request."""
    with running_sleeper(idle_seconds=9) as server:
        done = locust(
            "--host", server.url, "--model", "nobody", "--instances", str(rows),
            "--report", str(tmp_path / "out"), "--step-seconds", "1", "--rate", "5", "--users", "4",
        )  # fmt: skip

    assert done.returncode == 1
    assert 'requests    5, failed 5\n              5 x status 404: {"error": "no such model"}' in done.stdout
    assert "FAILED      every request is answered: 0 of 5" in done.stdout


def test_a_wrong_command_is_refused_at_once(tmp_path: Path) -> None:
    """And the message says what to do."""
    done = locust("--host", "http://127.0.0.1:1", "--model", "m", "--report", str(tmp_path))

    assert done.returncode != 0
    assert "--instances FILE" in done.stderr
    assert not (tmp_path / "run.json").exists()


def test_there_is_a_shorter_command(tmp_path: Path, rows: Path) -> None:
    """It hands over to locust whatever it does not know itself."""
    given = ("--host", "http://127.0.0.1:1", "--model", "m", "--instances", str(rows), "--run-time", "5s")
    done = subprocess.run(
        [sys.executable, "-m", "loadtests", *given, "--report", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode != 0
    assert "not --run-time" in done.stderr
