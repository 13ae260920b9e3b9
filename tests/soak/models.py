"""Models of ordinary size for the long tests, each with rows and the predictions its library gives for them.

`python -m tests.soak.models KIND FOLDER` writes one: each in a process of its own, because TensorFlow and
XGBoost do not like to be imported together.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.written import as_written

FEATURES = 20


@dataclass(frozen=True)
class Model:
    """A model's files, and what it must answer."""

    kind: str
    folder: Path
    instances: list[Any]
    predictions: list[Any]


def write(kind: str, folder: Path) -> Model:
    """Train a model of a kind, one of `KINDS`."""
    command = [sys.executable, "-m", __name__, kind, str(folder)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(command, check=True, timeout=180, env=environment)
    expected = json.loads((folder / "expected.json").read_text())
    return Model(kind, folder / "model", expected["instances"], expected["predictions"])


def _data() -> tuple[NDArray[Any], NDArray[Any]]:
    rows = np.random.default_rng(5).normal(size=(400, FEATURES)).astype(np.float32)
    return rows, (rows[:, :3].sum(axis=1) > 0).astype(int)


def _sklearn(folder: Path) -> tuple[list[Any], list[Any]]:
    """A forest of 100 trees."""
    import joblib
    from sklearn.ensemble import RandomForestClassifier

    rows, classes = _data()
    model = RandomForestClassifier(n_estimators=100, random_state=0).fit(rows, classes)
    joblib.dump(model, folder / "model.joblib")
    return rows[:4].tolist(), model.predict(rows[:4]).tolist()


def _xgboost(folder: Path) -> tuple[list[Any], list[Any]]:
    """100 boosted trees."""
    import xgboost as xgb

    rows, classes = _data()
    booster = xgb.train({"objective": "binary:logistic"}, xgb.DMatrix(rows, label=classes), 100)
    booster.save_model(folder / "model.ubj")
    return rows[:4].tolist(), as_written(booster.predict(xgb.DMatrix(rows[:4])))


def _tensorflow(folder: Path) -> tuple[list[Any], list[Any]]:
    """A dense network with two hidden layers of 64."""
    import tensorflow as tf

    sizes = [FEATURES, 64, 64, 3]
    random = np.random.default_rng(7)

    class Mlp(tf.Module):  # type: ignore[misc]  # TensorFlow has no types
        def __init__(self) -> None:
            super().__init__()
            shapes = itertools.pairwise(sizes)
            self.weights = [
                tf.Variable(random.normal(size=shape) / 8, dtype=tf.float32, name=f"dense{number}")
                for number, shape in enumerate(shapes)
            ]

        @tf.function(input_signature=[tf.TensorSpec([None, FEATURES], tf.float32, "x")])  # type: ignore[untyped-decorator]
        def scores(self, x: Any) -> dict[str, Any]:
            for weights in self.weights[:-1]:
                x = tf.nn.relu(tf.matmul(x, weights))
            return {"scores": tf.nn.softmax(tf.matmul(x, self.weights[-1]))}

    mlp = Mlp()
    tf.saved_model.save(mlp, str(folder), signatures={"serving_default": mlp.scores})
    rows = _data()[0][:4]
    return rows.tolist(), [{"scores": scores} for scores in as_written(mlp.scores(rows)["scores"].numpy())]


KINDS: dict[str, Callable[[Path], tuple[list[Any], list[Any]]]] = {
    "scikit-learn": _sklearn,
    "xgboost": _xgboost,
    "tensorflow": _tensorflow,
}


def main(kind: str, folder: Path) -> None:
    """Write one model and what it must answer."""
    (folder / "model").mkdir(parents=True)
    instances, predictions = KINDS[kind](folder / "model")
    (folder / "expected.json").write_text(json.dumps({"instances": instances, "predictions": predictions}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
