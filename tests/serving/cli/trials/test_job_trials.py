"""Tuning from the command line: on a server, and without one."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bounds import HANG_SECONDS
from tests.serving.cli.conftest import Run

PROGRAM = """
import argparse, joblib, os, hypertune
from sklearn.linear_model import LinearRegression
parser = argparse.ArgumentParser()
parser.add_argument("--job-dir")
parser.add_argument("--depth", type=int)
args = parser.parse_args()
os.makedirs(os.path.join(args.job_dir, "model"))
joblib.dump(LinearRegression().fit([[0.0], [1.0]], [0.0, args.depth]), args.job_dir + "/model/model.joblib")
if args.depth == 2:
    raise ValueError("two is too many")
hypertune.HyperTune().report_hyperparameter_tuning_metric("loss", args.depth / 4, 1)
"""
CONFIG = """
trainingInput:
  hyperparameters:
    goal: MINIMIZE
    hyperparameterMetricTag: loss
    maxTrials: 5
    maxParallelTrials: 2
    algorithm: GRID_SEARCH
    params:
    - {parameterName: depth, type: INTEGER, minValue: 1, maxValue: 4}
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "trainer").mkdir(parents=True)
    (folder / "trainer" / "__init__.py").touch()
    (folder / "trainer" / "task.py").write_text(PROGRAM)
    (folder / "tuning.yaml").write_text(CONFIG)
    return folder


def flags(code: Path, job_dir: Path) -> list[str]:
    words = ["--package-path", code / "trainer", "--module-name", "trainer.task", "--job-dir", job_dir]
    return [*map(str, words), "--config", str(code / "tuning.yaml")]


def test_trials_of_a_job_are_listed_drawn_and_deployed(pilotlight: Run, code: Path, tmp_path: Path) -> None:
    words = shlex.join(flags(code, tmp_path / "out"))
    submitted = pilotlight(f"jobs submit training tuned_cli {words} --stream-logs")
    picture = tmp_path / "tuned.png"
    listed = pilotlight(f"jobs trials tuned_cli --plot {picture}")
    as_csv = pilotlight("jobs trials tuned_cli --csv")
    as_json = pilotlight("jobs trials tuned_cli --format json").json

    assert submitted.code == 0, submitted.err
    lines = listed.out.splitlines()
    assert lines[0].split() == ["TRIAL", "STATE", "loss", "STEP", "depth", "SECONDS", "REASON"]
    assert [line.split()[1] for line in lines[1:]] == ["SUCCEEDED"] * 3 + ["FAILED"]
    assert [one["value"] for one in as_json] == [0.25, 0.75, 1.0, None]
    assert [one["hyperparameters"]["depth"] for one in as_json] == ["1", "3", "4", "2"]
    assert "ValueError: two is too many" in lines[4]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert as_csv.out.splitlines()[0] == "trial,state,loss,step,depth,seconds,reason"
    best, third = as_json[0]["trialId"], as_json[1]["trialId"]
    deploy = "jobs deploy tuned_cli --model tuned_cli"
    deployed = pilotlight(f"{deploy} --version best")
    other = pilotlight(f"{deploy} --version third --trial {third}")
    assert (deployed.code, other.code) == (0, 0), (deployed.err, other.err)
    assert f"Deploying {tmp_path}/out/{best}/model." in deployed.err
    assert f"Deploying {tmp_path}/out/{third}/model." in other.err
    missing = pilotlight(f"{deploy} --trial 9")
    assert missing.code == 1
    assert "has no trial '9'" in missing.err


def train(*words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, whose children all are trials."""
    command = [sys.executable, "-c", "from serving.cli import main; main()", "local", "train", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)


def test_a_program_is_tuned_without_a_server(code: Path, tmp_path: Path) -> None:
    done = train(*flags(code, tmp_path / "out"))

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["SUCCEEDED"] * 3 + ["FAILED"]
    assert "ValueError: two is too many" in done.stderr
    assert len(list((tmp_path / "out").glob("*/model/model.joblib"))) == 4


def test_a_search_whose_trials_all_fail_has_failed(code: Path, tmp_path: Path) -> None:
    (code / "tuning.yaml").write_text(CONFIG.replace("minValue: 1, maxValue: 4", "minValue: 2, maxValue: 2"))
    done = train(*flags(code, tmp_path / "out"))

    assert done.returncode == 1
    assert "two is too many" in done.stderr
