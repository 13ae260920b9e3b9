"""The gateway is there before anybody waits for it, because it imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bounds import HANG_SECONDS
from tests.end_to_end import models
from tests.server import running_server, until

# What belongs to nodes, to the preparing process or to the writer of logs.
HEAVY = (
    "tensorflow", "sklearn", "xgboost", "pandas", "joblib", "scipy", "numpy", "simdjson", "threadpoolctl",
    "google.cloud.storage", "google.auth", "serving.node", "serving.runtimes", "httpx", "yaml", "apache_beam",
    "grpc", "google.protobuf", "serving.gateway.console", "jinja2", "psycopg", "serving.gateway.state.shared",
)  # fmt: skip

# A whole life in one process: start, answer requests of every kind, stop. The last request is the first visit
# of the console, which loads what it needs then.
LIFE = """
import asyncio, json, sys
from pathlib import Path
import serving.gateway.main
from serving.config import ServeConfig
from serving.gateway.app import Gateway
from serving.gateway.state.store import SqliteStore
from tests.http_requests import through

async def call(app, method, path, body):
    sent, waiting = [], [{"type": "http.request", "body": body, "more_body": False}]
    async def receive():
        return waiting.pop()
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "http_version": "1.1", "scheme": "http", "server": ("x", 80), "root_path": "",
             "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [],
             "client": None}
    await app(scope, receive, send)
    return sent[0]["status"]

async def main():
    folder = Path(sys.argv[1])
    gateway = Gateway(ServeConfig(state_dir=folder), SqliteStore(folder / "state.db"), {})
    app = through(gateway, gateway.prediction_handler)
    inbox, outbox = asyncio.Queue(), asyncio.Queue()
    life = asyncio.create_task(app({"type": "lifespan", "state": {}}, inbox.get, outbox.put))
    await inbox.put({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    statuses = [
        await call(app, "POST", "/v1/projects/p/models", b'{"name": "m"}'),
        await call(app, "GET", "/v1/projects/p/models", b""),
        await call(app, "POST", "/v1/projects/p/models/m:predict", b'{"instances": [1]}'),
        await call(app, "POST", "/v1/models/m:classify", b'{"examples": [{}]}'),
        await call(app, "POST", "/v2/models/m/infer", b'{"inputs": []}'),
        await call(app, "GET", "/v2", b""),
        await call(app, "DELETE", "/v1/projects/p/models/m", b""),
    ]
    loaded = sorted(sys.modules)
    assert await call(app, "GET", "/console/", b"") == 200
    assert "serving.gateway.console.app" in sys.modules
    await inbox.put({"type": "lifespan.shutdown"})
    assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
    await life
    return statuses, loaded

print(json.dumps(asyncio.run(main())))
"""

_IMPORT_LIBRARIES = "import sqlalchemy, starlette.applications, uvicorn.server"


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], set[str]]:
    """The statuses of the requests and the modules of a gateway's process."""
    folder = tmp_path_factory.mktemp("life")
    command = [sys.executable, "-c", LIFE, str(folder)]
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=HANG_SECONDS)
    statuses, modules = json.loads(done.stdout)
    return statuses, set(modules)


@pytest.mark.parametrize("module", HEAVY)
def test_the_gateway_does_without(life: tuple[list[int], set[str]], module: str) -> None:
    """Neither importing it nor answering requests loads this."""
    statuses, modules = life

    assert statuses == [200, 200, 400, 404, 404, 200, 200]
    loaded = {name for name in modules if name == module or name.startswith(f"{module}.")}
    assert not {name for name in loaded if not is_framework_record(name)}


def is_framework_record(module: str) -> bool:
    """Whether it is a framework's record, which loads nothing, or a package around one."""
    parts = module.split(".")
    return parts[:2] == ["serving", "runtimes"] and (
        len(parts) == 2 or (parts[2].endswith("_runtime") and parts[3:] in ([], ["framework"]))
    )


@pytest.mark.alone
def test_it_answers_soon_after_the_import_of_its_libraries(tmp_path: Path) -> None:
    """The first answer of a new process, beside a process that only imports what a server is made of.

    By turns, and of all together, three at least: a machine may change its speed from one to the next.
    """
    servers, imports = [], []
    for attempt in range(12):
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", _IMPORT_LIBRARIES], check=True, timeout=HANG_SECONDS)
        imports.append(time.monotonic() - begin)
        begin = time.monotonic()
        with running_server(tmp_path / f"state{attempt}") as server:
            assert server.call("GET", "projects/p/models").status == 200
            servers.append(time.monotonic() - begin)
        if attempt >= 2 and sum(servers) <= 2.2 * sum(imports):
            return
    raise AssertionError(f"servers took {servers} s, the imports {imports} s")


def test_it_is_ready_once_pilots_are_lit(tmp_path: Path) -> None:
    """Those of versions from before; requests that come earlier are answered all the same."""
    name = "projects/p/models/m/versions/v"
    with running_server(tmp_path / "state") as server:
        assert server.call("GET", "/readyz").status == 200
        server.create_model("projects/p/models/m")
        server.create_version(name, **models.routine(tmp_path))
        assert server.stop() == 0

    with running_server(tmp_path / "state") as server:
        starting = server.call("GET", "/readyz")
        assert starting.status == 503
        assert "its pilots import the frameworks" in starting.error["message"]
        assert server.call("GET", "/v2/health/ready").status == 503
        assert server.predict(name, [1]).status == 200
        until(lambda: server.call("GET", "/readyz").status == 200, "it is ready")
        assert [pilot["state"] for pilot in server.get_status()["pilots"]] == ["lit"]


def test_nothing_temporary_is_left(tmp_path: Path) -> None:
    """Of processes that were killed before the server started, and while it ran."""
    temporary = tmp_path / "tmp"
    (temporary / "pilotlight-scratch-before").mkdir(parents=True)
    with running_server(tmp_path / "state", environment={"TMPDIR": str(temporary)}) as server:
        assert server.call("GET", "projects/p/models").status == 200
        assert not (temporary / "pilotlight-scratch-before").exists()
        (temporary / "pilotlight-scratch-meanwhile").mkdir()
        assert server.stop() == 0
    assert [entry.name for entry in temporary.iterdir()] == []
