"""One server for all tests that do not end it, with a model of every kind deployed by Google's client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import Emulator
from tests.end_to_end import models
from tests.server import Server, running_server, until

# No package index is in reach.
CLOSED = "http://127.0.0.1:1/simple"
MAX_BODY = 1 << 20

ZOO = "projects/tests/models/zoo"

# Every field of a version that has no influence on how it is served.
DECORATION: dict[str, Any] = {
    "description": "two times",
    "labels": {"team": "ads"},
    "runtimeVersion": "2.11",
    "pythonVersion": "3.7",
    "machineType": "n1-standard-4",
    "acceleratorConfig": {"count": "1", "type": "NVIDIA_TESLA_T4"},
    "explanationConfig": {"sampledShapleyAttribution": {"numPaths": 10}},
    "serviceAccount": "predictor@tests.iam.gserviceaccount.com",
    "autoScaling": {"minNodes": 1, "maxNodes": 2, "metrics": [{"name": "CPU_USAGE", "target": 60}]},
}


@dataclass(frozen=True)
class Files:
    """What was trained: a folder of files, and the estimators that say what the answers must be."""

    root: Path
    sklearn: Any
    xgboost: Any
    pipeline: Any


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of a model of every kind but TensorFlow's, whose import takes seconds."""
    root = tmp_path_factory.mktemp("models")
    files = Files(
        root,
        models.write_sklearn(root / "sklearn"),
        models.write_xgboost(root / "xgboost"),
        models.write_pipeline(root / "pipeline"),
    )
    (root / "steps-0.1.tar.gz").write_bytes(models.archive("steps", {"user_steps": models.STEP}))
    (root / "routine-0.1.tar.gz").write_bytes(models.archive("routine", {"routine": models.ROUTINE}))
    return files


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a SavedModel."""
    folder = tmp_path_factory.mktemp("saved") / "tensorflow"
    models.write_tensorflow(folder)
    return folder


@pytest.fixture(scope="session")
def environment(emulator_server: Emulator) -> dict[str, str]:
    """What the servers of these tests find in their environment."""
    return {"STORAGE_EMULATOR_HOST": emulator_server.url, "PIP_INDEX_URL": CLOSED}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Server]:
    """A server that lives as long as the tests; they must leave it alive."""
    state_dir = tmp_path_factory.mktemp("server") / "state"
    with running_server(
        state_dir, "--max-body-bytes", str(MAX_BODY), "--deployments", "3", environment=environment
    ) as server:
        yield server
        assert server.stop() == 0


@pytest.fixture(scope="module")
def ml(server: Server) -> Iterator[Any]:
    """Google's client. A module's own: it does not get over a connection that was idle for too long."""
    with google_client(server) as client:
        yield client


@contextmanager
def google_client(server: Server) -> Iterator[Any]:
    """Google's client, told where our server is and nothing else."""
    from google.auth.credentials import AnonymousCredentials
    from googleapiclient.discovery import build

    with build(
        "ml",
        "v1",
        client_options={"api_endpoint": server.url},
        static_discovery=True,
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
    ) as client:
        yield client


@pytest.fixture(scope="session")
def zoo(
    server: Server, files: Files, saved_model: Path, emulator_server: Emulator
) -> dict[str, dict[str, Any]]:
    """A version of every kind below the model `zoo`: the finished operations that created them, by kind."""
    with google_client(server) as ml:
        return fill_zoo(ml, files, saved_model, emulator_server)


def fill_zoo(
    ml: Any, files: Files, saved_model: Path, emulator_server: Emulator
) -> dict[str, dict[str, Any]]:
    """Make the model and its versions."""
    bucket = f"gs://{emulator_server.bucket('zoo')}"
    emulator_server.upload(files.root / "sklearn", f"{bucket}/forest")
    emulator_server.put(f"{bucket}/routine-0.1.tar.gz", (files.root / "routine-0.1.tar.gz").read_bytes())
    emulator_server.put(f"{bucket}/routine/factor.txt", b"10")
    body = {"name": "zoo", "description": "one of each", "labels": {"kind": "tests"}}
    ml.projects().models().create(parent="projects/tests", body=body).execute()
    # The first one alone: it becomes the default.
    operations = {"sklearn": create(ml, "sklearn", {"deploymentUri": f"{bucket}/forest/"})}
    wait(ml, operations["sklearn"])
    others: dict[str, dict[str, Any]] = {
        "xgboost": {**DECORATION, "deploymentUri": str(files.root / "xgboost"), "framework": "XGBOOST"},
        "tensorflow": {"deploymentUri": f"file://{saved_model}", "runtimeVersion": "2.11"},
        "routine": {
            "deploymentUri": f"{bucket}/routine",
            "predictionClass": "routine.Routine",
            "framework": "TENSORFLOW",  # as a notebook of Google's sends it
            "packageUris": [f"{bucket}/routine-0.1.tar.gz"],
            "serviceAccount": "routine@tests.iam.gserviceaccount.com",
        },
        "pipeline": {
            "deploymentUri": str(files.root / "pipeline"),
            "framework": "SCIKIT_LEARN",
            "packageUris": [str(files.root / "steps-0.1.tar.gz")],
        },
    }
    operations |= {kind: create(ml, kind, version) for kind, version in others.items()}
    return {kind: wait(ml, operation) for kind, operation in operations.items()}


def create(ml: Any, name: str, version: dict[str, Any]) -> dict[str, Any]:
    """Begin to create a version of the zoo."""
    request = ml.projects().models().versions().create(parent=ZOO, body={"name": name, **version})
    operation: dict[str, Any] = request.execute()
    return operation


def wait(ml: Any, operation: dict[str, Any]) -> dict[str, Any]:
    """The operation once it is done, asked for as clients do."""
    request = ml.projects().operations().get(name=operation["name"])

    def done() -> dict[str, Any] | None:
        found: dict[str, Any] = request.execute()
        return found if found.get("done", False) else None

    return until(done, f"{operation['name']} is done")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let pass what the libraries of the tests, not ours, warn of."""
    # google-api-core wishes for a package that only gRPC clients use.
    item.add_marker(pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning"))
