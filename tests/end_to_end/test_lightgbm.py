"""LightGBM models on a real server: every protocol, a job, and what the version tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest

from tests.calls import grpc
from tests.end_to_end import jobs
from tests.end_to_end.protocols import PROTOCOLS, AskedModel
from tests.server import Server, running_server

X = np.random.default_rng(5).normal(size=(200, 4))
LABELS = np.digitize(X[:, 0] - 2 * X[:, 1], [-1, 1])
ROWS = X[:40]
VERSION = "projects/local/models/flowers/versions/v1"


@pytest.fixture(scope="module")
def booster() -> lgb.Booster:
    parameters = {"objective": "multiclass", "num_class": 3, "verbosity": -1, "num_threads": 1}
    return lgb.train(parameters, lgb.Dataset(X, LABELS), 10)


@pytest.fixture(scope="module")
def server(booster: lgb.Booster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("lightgbm")
    (root / "model").mkdir()
    booster.save_model(root / "model" / "model.txt")
    with running_server(root / "state", "--grpc-port", "0") as server:
        server.create_model("projects/local/models/flowers")
        server.create_version(VERSION, deploymentUri=str(root / "model"))
        yield server


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_answers_as_lightgbm_does(protocol: str, server: Server, booster: lgb.Booster) -> None:
    own = booster.predict(ROWS, num_threads=1)
    with grpc.insecure_channel(server.grpc) as channel:
        model = AskedModel(server, channel, "flowers", "x", ("predictions",))
        for row, expected in zip(ROWS, own, strict=True):
            assert np.array_equal(PROTOCOLS[protocol](model, row)["predictions"], expected)


@pytest.mark.soak
def test_a_job_answers_as_lightgbm_does(server: Server, booster: lgb.Booster, tmp_path: Path) -> None:
    lines = jobs.write_lines(tmp_path / "in" / "rows.jsonl", ROWS.tolist())
    job = jobs.job("flowers", str(lines), tmp_path / "out", versionName=VERSION)
    ended = jobs.finished(server, jobs.submit(server, job, "local"))

    assert jobs.outcome(ended) == ("SUCCEEDED", 40, 0)
    assert jobs.results(tmp_path / "out") == booster.predict(ROWS, num_threads=1).tolist()


def test_what_the_version_tells(server: Server) -> None:
    schema = server.call("GET", "projects/local/models/flowers:schema").json
    (output,) = schema["signatures"]["serving_default"]["outputs"]

    assert (schema["platform"], output["shape"], output["classes"]) == ("lightgbm", [-1, 3], [0, 1, 2])
    assert schema["answer"] == server.predict(VERSION, [schema["example"]]).json["predictions"][0]


@pytest.mark.parametrize(
    ("instances", "problem"), [([[1.0, 2.0]], "the model expects 4"), ([[1.0, 2.0, 3.0, "red"]], "a string")]
)
def test_instances_that_do_not_fit(instances: list[Any], problem: str, server: Server) -> None:
    reply = server.predict(VERSION, instances)

    assert reply.status == 400
    assert problem in reply.error["message"]
