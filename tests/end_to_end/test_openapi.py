"""The document tells the truth: whatever Schemathesis makes of it, answers are as it says, none with 5xx."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.end_to_end.conftest import CLOSED, Files
from tests.server import Server, running_node, running_server, until

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "allow_header_conformance",
)
# TensorFlow Serving answers verbs that a path has not with 400, and so do its paths here.
UNLIKE_OTHERS = "^/v1/models/"
# This answer has no end.
STREAM = "/events"
ALL_BUT_ITS_PATHS = (
    f"--exclude-path-regex={UNLIKE_OTHERS}",
    f"--exclude-path={STREAM}",
    f"--checks={','.join((*CHECKS, 'unsupported_method'))}",
)
ITS_PATHS = (f"--include-path-regex={UNLIKE_OTHERS}", f"--checks={','.join(CHECKS)}")
of_paths = pytest.mark.parametrize(
    "paths", [ALL_BUT_ITS_PATHS, ITS_PATHS], ids=["others", "of-tensorflow-serving"]
)
# The phase of coverage tries each keyword of each schema: a minute for all routes.
SHORT, LONG = "--phases=examples,fuzzing", "--phases=examples,coverage,fuzzing"
# Names of what is there reach further than made-up ones; but what is deleted is only made up. That a model
# is not ready is told with 503, which is no failure.
CONFIG = dedent(
    """
    [parameters]
    "path.project" = "local"
    "path.model" = "zoo"
    "path.version" = "v1"

    [[operations]]
    include-method = "DELETE"
    parameters = { "path.model" = "gone", "path.version" = "v0" }

    [[operations]]
    include-path-regex = "/ready$"
    checks = { not_a_server_error = { enabled = false } }
    """
)


def schemathesis(url: str, folder: Path, *flags: str) -> str:
    """What it finds wrong, "" if that is nothing; always the same requests."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("schemathesis")), f"--config-file={config}"),
            *("run", f"{url}/openapi.json", "--no-color", "--seed=1"),
            *("--exclude-tag=Not offered", *flags),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[Server]:
    state_dir = tmp_path_factory.mktemp("openapi") / "state"
    with running_server(state_dir, environment={"PIP_INDEX_URL": CLOSED}) as server:
        server.create_model("projects/local/models/zoo")
        for name, kind in {"v1": "sklearn", "v2": "xgboost"}.items():
            server.create_version(
                f"projects/local/models/zoo/versions/{name}", deploymentUri=str(files.root / kind)
            )
        yield server
        assert server.stop() == 0


@pytest.fixture(scope="module")
def node(files: Files) -> Iterator[Server]:
    with running_node(files.root / "sklearn") as server:
        until(lambda: server.call("GET", "/readyz").status == 200, "it is ready")
        yield server


@of_paths
@pytest.mark.parametrize(
    "examples", [1, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_a_server_answers_as_its_document_says(
    server: Server, tmp_path: Path, examples: int, paths: tuple[str, ...]
) -> None:
    document = server.call("GET", "/openapi.json").json
    assert "/v1/projects/local/models/zoo/versions/v2:predict" in document["paths"]

    phases = SHORT if examples == 1 else LONG
    if found := schemathesis(server.url, tmp_path, phases, f"--max-examples={examples}", *paths):
        pytest.fail(found)


@of_paths
@pytest.mark.parametrize(
    "examples", [1, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_a_node_alone_answers_as_its_document_says(
    node: Server, tmp_path: Path, examples: int, paths: tuple[str, ...]
) -> None:
    # What there is for each route, one by one, is the same as the server's.
    if found := schemathesis(node.url, tmp_path, SHORT, f"--max-examples={examples}", *paths):
        pytest.fail(found)


def test_a_node_alone_tells_what_it_takes(node: Server) -> None:
    """By any name, and in its document, whose example predicts."""
    told = node.call("GET", "projects/p/models/m:schema").json
    document = node.call("GET", "/openapi.json").json
    path, post = next(
        (path, told["post"])
        for path, told in document["paths"].items()
        if "x-version" in told.get("post", {})
    )
    example = post["requestBody"]["content"]["application/json"]["example"]

    assert node.call("GET", post["x-schema"]).json == told
    assert example == {"instances": [told["example"]]}
    assert node.call("POST", path, json=example).json == {"predictions": [told["answer"]]}
    assert node.http.get(f"{node.url}/docs").headers["content-type"] == "text/html; charset=utf-8"
