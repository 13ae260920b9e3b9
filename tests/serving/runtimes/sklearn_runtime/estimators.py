"""Rows and labels to fit estimators on, and the answers that requests get from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd

from serving.runtimes import LoadSpec, Runtime
from serving.runtimes.json_codec import InstancesDecoder
from serving.runtimes.sklearn_runtime.runtime import load_model

RNG = np.random.default_rng(3)
X = RNG.normal(size=(120, 4))
X_INT = RNG.integers(-9, 9, size=(120, 4))
X_NAN = np.where(RNG.random(X.shape) < 0.2, np.nan, X)
LABELS = (X[:, 0] + X[:, 1] > 0).astype(int)
NAMES = np.array(["no", "yes"])[LABELS]
VALUES = X @ [1.0, -2.0, 0.5, 0.0] + RNG.normal(size=120) / 10
FRAME = pd.DataFrame(X, columns=["a", "b", "c", "d"])
PEOPLE = pd.DataFrame({"age": [3, 40, 25, 70] * 5, "city": ["x", "y", "z", "y"] * 5})
TEXTS = ["good thing", "bad thing", "very good", "very bad"] * 4
SENTIMENT = [1, 0, 1, 0] * 4


def served(model: Any, folder: Path, **options: Any) -> Runtime:
    joblib.dump(model, folder / "model.joblib")
    return load_model(LoadSpec(folder, "SCIKIT_LEARN", **options))


def answers(runtime: Runtime, instances: list[Any], **parameters: Any) -> Any:
    """What a request would get, body included."""
    body = json.dumps({"instances": instances, **parameters}).encode()
    batch, others = InstancesDecoder().decode(body, runtime.input_format)
    return runtime.predict(batch, **others)


def assert_same_bits(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    assert one.dtype == other.dtype and one.shape == other.shape
    assert one.tolist() == other.tolist() if one.dtype.hasobject else one.tobytes() == other.tobytes()


def clean(array: Any) -> list[Any]:
    return [[None if value != value else value for value in row] for row in array.tolist()]
