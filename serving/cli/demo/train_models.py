"""Trains the models of the demo, but the one that is trained as a job.

`python -m serving.cli.demo.train_models KIND FOLDER` trains one: a process per kind, because TensorFlow and
XGBoost do not share one well. FOLDER gets the model directory `model/`, for the custom routine also an sdist,
and `expected.json`: instances with the predictions that the library itself gives for them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS = 5

_ROUTINE = '''\
"""A custom prediction routine: scales its inputs, scores them, and answers in words."""

import json
import os

import numpy as np


class IrisPredictor(object):
    def __init__(self, weights, names):
        self._weights = np.array(weights)
        self._names = names

    def predict(self, instances, **kwargs):
        scores = np.array(instances) @ self._weights
        if kwargs.get("scores"):
            return scores.round(6).tolist()
        return [self._names[row.argmax()] for row in scores]

    @classmethod
    def from_path(cls, model_dir):
        with open(os.path.join(model_dir, "weights.json")) as file:
            saved = json.load(file)
        return cls(saved["weights"], saved["names"])
'''

_SETUP = """\
from setuptools import setup

setup(name="iris_routine", version="0.1", py_modules=["iris_routine"])
"""


def train_xgboost(folder: Path) -> tuple[list[Any], Any]:
    """Boosted trees on the breast cancer data."""
    import xgboost as xgb  # noqa: PLC0415
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415

    data, target = load_breast_cancer(return_X_y=True)
    booster = xgb.train({"objective": "binary:logistic", "max_depth": 4}, xgb.DMatrix(data, target), 30)
    booster.save_model(folder / "model.ubj")
    instances = _sample_rows(data)
    return instances, booster.predict(xgb.DMatrix(np.array(instances))).tolist()


def train_tensorflow(folder: Path) -> tuple[list[Any], Any]:
    """A linear softmax model on the handwritten digits, solved rather than trained to be quick."""
    import tensorflow as tf  # noqa: PLC0415
    from sklearn.datasets import load_digits  # noqa: PLC0415

    data, target = load_digits(return_X_y=True)
    weights = np.linalg.lstsq(data / 16.0, np.eye(10)[target], rcond=None)[0]

    class Digits(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weights = tf.Variable(weights, dtype=tf.float32)

        @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32, name="pixels")])  # type: ignore[untyped-decorator]
        def serve(self, pixels: Any) -> dict[str, Any]:
            scores = tf.matmul(pixels / 16.0, self.weights)
            return {"digit": tf.argmax(scores, axis=1), "scores": tf.nn.softmax(scores)}

    model = Digits()
    tf.saved_model.save(model, str(folder), signatures={"serving_default": model.serve})
    instances = _sample_rows(data)
    answer = model.serve(tf.constant(instances, tf.float32))
    rows = zip(answer["digit"].numpy().tolist(), answer["scores"].numpy().tolist(), strict=True)
    return instances, [{"digit": digit, "scores": scores} for digit, scores in rows]


def train_custom_routine(folder: Path) -> tuple[list[Any], Any]:
    """A custom prediction routine in an sdist, with its weights in the model directory."""
    from sklearn.datasets import load_iris  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    iris = load_iris()
    model = LogisticRegression(max_iter=1000, fit_intercept=False).fit(iris.data, iris.target)
    saved = {"weights": model.coef_.T.tolist(), "names": iris.target_names.tolist()}
    (folder / "weights.json").write_text(json.dumps(saved))
    source = folder.parent / "package"
    source.mkdir()
    (source / "iris_routine.py").write_text(_ROUTINE)
    (source / "setup.py").write_text(_SETUP)
    build = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(folder.parent)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    instances = _sample_rows(iris.data)
    return instances, [saved["names"][index] for index in (np.array(instances) @ model.coef_.T).argmax(1)]


TRAINERS: dict[str, Callable[[Path], tuple[list[Any], Any]]] = {
    "xgboost": train_xgboost,
    "tensorflow": train_tensorflow,
    "custom": train_custom_routine,
}


def main(kind: str, folder: Path) -> None:
    model = folder / "model"
    model.mkdir(parents=True)
    instances, predictions = TRAINERS[kind](model)
    (folder / "expected.json").write_text(json.dumps({"instances": instances, "predictions": predictions}))


def _sample_rows(data: NDArray[Any]) -> list[Any]:
    rows: list[Any] = data[:: len(data) // ROWS][:ROWS].tolist()
    return rows


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
