"""Files that cannot be served: the operation says why and what to do, and the server lives on."""

from __future__ import annotations

import pickle
import re
import sys
import types
from typing import Any

import pytest

from tests.emulator import Emulator
from tests.end_to_end import models
from tests.end_to_end.conftest import ZOO, Files
from tests.server import Server

MODEL = "projects/tests/models/broken"

INVALID, MISSING = 3, 5

# What is wrong with a version, the code its operation fails with, and what the error says.
CASES: dict[str, tuple[int, str]] = {
    "truncated": (INVALID, r"model.joblib: .*cut off.*upload it again"),
    "of_another_framework": (INVALID, r"SCIKIT_LEARN.*model.bst.*XGBOOST.*leave it out"),
    "of_a_missing_class": (INVALID, r"module gone_from_here.*not installed here.*packageUris"),
    "two_files": (INVALID, r"Multiple model files are found in the model_path: model.joblib, model.bst"),
    "no_model_file": (INVALID, r"No model file was found.*notes.txt"),
    "missing_folder": (MISSING, r"no folder /no/such/folder"),
    "missing_bucket": (MISSING, r"no bucket no-such-bucket"),
    "empty_prefix": (MISSING, r"no object below gs://.*/nothing/"),
    "unknown_scheme": (INVALID, r"unknown scheme s3://.*gs://"),
    "package_that_fails_to_build": (
        INVALID,
        r"User-provided package bad-0.1.tar.gz failed to install.*broken",
    ),
    "raises_no_exception": (INVALID, r"panics.Routine.from_path failed: GeneratorExit: enough"),
    "raises_a_long_text": (INVALID, r"wordy.Routine.from_path failed: .*xxx \.\.\. \(\d+ more characters\)"),
    "package_that_fails_at_length": (INVALID, r"failed to install: .*xxx \.\.\. \(\d+ more characters\)"),
    "of_another_release": (
        INVALID,
        r"of \d+ made-up instances none was answered. AttributeError: 'Encoder' object has no attribute "
        r"'missing_'.*of the package encoders.*packageUris",
    ),
    "class_not_found": (INVALID, r"routine.Absent cannot be found: the module routine has no Absent"),
}

# A package of estimators, and the release after the one that made a pickle.
ENCODERS = """
from sklearn.base import BaseEstimator

class Encoder(BaseEstimator):
    n_features_in_ = 2

    def predict(self, X):
        return [self.missing_ for _ in X]
"""

RAISES = """
class Routine:
    def predict(self, instances, **kwargs):
        return instances

    @classmethod
    def from_path(cls, model_dir):
        raise {}
"""


@pytest.fixture(scope="module")
def failed(
    server: Server,
    zoo: Any,
    files: Files,
    emulator_server: Emulator,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[str, Any]]:
    """The operations of all these versions, done, by name."""
    root = tmp_path_factory.mktemp("broken")
    bucket = f"gs://{emulator_server.bucket('broken')}"
    for name in ("truncated", "of_a_missing_class", "two_files", "no_model_file"):
        (root / name).mkdir()
    forest = (files.root / "sklearn" / "model.joblib").read_bytes()
    booster = (files.root / "xgboost" / "model.bst").read_bytes()
    (root / "truncated" / "model.joblib").write_bytes(forest[: len(forest) // 2])
    (root / "of_a_missing_class" / "model.pkl").write_bytes(pickled_with_a_class_of("gone_from_here"))
    (root / "two_files" / "model.joblib").write_bytes(forest)
    (root / "two_files" / "model.bst").write_bytes(booster)
    (root / "no_model_file" / "notes.txt").write_text("nothing yet")
    (root / "bad-0.1.tar.gz").write_bytes(models.archive("bad", {}, setup="raise RuntimeError('broken')\n"))
    long = models.archive("long", {}, setup="raise RuntimeError('x' * 3_000_000)\n")
    (root / "long-0.1.tar.gz").write_bytes(long)
    panics = models.wheel(root, "panics", "0.1", {"panics.py": RAISES.format("GeneratorExit('enough')")})
    wordy = models.wheel(root, "wordy", "0.1", {"wordy.py": RAISES.format("RuntimeError('x' * 3_000_000)")})
    (root / "of_another_release").mkdir()
    (root / "of_another_release" / "model.pkl").write_bytes(
        pickled_with_a_class_of("encoders", ENCODERS, "Encoder")
    )
    encoders = models.wheel(root, "encoders", "0.2", {"encoders.py": ENCODERS})
    versions: dict[str, dict[str, Any]] = {
        "truncated": {"deploymentUri": str(root / "truncated")},
        "of_another_framework": {"deploymentUri": str(files.root / "xgboost"), "framework": "SCIKIT_LEARN"},
        "of_a_missing_class": {"deploymentUri": str(root / "of_a_missing_class")},
        "two_files": {"deploymentUri": str(root / "two_files")},
        "no_model_file": {"deploymentUri": str(root / "no_model_file")},
        "missing_folder": {"deploymentUri": "/no/such/folder"},
        "missing_bucket": {"deploymentUri": "gs://no-such-bucket/model"},
        "empty_prefix": {"deploymentUri": f"{bucket}/nothing"},
        "unknown_scheme": {"deploymentUri": "s3://bucket/model"},
        "package_that_fails_to_build": {
            "predictionClass": "bad.Routine",
            "packageUris": [str(root / "bad-0.1.tar.gz")],
        },
        "raises_no_exception": {"predictionClass": "panics.Routine", "packageUris": [str(panics)]},
        "raises_a_long_text": {"predictionClass": "wordy.Routine", "packageUris": [str(wordy)]},
        "package_that_fails_at_length": {
            "predictionClass": "long.Routine",
            "packageUris": [str(root / "long-0.1.tar.gz")],
        },
        "of_another_release": {
            "deploymentUri": str(root / "of_another_release"),
            "packageUris": [str(encoders)],
        },
        "class_not_found": {
            "predictionClass": "routine.Absent",
            "packageUris": [str(files.root / "routine-0.1.tar.gz")],
        },
    }
    assert versions.keys() == CASES.keys()
    server.create_model(MODEL)
    begun = {
        name: server.begin_version(f"{MODEL}/versions/{name}", **version)
        for name, version in versions.items()
    }
    return {name: server.wait(operation) for name, operation in begun.items()}


def pickled_with_a_class_of(module_name: str, code: str = models.STEP, name: str = "Doubler") -> bytes:
    """A pickle of an estimator whose class is in a module that is nowhere to be found here."""
    module = types.ModuleType(module_name)
    exec(code, module.__dict__)
    sys.modules[module_name] = module
    try:
        return pickle.dumps(getattr(module, name)())
    finally:
        del sys.modules[module_name]


@pytest.mark.parametrize("name", CASES)
def test_a_version_that_cannot_be_served(
    server: Server, failed: dict[str, dict[str, Any]], name: str
) -> None:
    """The operation and the version tell the reason; no process and no target are left of it."""
    code, says = CASES[name]
    operation = failed[name]

    version = server.call("GET", f"{MODEL}/versions/{name}").json
    message = operation["error"]["message"]
    assert operation["error"]["code"] == code
    assert "response" not in operation
    assert re.fullmatch('Create Version failed. Bad model detected with error:  ".*"', message, re.DOTALL)
    assert re.search(says, message, re.DOTALL), message
    assert "Traceback" not in message
    assert len(message) < 11_000
    assert (version["state"], version["errorMessage"]) == ("FAILED", message)
    refused = server.predict(f"{MODEL}/versions/{name}", [[1]])
    assert (refused.status, refused.error["status"]) == (400, "FAILED_PRECONDITION")
    assert server.nodes(f"{MODEL}/versions/{name}") == []


def test_others_are_served_as_before(server: Server, failed: dict[str, dict[str, Any]]) -> None:
    """A model without a READY version has no default; the next good version would become it."""
    assert "defaultVersion" not in server.call("GET", MODEL).json
    assert server.predict(MODEL, [[1]]).error["status"] == "FAILED_PRECONDITION"
    assert server.predict(ZOO, models.data()[0][:1].tolist()).status == 200


def test_a_failed_version_can_be_deleted_and_made_again(
    server: Server, files: Files, failed: dict[str, dict[str, Any]]
) -> None:
    """Its name is free once it is gone."""
    name = f"{MODEL}/versions/missing_folder"
    server.delete(name)

    version = server.create_version(name, deploymentUri=str(files.root / "xgboost"))

    assert version["state"] == "READY"
    assert version["isDefault"]
