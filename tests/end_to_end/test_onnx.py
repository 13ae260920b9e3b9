"""ONNX models on a real server: every protocol, a job, and what the version tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression

from tests.calls import grpc
from tests.end_to_end import jobs
from tests.end_to_end.protocols import PROTOCOLS, AskedModel
from tests.server import Server, running_server

X = np.random.default_rng(5).normal(size=(40, 4)).astype(np.float32)
LABELS = np.digitize(X[:, 0] - 2 * X[:, 1], [-1, 1])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server with a classifier, and the folder of that."""
    root = tmp_path_factory.mktemp("onnx")
    (root / "model").mkdir()
    model = to_onnx(LogisticRegression().fit(X, LABELS), X[:1], target_opset=17)
    (root / "model" / "model.onnx").write_bytes(model.SerializeToString())
    with running_server(root / "state", "--grpc-port", "0") as server:
        server.create_model("projects/local/models/flowers")
        server.create_version("projects/local/models/flowers/versions/v1", deploymentUri=str(root / "model"))
        yield server, root


def compute_alone(folder: Path) -> list[dict[str, Any]]:
    """What onnxruntime itself answers to each row, scores in the order of their labels."""
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    answers = []
    for row in X:
        label, scores = session.run(None, {"X": row[None]})
        answers.append({"output_label": label[0], "output_probability": list(scores[0].values())})
    return answers


def assert_equal(answer: Any, own: dict[str, Any]) -> None:
    assert int(answer["output_label"]) == own["output_label"]
    assert np.array_equal(
        np.asarray(answer["output_probability"], np.float32), np.float32(own["output_probability"])
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_answers_as_onnxruntime_does(protocol: str, world: tuple[Server, Path]) -> None:
    server, root = world
    with grpc.insecure_channel(server.grpc) as channel:
        model = AskedModel(server, channel, "flowers", "X", ("output_label", "output_probability"))
        for row, own in zip(X, compute_alone(root / "model"), strict=True):
            assert_equal(PROTOCOLS[protocol](model, row), own)


@pytest.mark.soak
def test_a_job_answers_as_onnxruntime_does(world: tuple[Server, Path], tmp_path: Path) -> None:
    server, root = world
    lines = jobs.write_lines(tmp_path / "in" / "rows.jsonl", X.tolist())
    version = {"versionName": "projects/local/models/flowers/versions/v1", "batchSize": 1}
    ended = jobs.finished(
        server, jobs.submit(server, jobs.job("flowers", str(lines), tmp_path / "out", **version), "local")
    )

    assert jobs.outcome(ended) == ("SUCCEEDED", 40, 0)
    for answer, own in zip(jobs.results(tmp_path / "out"), compute_alone(root / "model"), strict=True):
        assert_equal(answer, own)


def test_what_the_version_tells(world: tuple[Server, Path]) -> None:
    server, _ = world
    schema = server.call("GET", "projects/local/models/flowers:schema").json

    assert schema["platform"] == "onnxruntime_onnx"
    assert schema["signatures"]["serving_default"]["outputs"][1]["classes"] == [0, 1, 2]
    assert server.call("GET", "/v2/models/flowers").json["outputs"] == [
        {"name": "output_label", "datatype": "INT64", "shape": [-1]},
        {"name": "output_probability", "datatype": "FP32", "shape": [-1, 3]},
    ]
    assert "output_probability" in json.dumps(server.call("GET", "/openapi.json").json)


@pytest.mark.parametrize(
    ("instances", "problem"),
    [([[1.0, 2.0]], "expects shape [4]"), ([[1.0, 2.0, 3.0, "red"]], "takes numbers")],
)
def test_instances_that_do_not_fit(instances: list[Any], problem: str, world: tuple[Server, Path]) -> None:
    server, _ = world
    reply = server.predict("projects/local/models/flowers", instances)

    assert reply.status == 400
    assert problem in reply.error["message"]
