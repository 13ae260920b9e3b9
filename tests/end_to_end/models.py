"""Small models of every kind, as files: what clients deploy in these tests.

`python -m tests.end_to_end.models FOLDER` writes the SavedModel, in a process of its own because
importing TensorFlow is slow and TensorFlow and XGBoost do not like to be imported together.
"""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.bounds import HANG_SECONDS

_SETUP = "from setuptools import setup\nsetup(name={name!r}, version='0.1', py_modules={modules!r})\n"

# What the custom prediction routine of these tests does, asked by the first value of its instances.
ROUTINE = dedent(
    '''
    import json, os, sys, time
    from pathlib import Path

    def leave(file):  # a process in a session of its own, without a parent
        pid = os.fork()
        if pid == 0:
            os.setsid()
            if os.fork() == 0:
                Path(file).write_text(str(os.getpid()))
                time.sleep(600)
            os._exit(0)
        os.waitpid(pid, 0)

    class Routine:
        """Does what its instances say."""

        def __init__(self, factor):
            self.factor = factor
            self.seen = 0

        def predict(self, instances, **kwargs):
            self.seen += 1
            answers = [self.answer(instance) for instance in instances]
            return [kwargs] if kwargs else answers

        def answer(self, instance):
            if isinstance(instance, (int, float)):
                return instance * self.factor
            if instance == "seen":
                return self.seen
            if instance == "pid":
                return os.getpid()
            if instance == "version":
                return json.loads(os.environ["create_version_request"])["version"]["prediction_class"]
            word, _, rest = instance.partition(" ")
            if word == "sleep":
                time.sleep(float(rest))
            elif word == "wait":  # for a file, so that a test decides for how long
                Path(rest + ".reached").touch()
                while not Path(rest).exists():
                    time.sleep(0.01)
            elif word == "leave":  # a process of its own, whose pid is in that file
                leave(rest)
            elif word == "exit":
                os._exit(int(rest))
            elif word == "raise":
                raise RuntimeError(rest)
            return "done"

        @classmethod
        def from_path(cls, model_dir):
            path = Path(model_dir) / "factor.txt"
            gate = Path(model_dir) / "gate.txt"
            if gate.exists():
                gate = Path(gate.read_text())
                gate.with_suffix(".reached").touch()
                while not gate.exists():
                    time.sleep(0.01)
            weight = Path(model_dir) / "mebibytes.txt"
            if weight.exists():
                cls.weight = os.urandom(1 << 20) * int(weight.read_text())
            return cls(float(path.read_text()) if path.exists() else 2)
    '''
)

# A step for a pipeline, as people write them in their own packages.
STEP = dedent(
    '''
    from sklearn.base import BaseEstimator, TransformerMixin

    class Doubler(BaseEstimator, TransformerMixin):
        """A transformer of the user's own."""

        def fit(self, X, y=None):
            return self

        def transform(self, X):
            return [[2 * value for value in row] for row in X]
    '''
)


def data() -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows of four numbers and a class for each."""
    rows = np.random.default_rng(3).normal(size=(90, 4)).round(3)
    return rows, (rows[:, 0] + rows[:, 1] > 0).astype(int) + (rows[:, 2] > 0.5)


def write_sklearn(folder: Path) -> Any:
    """A forest in model.joblib; returns the estimator."""
    import joblib
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(n_estimators=5, random_state=0).fit(*data())
    folder.mkdir(parents=True, exist_ok=True)
    joblib.dump(model, folder / "model.joblib")
    return model


def write_xgboost(folder: Path) -> Any:
    """A booster in model.bst; returns it."""
    import xgboost as xgb

    rows, classes = data()
    booster = xgb.train(
        {"objective": "reg:squarederror", "nthread": 1}, xgb.DMatrix(rows, label=classes), num_boost_round=4
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.bst").write_bytes(booster.save_raw("ubj"))
    return booster


def write_pipeline(folder: Path) -> Any:
    """A pipeline with the user's own step, pickled; returns the pipeline. Its module is `user_steps`."""
    import types

    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline

    module = types.ModuleType("user_steps")
    sys.modules["user_steps"] = module
    exec(STEP, module.__dict__)
    rows, classes = data()
    pipeline = make_pipeline(module.Doubler(), LinearRegression()).fit(rows.tolist(), classes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.pkl").write_bytes(pickle.dumps(pipeline))
    return pipeline


def write_tensorflow(folder: Path) -> None:
    """A SavedModel whose signatures take numbers, pairs of a number and a string, and examples."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(
        [sys.executable, "-m", __name__, str(folder)], env=environment, check=True, timeout=HANG_SECONDS
    )


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str], requires: str = "") -> Path:
    """A pure Python wheel."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    about += f"Requires-Dist: {requires}\n" if requires else ""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/METADATA", about)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def routine(folder: Path) -> dict[str, Any]:
    """The fields of a version that make it a custom routine; a wheel, because that is quickest to install."""
    packed = wheel(folder, "routine", "0.1", {"routine.py": ROUTINE})
    return {"predictionClass": "routine.Routine", "packageUris": [str(packed)]}


def archive(name: str, modules: Mapping[str, str], setup: str | None = None) -> bytes:
    """A source archive NAME-0.1.tar.gz with these modules."""
    files = {f"{module}.py": text for module, text in modules.items()}
    files["setup.py"] = setup or _SETUP.format(name=name, modules=list(modules))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-0.1/{path}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


def _save(folder: str) -> None:
    import tensorflow as tf

    class Doubling(tf.Module):  # type: ignore[misc]  # TensorFlow has no types
        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])  # type: ignore[untyped-decorator]
        def double(self, x: Any) -> dict[str, Any]:
            return {"doubled": 2 * x}

        @tf.function(  # type: ignore[untyped-decorator]
            input_signature=[tf.TensorSpec([None], tf.float32, "n"), tf.TensorSpec([None], tf.string, "s")]
        )
        def pair(self, n: Any, s: Any) -> dict[str, Any]:
            return {"half": n / 2, "text": s, "raw_bytes": s}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])  # type: ignore[untyped-decorator]
        def classify(self, inputs: Any) -> dict[str, Any]:
            n = self.parsed(inputs)
            labels = tf.repeat([["low", "high"]], tf.size(n), axis=0)
            return {"classes": labels, "scores": tf.stack([1 - n, n], axis=1)}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])  # type: ignore[untyped-decorator]
        def regress(self, inputs: Any) -> dict[str, Any]:
            return {"outputs": 2 * self.parsed(inputs)}

        def parsed(self, examples: Any) -> Any:
            return tf.io.parse_example(examples, {"n": tf.io.FixedLenFeature([], tf.float32)})["n"]

    module = Doubling()
    names = {"serving_default": "double", "pair": "pair", "classify": "classify", "regress": "regress"}
    signatures = {name: getattr(module, function) for name, function in names.items()}
    tf.saved_model.save(module, folder, signatures=signatures)


if __name__ == "__main__":
    _save(sys.argv[1])
