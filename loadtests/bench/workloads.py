"""The six workloads: kinds of request, each with a model that is trained here and its own bodies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Workload:
    """Requests of one kind. `distinct` is the number of bodies; the load sends them in rotation."""

    name: str
    title: str
    model: str
    """Its name, which is that of its folder too."""
    rows: int
    distinct: int
    most_connections: int = 256
    """Beyond it only the queue would be measured."""


WORKLOADS = {
    one.name: one
    for one in (
        Workload("W1", "logistic regression, one row", "iris", 1, 1000),
        Workload("W2", "random forest of 100 trees, one row", "rf", 1, 1000),
        Workload("W3", "XGBoost, one row", "xgb", 1, 1000),
        Workload("W4", "XGBoost, 256 rows", "xgb", 256, 50),
        Workload("W5", "TensorFlow MLP, one row", "tf-mlp", 1, 1000),
        Workload("W6", "TensorFlow convolution, one image", "tf-img", 1, 4, 16),
    )
}


@dataclass(frozen=True)
class BenchFiles:
    """The files of the load and the servers."""

    folder: Path

    def model_dir(self, model: str) -> Path:
        return self.folder / "models" / model

    def bodies_file(self, workload: Workload) -> Path:
        """Request bodies, one per line."""
        return self.folder / "bodies" / f"{workload.name}.jsonl"

    def answers_file(self, workload: Workload) -> Path:
        """For each line of the bodies, the numbers that the library predicts, in one flat list."""
        return self.folder / "bodies" / f"{workload.name}.answers.jsonl"

    def done_marker(self, model: str) -> Path:
        """Exists when all files of a model do."""
        return self.folder / f"{model}.made"


def train_models(material: BenchFiles, workloads: Iterable[Workload]) -> None:
    """Train missing models, each in a process of its own, and write bodies and answers.

    Raises SystemExit when that fails.
    """
    for model in dict.fromkeys(workload.model for workload in workloads):
        if not material.done_marker(model).exists():
            print(f"training {model} into {material.folder}", file=sys.stderr, flush=True)
            done = subprocess.run(
                [sys.executable, "-m", "loadtests.bench.models", model, str(material.folder)],
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
                stderr=subprocess.PIPE,  # TensorFlow talks
                check=False,
            )
            if done.returncode:
                raise SystemExit(f"{model} could not be trained: {done.stderr.decode()[-2000:]}")
