"""Small models of the three libraries, as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import xgboost as xgb
from sklearn.ensemble import RandomForestClassifier

X = np.random.default_rng(4).normal(size=(300, 4))
LABELS = (X @ [1.0, -2.0, 0.5, 0.0] > 0).astype(int)


def build_xgboost(folder: Path, _: Any) -> None:
    matrix = xgb.DMatrix(X, label=LABELS)
    booster = xgb.train({"objective": "multi:softprob", "num_class": 2, "nthread": 1}, matrix, 4)
    (folder / "model.bst").write_bytes(booster.save_raw())


def build_sklearn(folder: Path, _: Any) -> None:
    joblib.dump(RandomForestClassifier(5, random_state=0).fit(X, LABELS), folder / "model.joblib")


def build_tensorflow(folder: Path, tf: Any) -> None:
    module = tf.Module()
    module.weights = tf.Variable(np.eye(4, 3, dtype=np.float32) * 0.3)

    def serve(x: Any) -> dict[str, Any]:
        return {"y": tf.nn.softmax(x @ module.weights), "name": tf.strings.as_string(x[:, 0])}

    module.serve = tf.function(serve, input_signature=[tf.TensorSpec([None, 4], tf.float32, "x")])
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})


BUILDERS: Mapping[str, Callable[[Path, Any], None]] = {
    "xgboost": build_xgboost,
    "sklearn": build_sklearn,
    "tensorflow": build_tensorflow,
}
