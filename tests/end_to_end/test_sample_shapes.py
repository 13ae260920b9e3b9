"""Models and packages of the forms that Google's samples have.

`tests/compat/test_samples.py` runs the samples themselves.
"""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.pipeline import make_pipeline

from tests.server import Server, running_server
from tests.serving.artifacts.test_packages import sdist

PROJECT = "projects/samples"
ROWS = [[6.7, 3.1, 4.7, 1.5], [4.6, 3.1, 1.5, 0.2]]
PEOPLE: list[list[Any]] = [
    [39, " State-gov", 13],
    [50, "Private ", 9],
    [28, "Private", 13],
    [61, "State-gov", 7],
] * 5

SCALER = dedent(
    """
    import numpy as np

    class Scaler:
        means = None

        def preprocess(self, data):
            if self.means is None:
                self.means = np.mean(data, axis=0)
            return data - self.means
    """
)
ROUTINE = dedent(
    """
    import os, pickle
    import numpy as np
    from sklearn.datasets import load_iris
    from sklearn.externals import joblib

    class Predictor(object):
        def __init__(self, model, preprocessor):
            self._model, self._preprocessor = model, preprocessor
            self._names = load_iris().target_names

        def predict(self, instances, **kwargs):
            inputs = self._preprocessor.preprocess(np.asarray(instances))
            if kwargs.get("probabilities"):
                return self._model.predict_proba(inputs).tolist()
            return [self._names[number] for number in self._model.predict(inputs)]

        @classmethod
        def from_path(cls, model_dir):
            with open(os.path.join(model_dir, "preprocessor.pkl"), "rb") as file:
                return cls(joblib.load(os.path.join(model_dir, "model.joblib")), pickle.load(file))
    """
)
STEPS = dedent(
    """
    import numpy as np
    from sklearn.base import BaseEstimator, TransformerMixin

    class Codes(BaseEstimator, TransformerMixin):
        def fit(self, X, y=None):
            self.values = sorted({row[1].strip() for row in X})
            return self

        def transform(self, X):
            return np.array([[float(row[0]), self.values.index(row[1].strip()), float(row[2])] for row in X])
    """
)


@dataclass(frozen=True)
class World:
    """A server, and what the models of its versions are."""

    server: Server
    scaler: Any
    forest: Any
    pipeline: Any


def module(name: str, code: str) -> Any:
    """A module of a user, importable by pickles."""
    made = types.ModuleType(name)
    sys.modules[name] = made
    exec(code, made.__dict__)
    return made


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A routine whose modules are `scripts` of its archive, and a pipeline with steps of a package."""
    root = tmp_path_factory.mktemp("shapes")
    iris = load_iris()
    scaler = module("preprocess", SCALER).Scaler()
    forest = RandomForestClassifier(10, random_state=0).fit(scaler.preprocess(iris.data), iris.target)
    (root / "routine").mkdir()
    joblib.dump(forest, root / "routine" / "model.joblib")
    (root / "routine" / "preprocessor.pkl").write_bytes(pickle.dumps(scaler))
    scripts = {"predictor.py": ROUTINE, "preprocess.py": SCALER}
    routine = sdist(root, "my_custom_code", "scripts=['predictor.py', 'preprocess.py']", scripts)

    module("census_package", "__path__ = []")
    steps = module("census_package.my_pipeline", STEPS)
    target = [row[0] > 40 for row in PEOPLE]
    pipeline = make_pipeline(steps.Codes(), GradientBoostingClassifier(n_estimators=5)).fit(PEOPLE, target)
    (root / "pipeline").mkdir()
    joblib.dump(pipeline, root / "pipeline" / "model.joblib")
    files = {"census_package/__init__.py": "", "census_package/my_pipeline.py": STEPS}
    package = sdist(root, "census_package", "packages=['census_package']", files, version="1.0")
    with running_server(root / "state", "--deployments", "2") as server:
        begun = []
        for name, folder, archive, more in (
            ("IrisPredictor", "routine", routine, {"predictionClass": "predictor.Predictor"}),
            ("CensusPredictor", "pipeline", package, {"framework": "SCIKIT_LEARN"}),
        ):
            server.create_model(f"{PROJECT}/models/{name}", regions=["us-central1"])
            version = f"{PROJECT}/models/{name}/versions/v1"
            uris = {"deploymentUri": str(root / folder), "packageUris": [str(archive)]}
            given = {"runtimeVersion": "1.13", "pythonVersion": "3.5", **uris, **more}
            begun.append(server.begin_version(version, **given))
        for operation in begun:
            ended = server.wait(operation)
            assert "error" not in ended, ended
        yield World(server, scaler, forest, pipeline)


def test_a_routine_of_scripts(world: World) -> None:
    """With joblib from where scikit-learn had it, and with a field of the request as argument."""
    inputs = world.scaler.preprocess(np.asarray(ROWS))
    names = load_iris().target_names

    assert ask(world, "IrisPredictor", ROWS) == [names[n] for n in world.forest.predict(inputs)]
    probabilities = ask(world, "IrisPredictor", ROWS, probabilities=True)
    assert probabilities == world.forest.predict_proba(inputs).tolist()


def test_a_pipeline_with_steps_of_a_package(world: World) -> None:
    """Rows have values of several types."""
    assert ask(world, "CensusPredictor", PEOPLE) == world.pipeline.predict(PEOPLE).tolist()


def ask(world: World, model: str, instances: Any, **fields: Any) -> Any:
    """The predictions."""
    body = {"instances": instances, **fields}
    reply = world.server.call("POST", f"{PROJECT}/models/{model}/versions/v1:predict", json=body)
    assert reply.status == 200, reply
    return reply.json["predictions"]
