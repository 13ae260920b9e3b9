"""A small model of each kind that takes rows of 30 numbers, made by its own framework."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt
import xgboost as xgb
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.bounds import HANG_SECONDS
from tests.end_to_end.models import wheel

COLUMNS = 30

# Its answers have a number and a text, and depend on a file of its model folder.
_ROUTINE = """
import json
from pathlib import Path

import numpy as np


class Scorer:
    def __init__(self, weights):
        self.weights = weights

    @classmethod
    def from_path(cls, model_dir):
        return cls(np.array(json.loads((Path(model_dir) / "weights.json").read_text())))

    def predict(self, instances, **kwargs):
        sums = [float(np.sum(np.array(one) * self.weights)) for one in instances]
        return [{"sum": one, "sign": "positive" if one > 0 else "negative"} for one in sums]
"""


def build_xgboost(folder: Path) -> Sequence[str]:
    rows, labels = _generate_training_rows()
    booster = xgb.train({"nthread": 1, "max_depth": 6}, xgb.DMatrix(rows, label=labels), 100)
    booster.save_model(folder / "model.json")
    return ()


def build_sklearn(folder: Path) -> Sequence[str]:
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(*_generate_training_rows())
    joblib.dump(pipeline, folder / "model.joblib")
    return ()


def build_tensorflow(folder: Path) -> Sequence[str]:
    """In a process of its own: TensorFlow has threads and memory that other tests should not carry."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", __name__, str(folder)]
    subprocess.run(command, env=environment, check=True, timeout=HANG_SECONDS)
    return ()


def build_routine(folder: Path) -> Sequence[str]:
    (folder / "weights.json").write_text(str(np.linspace(-1, 1, COLUMNS).tolist()))
    packed = wheel(folder.parent / "packages", "scorer", "0.1", {"scorer.py": _ROUTINE})
    return ("--prediction-class", "scorer.Scorer", "--package-uris", str(packed))


# Each writes a model into a folder, and returns the flags of the command line that go with it.
BUILDERS: Mapping[str, Callable[[Path], Sequence[str]]] = {
    "xgboost": build_xgboost,
    "sklearn": build_sklearn,
    "tensorflow": build_tensorflow,
    "routine": build_routine,
}


def _generate_training_rows() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    rows = np.random.default_rng(0).normal(size=(2000, COLUMNS))
    return rows, rows[:, 0] * rows[:, 1] > 0


def _save_tensorflow(folder: str) -> None:
    import tensorflow as tf

    module = tf.Module()
    weights = np.random.default_rng(1).normal(size=(COLUMNS, 3)).astype(np.float32)
    module.weights = tf.Variable(weights * 0.3)

    def serve(x: Any) -> dict[str, Any]:
        return {"scores": tf.nn.softmax(x @ module.weights), "first": tf.strings.as_string(x[:, 0])}

    module.serve = tf.function(serve, input_signature=[tf.TensorSpec([None, COLUMNS], tf.float32, "x")])
    tf.saved_model.save(module, folder, signatures={"serving_default": module.serve})


if __name__ == "__main__":
    _save_tensorflow(sys.argv[1])
