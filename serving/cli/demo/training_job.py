"""The program that the demo's server trains a model with, as a job."""

from __future__ import annotations

from pathlib import Path

from serving.cli.local.trainer_package import build_trainer_wheel

MODULE = "trainer.task"
# Gets the model directory `model/`, and `expected.json` as those of `train_models`.
_PROGRAM = '''\
"""Trains a pipeline on the iris flowers."""

import argparse
import json
import os

import joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int)
parser.add_argument("--job-dir")
args = parser.parse_args()

data, target = load_iris(return_X_y=True)
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(data, target)
print(f"Of the rows that it was trained on, {model.score(data, target):.1%} are predicted right.")

os.makedirs(os.path.join(args.job_dir, "model"))
joblib.dump(model, os.path.join(args.job_dir, "model", "model.joblib"))
rows = data[:: len(data) // args.rows][: args.rows]
expected = {"instances": rows.tolist(), "predictions": model.predict(rows).tolist()}
with open(os.path.join(args.job_dir, "expected.json"), "w") as file:
    json.dump(expected, file)
'''


def build_program(folder: Path) -> tuple[str, bytes]:
    """The program as a wheel: its file name and content. `folder` is a new one for the source."""
    package = folder / MODULE.partition(".")[0]
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "task.py").write_text(_PROGRAM)
    with build_trainer_wheel(package) as wheel:
        return wheel.name, wheel.read_bytes()
