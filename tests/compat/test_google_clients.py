"""Google's own clients, of the languages there are here, against a server: each does what its users do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import pytest
from sklearn.linear_model import LinearRegression

from tests.compat.environments import ROOT, Environment, Unavailable, python_of
from tests.server import Server, running_server

HERE = Path(__file__).parent
WANTED = [1.0, 1.9999999999999996]
_SECONDS = 900

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2 * _SECONDS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    joblib.dump(LinearRegression().fit([[0.0, 0], [1, 1], [2, 3]], [0, 1, 2]), folder / "model.joblib")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server") / "state") as server:
        yield server


def run(*command: object, folder: Path | None = None, **environment: str) -> str:
    """What a program says; the test is skipped where there is none."""
    words = [str(word) for word in command]
    if shutil.which(words[0]) is None:
        pytest.skip(f"there is no {words[0]} here")
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def install(name: str, done: str, *command: object, **environment: str) -> Path:
    """A folder with what a package manager has put there, made once; skipped where it cannot be."""
    folder = ROOT / name
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / done).exists():
        try:
            run(*command, folder=folder, **environment)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"{command[0]} has not got what it takes: {str(error)[-500:]}")
    return folder


@pytest.mark.parametrize(
    ("python", "version"), [("3.7", "1.7.12"), ("3.8", "1.12.11"), ("3.8", "2.0.2"), ("3.11", "2.160.0")]
)
def test_python(server: Server, model: Path, python: str, version: str) -> None:
    """Clients of 1.x, which have no document of their own, and of 2.x, built from the server's."""
    try:
        interpreter = python_of(Environment(python, (f"google-api-python-client=={version}",)))
    except Unavailable as error:
        pytest.skip(str(error))

    found: dict[str, Any] = json.loads(run(interpreter, HERE / "google_client.py", server.url, model))
    server.delete("projects/old/models/m/versions/v")
    server.delete("projects/old/models/m")

    assert found == {
        "error": None,
        "description": {"description": "changed"},
        "predictions": WANTED,
        "listed": 1,
        "policy": ["etag", "version"],
        "batch": {"1": "projects/old/models/m", "2": 404},
        "not offered": 404,
    }


def test_java(server: Server, model: Path) -> None:
    """It packs what it sends, overrides verbs, and puts URLs in full into batches."""
    pom = """<project><modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId>
      <version>1</version><dependencies><dependency><groupId>com.google.apis</groupId>
      <artifactId>google-api-services-ml</artifactId><version>v1-rev20210212-1.31.0</version></dependency>
      </dependencies></project>"""
    (ROOT / "java").mkdir(parents=True, exist_ok=True)
    (ROOT / "java" / "pom.xml").write_text(pom)
    folder = install("java", "lib", "mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib")
    run("javac", "-cp", f"{folder}/lib/*", "-d", folder, HERE / "GoogleClient.java")

    said = run("java", "-cp", f"{folder}/lib/*:{folder}", "GoogleClient", server.url, model)

    assert said.splitlines() == [
        "error null",
        'description {"description":"changed"}',
        f"predictions {WANTED}",
        "listed 1",
        "policy [etag, version]",
        "batch projects/java/models/m",
        "batch 404",
        "batch projects/java/models/n",
        "not offered 404",
    ]


def test_go(server: Server, model: Path) -> None:
    """It takes the server as endpoint."""
    (ROOT / "go").mkdir(parents=True, exist_ok=True)
    (ROOT / "go" / "go.mod").write_text("module t\n\ngo 1.21\n")
    shutil.copy(HERE / "google_client.go", ROOT / "go" / "main.go")
    flags = {"GOFLAGS": "-mod=mod"}
    folder = install("go", "go.sum", "go", "get", "google.golang.org/api/ml/v1", **flags)
    run("go", "build", "-o", "client", ".", folder=folder, **flags)

    said = run(folder / "client", server.url, model)

    assert said.splitlines() == ["failed false", "description changed ", "listed 1", "not offered 404"]


def test_node(server: Server, model: Path) -> None:
    """It has the methods built in, and builds them from the server's document too."""
    folder = install("node", "node_modules", "npm", "install", "--no-audit", "--no-fund", "googleapis")

    found: dict[str, Any] = json.loads(
        run("node", HERE / "google_client.mjs", server.url, model, folder=folder)
    )

    assert found == {
        "error": None,
        "description": {"description": "changed"},
        "predictions": WANTED,
        "policy": ["etag", "version"],
        "discovered": "projects/node/models/m",
        "not offered": 404,
    }
