"""Many versions that are deployed and sleep, and what they cost the server's own process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autoscaler import machine
from tests.many_versions import VERSIONS, deploy
from tests.server import Server, running_server, until

MODELS = 100


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
