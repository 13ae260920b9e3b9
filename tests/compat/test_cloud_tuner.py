"""tensorflow-cloud's CloudTuner, unchanged, over the studies of a server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.compat.environments import Environment, Unavailable, python_of
from tests.server import running_server

_SECONDS = 900
# The last release, with what was current then. Of what it requires, its tuner needs these alone.
ENVIRONMENT = Environment(
    "3.8",
    (
        *("tensorflow-cpu==2.8.4", "protobuf==3.19.6", "keras-tuner==1.1.3", "docker==6.0.1"),
        *("google-api-python-client==2.70.0", "google-auth", "google-cloud-storage==2.7.0"),
    ),
    ("tensorflow-cloud==0.1.16",),
)
STUDY = "projects/tests/locations/us-central1/studies/cloud_tuner"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3 * _SECONDS)]


def test_a_whole_search(tmp_path: Path) -> None:
    """Its suggestions, measurements, checks and completions; the server has what it has seen."""
    try:
        python = python_of(ENVIRONMENT)
    except Unavailable as error:
        pytest.skip(str(error))
    with running_server(tmp_path / "state") as server:
        document = tmp_path / "document.json"
        document.write_text(json.dumps(server.call("GET", "/$discovery/rest?version=v1").json))
        program = Path(__file__).with_name("cloud_tuner.py")
        done = subprocess.run(
            [str(python), str(program), str(document), "cloud_tuner", "6", str(tmp_path / "tuner")],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        trials = server.call("GET", f"{STUDY}/trials").json["trials"]

    best = json.loads(done.stdout.splitlines()[-1])
    finals = {
        trial["name"].rpartition("/")[2]: trial["finalMeasurement"]["metrics"][0]["value"] for trial in trials
    }
    assert [trial["state"] for trial in trials] == ["COMPLETED"] * 6
    assert all(trial["measurements"] for trial in trials)
    assert [score for _, score, _ in best] == sorted(finals.values(), reverse=True)[:2]
    assert all(finals[number] == score for number, score, _ in best)
    assert {*best[0][2]} == {"rate", "layers", "units", "activation", "shuffle", "batch"}
