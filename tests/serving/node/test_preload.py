"""The preload lists of the pilots: a node that is forked has nothing left to import but its user's code."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from serving import acceleration_record
from serving.config import FRAMEWORK_ENVIRONMENT
from serving.frameworks import load_frameworks
from serving.gateway.control import pilot_specs
from serving.gateway.control.pilot_specs import framework_pilot_spec
from serving.node.codecs import CODEC_MODULES
from serving.protocols import Dialect
from tests.bounds import HANG_SECONDS
from tests.end_to_end.models import data

ROUTINE = """
class Routine:
    @classmethod
    def from_path(cls, model_dir):
        return cls()

    def predict(self, instances, **kwargs):
        return [sum(instance) for instance in instances]
"""
NONE = acceleration_record.AccelerationRecord(key=acceleration_record.AccelerationKey("", "", ""))
LEARNED = """
import tensorflow as tf

class Routine:
    def __init__(self, model):
        self.model = model

    @classmethod
    def from_path(cls, model_dir):
        return cls(tf.saved_model.load(f"{model_dir}/../function"))

    def predict(self, instances, **kwargs):
        return self.model.double(tf.constant(instances, tf.float32))["doubled"].numpy()
"""


def add(folder: Path, name: str, framework: str, instances: Any, **arguments: Any) -> Path:
    """A model to fork a node for; returns the folder for its files."""
    told = {"framework": framework, "body": {"instances": instances}, **arguments}
    (folder / f"{name}.json").write_text(json.dumps(told))
    (folder / name).mkdir(exist_ok=True)
    return folder / name


def add_routine(folder: Path, name: str, text: str, instances: Any) -> None:
    package = folder / f"{name}-package"
    package.mkdir()
    (package / f"{name}_module.py").write_text(text)
    add(
        folder,
        name,
        "CUSTOM",
        instances,
        prediction_class=f"{name}_module.Routine",
        packages=[str(package)],
        waking=True,
    )


def forked(framework: str, folder: Path) -> Any:
    """What the pilot of a framework tells of the nodes in a folder; see `forking`."""
    spec = framework_pilot_spec(framework, "", os.environ)
    module = "tests.serving.node.forking"
    command = [sys.executable, "-m", module, str(folder), spec.spare_warmup, *spec.preload]
    temporary = folder / "temporary"
    temporary.mkdir()
    environment = {**spec.environment, "TMPDIR": str(temporary)}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True, timeout=HANG_SECONDS)
    assert not [*temporary.glob("pilotlight-*")]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("framework", ["XGBOOST", "TENSORFLOW"])
def test_no_request_has_its_dialect_imported(framework: str) -> None:
    """All that nodes of a pool speak, every pilot has imported; Vertex AI asks nodes alone."""
    spoken = {module for dialect, module in CODEC_MODULES.items() if dialect is not Dialect.VERTEX}

    assert spoken <= {*framework_pilot_spec(framework, "", os.environ).preload}


def test_the_tabular_pilot_leaves_nothing_to_import(tmp_path: Path) -> None:
    """Whatever scikit-learn or XGBoost model, or routine, is loaded and asked. It has one thread.

    So has a fork that has rehearsed, and it can still study a model.
    """
    import xgboost as xgb
    from sklearn.cluster import KMeans
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.svm import SVC

    rows, classes = data()
    frame = pd.DataFrame({"size": rows[:, 0], "colour": np.where(rows[:, 1] > 0, "red", "blue")})
    mixed = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["colour"]))
    numbers, [row] = rows[:1].tolist(), rows[:1].tolist()
    models: dict[str, tuple[Any, Any, Any]] = {
        "linear": (LogisticRegression(), rows, numbers),
        "forest": (RandomForestClassifier(5), rows, numbers),
        "boosting": (HistGradientBoostingClassifier(max_iter=5), rows, numbers),
        "neighbours": (KNeighborsRegressor(), rows, numbers),
        "vectors": (SVC(), rows, numbers),
        "clusters": (KMeans(2, n_init=1), rows, numbers),
        "frame": (make_pipeline(mixed, LogisticRegression()), frame, frame[:1].to_dict("records")),
        "text": (make_pipeline(TfidfVectorizer(), MultinomialNB()), ["good", "bad", "so so"] * 30, ["good"]),
    }
    for name, (model, inputs, instances) in models.items():
        file = add(tmp_path, name, "SCIKIT_LEARN", instances, waking=True) / "model.pkl"
        file.write_bytes(pickle.dumps(model.fit(inputs, classes)))
    booster = xgb.train({"nthread": 1}, xgb.DMatrix(rows, label=classes), num_boost_round=2)
    for kind in ("json", "ubj"):
        place = {
            "folder": str(tmp_path / f"{kind}-ways"),
            "key": {"digest": kind, "libraries": "", "processor": ""},
        }
        booster.save_model(add(tmp_path, kind, "XGBOOST", numbers, acceleration=place) / f"model.{kind}")
    add_routine(tmp_path, "routine", ROUTINE, numbers)

    found = forked("CUSTOM", tmp_path)

    assert found["threads"] == 1
    assert {node["threads"] for node in found["models"].values()} == {1}
    assert {name: node["new"] for name, node in found["models"].items() if node["new"]} == {
        "routine": ["routine_module"]
    }
    assert all(node["board"] == [0, 0, 2, 0] for node in found["models"].values())
    assert not any(node["report"]["pilot"] == "tensorflow" for node in found["models"].values())
    assert all(
        (acceleration_record.read_record(tmp_path / f"{kind}-ways") or NONE).is_accelerated
        for kind in ("json", "ubj")
    )
    for name, (model, inputs, _) in models.items():
        assert found["models"][name]["answer"] == {"predictions": model.predict(inputs[:1]).tolist()}
    assert found["models"]["routine"]["answer"] == {"predictions": [sum(row)]}


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_the_tensorflow_pilot_leaves_nothing_to_import(tmp_path: Path) -> None:
    """With or without variables and tables, and for a routine that uses TensorFlow. It has one thread.

    So has a fork that has rehearsed: it may become what forks the replicas of a training job.
    """
    add(tmp_path, "function", "TENSORFLOW", [[1, 2]])
    add(tmp_path, "keras", "TENSORFLOW", [[1, 2, 3]], waking=True)
    add(tmp_path, "tables", "TENSORFLOW", [{"word": ["b"], "number": [1]}])
    add_routine(tmp_path, "learned", LEARNED, [[1, 2]])

    found = forked("TENSORFLOW", tmp_path)

    assert found["threads"] == 1
    assert {node["threads"] for node in found["models"].values()} == {1}
    assert {name: node["new"] for name, node in found["models"].items() if node["new"]} == {
        "learned": ["learned_module"]
    }
    assert all(node["board"] == [0, 0, 2, 0] for node in found["models"].values())
    assert all(node["report"]["pilot"] == "tensorflow" for node in found["models"].values())
    assert found["models"]["function"]["answer"] == {"predictions": [{"doubled": [2, 4]}]}
    assert found["models"]["keras"]["answer"] == {"predictions": [{"output_0": [6, 6]}]}
    assert found["models"]["tables"]["answer"] == {"predictions": [{"output_0": [1, 1, 2]}]}
    assert found["models"]["learned"]["answer"] == {"predictions": [[2, 4]]}


def test_the_lightgbm_pilot_leaves_nothing_to_import(tmp_path: Path) -> None:
    """It has one thread, and so has a node that has loaded a model after the fork."""
    import lightgbm as lgb

    rows, classes = data()
    booster = lgb.train({"verbosity": -1, "num_threads": 1}, lgb.Dataset(rows, classes), 3)
    booster.save_model(add(tmp_path, "trees", "LIGHTGBM", rows[:1].tolist(), waking=True) / "model.txt")

    found = forked("LIGHTGBM", tmp_path)

    assert (found["threads"], found["models"]["trees"]["threads"]) == (1, 1)
    assert found["models"]["trees"]["new"] == []
    assert found["models"]["trees"]["report"]["pilot"] == "lightgbm"
    assert found["models"]["trees"]["answer"] == {"predictions": booster.predict(rows[:1]).tolist()}


def test_the_onnx_pilot_leaves_nothing_to_import(tmp_path: Path) -> None:
    """It has one thread: onnxruntime's telemetry would be another."""
    from tests.serving.runtimes.onnx_runtime.models import make_network, write

    write(make_network(), add(tmp_path, "network", "ONNX", [[1, 2, 3, 4]], waking=True))

    found = forked("ONNX", tmp_path)

    assert (found["threads"], found["models"]["network"]["threads"]) == (1, 1)
    assert found["models"]["network"]["new"] == []
    assert found["models"]["network"]["report"]["pilot"] == "onnx"
    assert found["models"]["network"]["answer"]["predictions"][0].keys() == {"scores"}


@pytest.mark.parametrize(
    ("framework", "tensorflow", "key"),
    [
        ("SCIKIT_LEARN", False, "tabular"),
        ("XGBOOST", True, "tabular"),
        ("CUSTOM", False, "tabular"),
        ("CUSTOM", True, "tensorflow"),
        ("TENSORFLOW", False, "tensorflow"),
        ("", False, "tabular"),
        ("", True, "tensorflow"),
    ],
)
def test_the_framework_decides_else_the_files(framework: str, tensorflow: bool, key: str) -> None:
    """One pilot has TensorFlow, the other all the rest: they do not like to be imported together."""
    if key == "tensorflow" and importlib.util.find_spec("tensorflow") is None:
        key = "tabular"  # nothing can be imported ahead, and the node will say what is missing

    spec = framework_pilot_spec(
        framework, "tensorflow" if tensorflow else "", {"HOME": "/home/me", "OMP_NUM_THREADS": "8"}
    )

    assert spec.key == key
    assert spec.environment["HOME"] == "/home/me"
    assert FRAMEWORK_ENVIRONMENT.items() <= spec.environment.items()
    assert ("serving.runtimes.tensorflow_runtime.runtime" in spec.preload) == (key == "tensorflow")


def test_what_is_not_installed_is_not_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pilot would end, and take those with it that could do without."""
    installed = [one for one in load_frameworks().values() if one.library in ("", "sklearn")]
    monkeypatch.setattr(pilot_specs, "list_installed", lambda: installed)

    spec = framework_pilot_spec("TENSORFLOW", "tensorflow", {})

    assert spec.key == "tabular"
    assert "serving.runtimes.sklearn_runtime.runtime" in spec.preload
    assert "serving.runtimes.xgboost_runtime.runtime" not in spec.preload
