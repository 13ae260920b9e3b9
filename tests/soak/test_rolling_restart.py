"""Servers on one database, restarted one after the other behind HAProxy as docs/cluster.md has it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
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
_SERVERS = 3


@contextlib.contextmanager
def running_haproxy(folder: Path, mode: str, ports: Sequence[int]) -> Iterator[str]:
    """The address of a HAProxy with the document's configuration, in front of servers at these ports."""
    program = shutil.which("haproxy")
    if program is None:
        pytest.skip("HAProxy is not installed: apt-get install haproxy")
    text = (ROOT / "docs" / "cluster.md").read_text()
    (block,) = re.findall(r"```\n(defaults\n.*?)```", text, re.DOTALL)
    port = find_free_port()
    block = block.replace("mode http", f"mode {mode}").replace("bind :8080", f"bind 127.0.0.1:{port}")
    listed = re.compile(r"    server a 127\.0\.0\.1:8081 (.*)\n    server b .*\n")
    assert listed.search(block)
    lines = [f"    server s{port} 127.0.0.1:{port} \\1\n" for port in ports]
    block = listed.sub("".join(lines), block)
    file = folder / "haproxy.cfg"
    file.write_text(block)
    process = subprocess.Popen([program, "-db", "-f", file])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


class Servers:
    """Servers on one database, each at a port and with a folder of its own."""

    def __init__(self, folder: Path, database: str) -> None:
        self._folder = folder
        self._database = database
        self.ports = [find_free_port() for _ in range(_SERVERS)]
        self._running = [contextlib.ExitStack() for _ in range(_SERVERS)]

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


def answers(server: Server) -> bool:
    return server.predict(MODEL, [[1.0]]).status == 200


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
        running = [servers.start(number) for number in range(_SERVERS)]
        with running_haproxy(tmp_path, mode, servers.ports) as url:
            running[0].create_model(MODEL)
            running[0].create_version(
                f"{MODEL}/versions/v", deploymentUri=str(model), framework="SCIKIT_LEARN"
            )
            for server in running:
                until(partial(answers, server), "all know it")
            one = Load(running[0].url, MODEL, 0.0, {})
            rate = measure_capacity(one) / 2
            with under_load(dataclasses.replace(one, url=url, rate=rate)) as record:
                for number in range(_SERVERS):
                    time.sleep(4)  # until HAProxy has seen that the last one is back
                    running[number] = servers.restart(number, running[number])
                time.sleep(4)
        report(f"{_SERVERS} restarts behind HAProxy (mode {mode}), {rate:.0f}/s: {record.describe()}")
        assert not record.failed, record.failed[:5]
        assert record.longest_gap < _LONGEST_GAP
    finally:
        servers.close()
