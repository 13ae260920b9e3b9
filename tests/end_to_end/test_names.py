"""A model whose names are those of other servers, on every plane of a real one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.calls import call, grpc, infer_request, predict_request
from tests.end_to_end.conftest import Files
from tests.server import Server, running_server, until

PROJECT = "home"
MODEL, VERSION = "sklearn-iris.v2", "v-1.0.3"
FULL = f"projects/{PROJECT}/models/{MODEL}/versions/{VERSION}"
ROW = [5.1, 3.5, 1.4, 0.2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[Server]:
    """One with the model, which logs its requests."""
    flags = ("--default-project", PROJECT, "--grpc-port", "0")
    with running_server(tmp_path_factory.mktemp("names") / "state", *flags) as server:
        server.create_model(f"projects/{PROJECT}/models/{MODEL}", onlinePredictionLogging=True)
        server.create_version(FULL, deploymentUri=str(files.root / "sklearn"))
        yield server
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"/v1/{FULL}:predict", {"instances": [ROW]}),
        (f"/v1/projects/{PROJECT}/models/{MODEL}:predict", {"instances": [ROW]}),
        (f"/v1/models/{MODEL}:predict", {"instances": [ROW]}),
        (f"/v1/models/{MODEL}/versions/{VERSION}:predict", {"instances": [ROW]}),
        (f"/v1/models/{MODEL}/labels/{VERSION}:predict", {"instances": [ROW]}),
        (f"/v2/models/{MODEL}/infer", None),
        (f"/v2/models/{MODEL}/versions/{VERSION}/infer", None),
        (f"/v2/models/projects/{PROJECT}/models/{MODEL}/versions/{VERSION}/infer", None),
        (f"/v2/models/projects%2F{PROJECT}%2Fmodels%2F{MODEL}/infer", None),
    ],
)
def test_predictions_over_http(server: Server, path: str, body: dict[str, object] | None) -> None:
    """In every protocol, of the model and of the version, whole or percent-encoded."""
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP64", "data": ROW}
    for address in (path, path.replace(MODEL, MODEL.replace(".", "%2E").replace("-", "%2D"))):
        reply = server.call("POST", address, json=body or {"inputs": [tensor]})
        assert reply.status == 200, reply.json


@pytest.mark.parametrize(
    "path",
    [
        f"/v1/{FULL}",
        f"/v1/{FULL}:schema",
        f"/v1/projects/{PROJECT}/models/{MODEL}:getIamPolicy",
        f"/v1/models/{MODEL}/versions/{VERSION}",
        f"/v1/models/{MODEL}/labels/{VERSION}/metadata",
        f"/v2/models/{MODEL}",
        f"/v2/models/{MODEL}/versions/{VERSION}/ready",
        f"/why/{FULL}",
        f"/acceleration/{FULL}",
    ],
)
def test_what_is_told_of_it(server: Server, path: str) -> None:
    """By each of its routes."""
    reply = server.call("GET", path)
    assert reply.status == 200, reply.json


def test_predictions_over_grpc(server: Server) -> None:
    """In both protocols."""
    infer, predict = infer_request(MODEL, ROW, version=VERSION), predict_request(MODEL, ROW)
    infer.inputs[0].shape[:] = [1, 4]
    predict.inputs["x"].tensor_shape.dim.insert(0, predict.inputs["x"].tensor_shape.dim.add(size=1))
    del predict.inputs["x"].tensor_shape.dim[2:]
    with grpc.insecure_channel(server.grpc) as channel:
        told = call(
            channel, "inference.GRPCInferenceService/ModelInfer", "inference.ModelInferResponse", infer
        )
        assert (told.code, told.message.model_version) == ("OK", VERSION), told.text
        told = call(
            channel,
            "tensorflow.serving.PredictionService/Predict",
            "tensorflow.serving.PredictResponse",
            predict,
        )
        assert (told.code, told.message.model_spec.name) == ("OK", MODEL), told.text


def pilotlight(server: Server, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from serving.cli import main; main()", *words],
        env={"PILOTLIGHT_SERVER": server.url, "PILOTLIGHT_PROJECT": PROJECT, "PATH": "/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_logs_and_metrics(server: Server, tmp_path: Path) -> None:
    """What it has done is found by its names: in its log, in the metrics, and in the audit log."""
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps(ROW))
    assert pilotlight(
        server, "predict", "--model", MODEL, "--version", VERSION, "--json-instances", str(rows)
    ).strip()
    assert VERSION in pilotlight(server, "versions", "list", "--model", MODEL, "--filter", f"name:{VERSION}")
    until(lambda: pilotlight(server, "logs", f"{MODEL}/{VERSION}", "--kind", "access"), "it is logged")
    assert (server.state_dir / "logs" / "access" / PROJECT / MODEL / VERSION).is_dir()
    metrics = server.http.get(f"{server.url}/metrics").text
    labels = f'code="200",model="{MODEL}",project="{PROJECT}",version="{VERSION}"'
    assert f"pilotlight_predictions_total{{{labels}}}" in metrics
    audited = pilotlight(
        server, "audit", "--resource", f"models/{MODEL}", "--state-dir", str(server.state_dir)
    )
    assert "CreateVersion" in audited
    pilotlight(server, "versions", "update", VERSION, "--model", MODEL, "--update-labels", "canary=on")
    assert server.call("GET", f"/v1/models/{MODEL}/labels/canary").status == 200


@pytest.mark.parametrize("name", ["..", ".", "a.", "a/b", "../a", "1a", "a:predict"])
def test_names_that_lead_elsewhere_are_refused(server: Server, name: str) -> None:
    """Neither a model nor a version is called so, and nothing is made of it on disk."""
    models = f"projects/{PROJECT}/models"
    for parent, more in ((models, {}), (f"{models}/{MODEL}/versions", {"deploymentUri": "/x"})):
        reply = server.call("POST", parent, json={"name": name, **more})
        assert reply.status == 400
        assert "must start with a letter" in reply.error["message"]
