"""The program that the demo's server trains with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import joblib

from serving.cli.demo.training_job import MODULE, build_program


def test_the_program_leaves_a_model_and_what_it_predicts(tmp_path: Path) -> None:
    """As a job runs it: out of the wheel, with the folder as its last argument."""
    name, content = build_program(tmp_path / "program")
    wheel = tmp_path / name
    wheel.write_bytes(content)
    command = [sys.executable, "-m", MODULE, "--rows", "5", "--job-dir", str(tmp_path / "job")]

    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(wheel)}, cwd=tmp_path, check=True)

    expected = json.loads((tmp_path / "job/expected.json").read_text())
    model = joblib.load(tmp_path / "job/model/model.joblib")
    assert len(expected["instances"]) == 5
    assert model.predict(expected["instances"]).tolist() == expected["predictions"]
