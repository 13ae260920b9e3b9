"""Many versions that are deployed and sleep, and what they cost the server's own process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autoscaler import machine
from serving.gateway.state.records import DeploymentInfo, ModelRecord, Record, VersionRecord
from serving.gateway.state.store import SqliteStore
from serving.names import ModelName, VersionName
from serving.resources import Model, Version, VersionState
from tests.server import Server, running_server, until

MODELS, VERSIONS = 100, 10


def deploy(state_dir: Path, models: int) -> None:
    """A state folder whose models have ten READY versions each, as if they had been created."""
    changes: dict[tuple[str, str], Record | None] = {}
    for number in range(models):
        model = ModelName("p", f"m{number:03}")
        changes["models", str(model)] = ModelRecord(name=model, model=Model(name=str(model)), default="v0")
        for last in range(VERSIONS):
            name, uid = VersionName("p", model.model, f"v{last}"), f"{number * VERSIONS + last:016x}"
            folder = f"{state_dir}/versions/{uid}/model"
            changes["versions", str(name)] = VersionRecord(
                name=name,
                uid=uid,
                version=Version(
                    name=str(name),
                    state=VersionState.READY,
                    framework="SCIKIT_LEARN",
                    deployment_uri=f"gs://models/of/somebody/{uid}",
                    create_time="2026-01-01T00:00:00Z",
                    etag="bm9ib2R5",
                ),
                deployed=DeploymentInfo(model_dir=folder, framework="SCIKIT_LEARN", memory=1 << 24),
            )
    state_dir.mkdir(parents=True, mode=0o700)
    store = SqliteStore(state_dir / "state.db")
    store.commit(changes)
    store.close()


@contextmanager
def serving(folder: Path, models: int) -> Iterator[Server]:
    """A server with so many models, whose nodes would start cold, once it has settled."""
    deploy(folder / f"{models}", models)
    with running_server(folder / f"{models}", "--pilots", "off") as server:
        until(lambda: server.call("GET", "/readyz").status == 200, "it is ready")
        assert server.call("GET", "/stats").json["versions"] == models * VERSIONS
        yield server


def idle(server: Server) -> float:
    """The part of a core that the process takes while nothing happens: the least of some looks."""

    def seconds() -> float:
        tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    found = []
    for _ in range(3):
        before, begin = seconds(), time.monotonic()
        time.sleep(0.5)
        found.append((seconds() - before) / (time.monotonic() - begin))
    return min(found)


def test_a_thousand_sleeping_versions_cost_next_to_nothing(tmp_path: Path) -> None:
    """Under 20 MB in the gateway, nothing of the processor, and they are listed and found as before."""
    with serving(tmp_path, 0) as server:
        empty, resting = machine.measure_memory(server.process.pid).private, idle(server)
    with serving(tmp_path, MODELS) as server:
        full, sleeping = machine.measure_memory(server.process.pid).private, idle(server)
        page = server.call("GET", "projects/p/models?pageSize=3").json
        rest = server.call("GET", f"projects/p/models?pageSize=100&pageToken={page['nextPageToken']}").json
        assert len(page["models"]) + len(rest["models"]) == MODELS
        assert server.call("GET", "projects/p/models/m050/versions/v9").json["state"] == "READY"

    assert full - empty < 20e6
    assert sleeping - resting < 0.005
