"""A version that is deployed answers, or says why not."""

from __future__ import annotations

import json
from pathlib import Path

import joblib
import numpy as np
from sklearn.naive_bayes import GaussianNB

from tests.bounds import JOB_SECONDS
from tests.server import Server, until

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


def test_a_version_answers_by_another_method_online_and_in_batch(server: Server, tmp_path: Path) -> None:
    """As its predictionMethod says, or the request."""
    name, estimator = f"{MODEL}_by_method", GaussianNB().fit(X, np.arange(30) % 3)
    joblib.dump(estimator, tmp_path / "model.joblib")
    rows, shares = X[:3].tolist(), estimator.predict_proba(X[:3]).tolist()
    server.create_model(name)
    version = server.create_version(
        f"{name}/versions/v1", deploymentUri=str(tmp_path), predictionMethod="predict_proba"
    )
    assert version["predictionMethod"] == "predict_proba"

    assert server.predict(name, rows).json["predictions"] == shares
    reply = server.call("POST", f"{name}:predict", json={"instances": rows, "method": "predict"})
    assert reply.json["predictions"] == estimator.predict(X[:3]).tolist()
    reply = server.call("POST", f"{name}:predict", json={"instances": rows, "method": "transform"})
    assert reply.status == 400
    assert "it has predict, predict_proba, predict_log_proba" in reply.error["message"]
    schema = server.call("GET", f"{name}:schema").json
    assert schema["method"] == "predict_proba"
    assert [one["name"] for one in schema["methods"]][:1] == ["predict"]

    lines = tmp_path / "in.jsonl"
    lines.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = {
        "modelName": name,
        "dataFormat": "JSON",
        "inputPaths": [str(lines)],
        "outputPath": str(tmp_path / "out"),
        "region": "us-central1",
    }
    body = {"jobId": "by_method", "predictionInput": given}
    assert server.call("POST", "projects/tests/jobs", json=body).status == 200

    def ended() -> bool:
        state = server.call("GET", "projects/tests/jobs/by_method").json["state"]
        assert state not in ("FAILED", "CANCELLED")
        return bool(state == "SUCCEEDED")

    until(ended, "the job", seconds=JOB_SECONDS)
    (file,) = (tmp_path / "out").glob("prediction.results-*")
    assert [json.loads(line) for line in file.read_text().splitlines()] == shares
