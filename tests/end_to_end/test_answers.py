"""A version that is deployed answers, or says why not."""

from __future__ import annotations

from pathlib import Path

import joblib
import numpy as np
from sklearn.naive_bayes import GaussianNB

from tests.server import Server

MODEL = "projects/tests/models/answers"
X = np.random.default_rng(0).random((30, 3))


def test_what_cannot_predict_fails_and_what_is_in_doubt_warns(server: Server, tmp_path: Path) -> None:
    """In the operation, with the version, and in why."""
    estimator = GaussianNB().fit(X, np.arange(30) % 3)
    for name in ("broken", "doubtful"):
        (tmp_path / name).mkdir()
    joblib.dump(estimator, tmp_path / "doubtful" / "model.joblib")
    (tmp_path / "doubtful" / "example.json").write_text('["a"]')
    del estimator.var_
    joblib.dump(estimator, tmp_path / "broken" / "model.joblib")
    server.create_model(MODEL)

    begun = {
        name: server.begin_version(f"{MODEL}/versions/{name}", deploymentUri=str(tmp_path / name))
        for name in ("broken", "doubtful")
    }
    broken, doubtful = (server.wait(begun[name]) for name in ("broken", "doubtful"))

    assert "'GaussianNB' object has no attribute 'var_'" in broken["error"]["message"]
    version = server.call("GET", f"{MODEL}/versions/broken").json
    assert (version["state"], version["errorMessage"]) == ("FAILED", broken["error"]["message"])
    (warning,) = doubtful["metadata"]["warnings"]
    assert warning.startswith("example.json was not answered")
    assert doubtful["response"]["warnings"] == [warning]
    assert server.call("GET", f"{MODEL}/versions/doubtful").json["warnings"] == [warning]
    assert server.call("GET", f"/why/{MODEL}/versions/doubtful").json["warnings"] == [warning]
