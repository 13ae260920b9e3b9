"""Trains a model and writes its bodies and answers: `python -m loadtests.bench.models MODEL FOLDER`.

Seeds are fixed, so that every run and every machine measures the same models.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtests.bench.workloads import WORKLOADS, BenchFiles, Workload

Predict = Callable[[NDArray[Any]], Any]
_TREES = 100
_DIGITS = 4


def train_iris(folder: Path) -> Predict:
    """Logistic regression on four features."""
    import joblib
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(*load_iris(return_X_y=True))
    joblib.dump(model, folder / "model.joblib")
    return model.predict  # type: ignore[no-any-return]


def train_forest(folder: Path) -> Predict:
    """A random forest on thirty features."""
    import joblib
    from sklearn.datasets import load_breast_cancer
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(_TREES, random_state=0).fit(*load_breast_cancer(return_X_y=True))
    joblib.dump(model, folder / "model.joblib")
    return model.predict  # type: ignore[no-any-return]


def train_boosted_trees(folder: Path) -> Predict:
    """Boosted trees on thirty features."""
    import xgboost
    from sklearn.datasets import load_breast_cancer

    settings = {"objective": "binary:logistic", "max_depth": 6, "eta": 0.1, "seed": 0, "base_score": 0.5}
    booster = xgboost.train(settings, xgboost.DMatrix(*load_breast_cancer(return_X_y=True)), _TREES)
    booster.save_model(folder / "model.ubj")
    (folder / "model.ubj").rename(folder / "model.bst")
    return lambda rows: booster.predict(xgboost.DMatrix(rows))


def build_perceptron(folder: Path) -> Predict:
    """A multi-layer perceptron, 30-64-64-2; its weights are drawn, not trained."""
    import tensorflow as tf
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer().data
    weights = _draw_weights((30, 64), (64, 64), (64, 2))

    class Perceptron(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.mean = tf.constant(data.mean(axis=0), tf.float32)
            self.deviation = tf.constant(data.std(axis=0), tf.float32)
            self.layers = [(tf.Variable(one), tf.Variable(tf.zeros(one.shape[1]))) for one in weights]

        @tf.function(input_signature=[tf.TensorSpec([None, 30], tf.float32, name="inputs")])  # type: ignore[untyped-decorator]
        def serve(self, inputs: Any) -> dict[str, Any]:
            values = (inputs - self.mean) / self.deviation
            for kernel, bias in self.layers[:-1]:
                values = tf.nn.relu(values @ kernel + bias)
            kernel, bias = self.layers[-1]
            return {"probabilities": tf.nn.softmax(values @ kernel + bias)}

    return _save_module(Perceptron(), folder)


def build_convolution(folder: Path) -> Predict:
    """Two convolutions and a softmax over ten classes; its weights are drawn, not trained."""
    import tensorflow as tf

    weights = _draw_weights((5, 5, 3, 8), (3, 3, 8, 16), (16, 10))

    class Convolution(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = (tf.Variable(one) for one in weights)

        @tf.function(input_signature=[tf.TensorSpec([None, 224, 224, 3], tf.float32, name="image")])  # type: ignore[untyped-decorator]
        def serve(self, image: Any) -> dict[str, Any]:
            values = tf.nn.relu(tf.nn.conv2d(image, self.first, 4, "SAME"))
            values = tf.nn.relu(tf.nn.conv2d(values, self.second, 2, "SAME"))
            return {"probabilities": tf.nn.softmax(tf.reduce_mean(values, [1, 2]) @ self.last)}

    return _save_module(Convolution(), folder)


MODELS: dict[str, Callable[[Path], Predict]] = {
    "iris": train_iris,
    "rf": train_forest,
    "xgb": train_boosted_trees,
    "tf-mlp": build_perceptron,
    "tf-img": build_convolution,
}


def main(model: str, folder: Path) -> None:
    """Make all files of a model; the last one tells that the others are whole."""
    material = BenchFiles(folder)
    model_dir = material.model_dir(model)
    shutil.rmtree(model_dir, ignore_errors=True)
    model_dir.mkdir(parents=True)
    predict = MODELS[model](model_dir)
    for workload in (one for one in WORKLOADS.values() if one.model == model):
        _write_bodies(material, workload, predict)
    material.done_marker(model).touch()


def _write_bodies(material: BenchFiles, workload: Workload, predict: Predict) -> None:
    bodies, answers = material.bodies_file(workload), material.answers_file(workload)
    bodies.parent.mkdir(exist_ok=True)
    with bodies.open("w") as body, answers.open("w") as answer:
        for rows in _iter_rows(workload):
            body.write(json.dumps({"instances": rows.tolist()}, separators=(",", ":")) + "\n")
            answer.write(json.dumps(np.asarray(predict(rows), np.float64).ravel().tolist()) + "\n")


def _iter_rows(workload: Workload) -> Iterator[NDArray[Any]]:
    """For each body its rows: real ones, each a little off so that no two are equal, rounded as people do."""
    from sklearn.datasets import load_breast_cancer, load_iris

    random = np.random.default_rng(0)
    if workload.model == "tf-img":
        for _ in range(workload.distinct):
            yield random.random((workload.rows, 224, 224, 3)).round(5)
        return
    data = (load_iris if workload.model == "iris" else load_breast_cancer)().data
    for _ in range(workload.distinct):
        rows = data[random.integers(0, len(data), workload.rows)]
        yield (rows * (1 + 0.02 * random.standard_normal(rows.shape))).round(_DIGITS)


def _draw_weights(*shapes: tuple[int, ...]) -> list[NDArray[np.float32]]:
    """Weights of layers, scaled so that values neither vanish nor grow on their way through."""
    random = np.random.default_rng(1)
    return [
        (random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1]))).astype(np.float32)
        for shape in shapes
    ]


def _save_module(module: Any, folder: Path) -> Predict:
    import tensorflow as tf

    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    return lambda rows: module.serve(tf.constant(rows, tf.float32))["probabilities"].numpy()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
