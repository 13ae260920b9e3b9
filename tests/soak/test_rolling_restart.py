"""Servers on one database, restarted one after the other behind HAProxy as docs/cluster.md has it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import joblib
import pytest
from sklearn.tree import DecisionTreeRegressor

from loadtests.bench.targets.servers import find_free_port
from tests.conftest import Report
from tests.dockerfile import ROOT
from tests.postgres import Postgres
from tests.server import Server, running_server, until
from tests.steady_load import Load, measure_capacity, under_load

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

MODEL = "projects/p/models/m"
_STOP_DELAY = "4"  # as in the document
_LONGEST_GAP = 4.0
# Requests per second. The load, HAProxy and the start of a server share the processors.
_MOST_RATE = 100.0


@contextlib.contextmanager
def running_haproxy(folder: Path, mode: str, ports: tuple[int, int]) -> Iterator[str]:
    """The address of a HAProxy with the document's configuration, in front of servers at these ports."""
    program = shutil.which("haproxy")
    if program is None:
        pytest.skip("HAProxy is not installed: apt-get install haproxy")
    text = (ROOT / "docs" / "cluster.md").read_text()
    (block,) = re.findall(r"```\n(defaults\n.*?)```", text, re.DOTALL)
    port = find_free_port()
    block = block.replace("mode http", f"mode {mode}").replace("bind :8080", f"bind 127.0.0.1:{port}")
    for written, used in zip(("8081", "8082"), ports, strict=True):
        block = block.replace(f"127.0.0.1:{written}", f"127.0.0.1:{used}")
    file = folder / "haproxy.cfg"
    file.write_text(block)
    process = subprocess.Popen([program, "-db", "-f", file])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


class Servers:
    """Two servers on one database, each at a port and with a folder of its own."""

    def __init__(self, folder: Path, database: str) -> None:
        self._folder = folder
        self._database = database
        self.ports = (find_free_port(), find_free_port())
        self._running = [contextlib.ExitStack(), contextlib.ExitStack()]

    def start(self, number: int) -> Server:
        flags = ("--port", str(self.ports[number]), "--stop-delay", _STOP_DELAY, "--state", self._database)
        server = self._running[number].enter_context(running_server(self._folder / f"s{number}", *flags))
        until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200, "it is ready")
        return server

    def restart(self, number: int, server: Server) -> Server:
        assert server.stop() == 0
        self._running[number].close()
        return self.start(number)

    def close(self) -> None:
        for running in self._running:
            running.close()


@pytest.mark.parametrize("mode", ["http", "tcp"])
def test_restarts_in_turn_lose_no_request(
    mode: str, postgres: Postgres, tmp_path: Path, report: Report
) -> None:
    """Under half of what one server can do, by clients that keep their connections.

    HAProxy passes on requests, or connections as Kubernetes does; the latter stay with a server until it
    closes them.
    """
    model = tmp_path / "model"
    model.mkdir()
    joblib.dump(DecisionTreeRegressor().fit([[0.0], [1.0]], [1.0, 3.0]), model / "model.joblib")
    servers = Servers(tmp_path, postgres.create_database())
    try:
        running = [servers.start(number) for number in (0, 1)]
        with running_haproxy(tmp_path, mode, servers.ports) as url:
            running[0].create_model(MODEL)
            running[0].create_version(
                f"{MODEL}/versions/v", deploymentUri=str(model), framework="SCIKIT_LEARN"
            )
            until(lambda: running[1].predict(MODEL, [[1.0]]).status == 200, "the other knows it too")
            one = Load(running[0].url, MODEL, 0.0, {})
            rate = min(measure_capacity(one) / 2, _MOST_RATE)
            with under_load(dataclasses.replace(one, url=url, rate=rate)) as record:
                for number in (0, 1, 0):
                    time.sleep(4)  # until HAProxy has seen that the last one is back
                    running[number] = servers.restart(number, running[number])
                time.sleep(4)
        report(f"three restarts behind HAProxy (mode {mode}), {rate:.0f}/s: {record.describe()}")
        assert not record.failed, record.failed[:5]
        assert record.longest_gap < _LONGEST_GAP
    finally:
        servers.close()
