"""What versions cost: awake they share what their pilot imported, asleep they cost next to nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from autoscaler import machine
from tests.conftest import Report
from tests.server import Server, running_server, until
from tests.soak.models import Model

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PARENT = "projects/soak/models/cost"
MIB = 1 << 20
# Imports TensorFlow, loads a model, and waits to be measured.
_ALONE = """
import sys, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
print("loaded", flush=True)
input()
"""


def test_ten_versions_of_tensorflow_share_their_framework(
    tmp_path: Path, trained: Mapping[str, Model], report: Report
) -> None:
    """Ten awake take at most 2.2 times the memory of one process that has loaded one; asleep, the pilot's."""
    model = trained["tensorflow"]
    one = _alone(model.folder)
    with running_server(tmp_path / "state", "--idle-timeout", "10") as server, ThreadPoolExecutor(10) as pool:
        server.create_model(PARENT)
        names = [f"{PARENT}/versions/v{number}" for number in range(10)]
        for name in names:
            server.create_version(name, deploymentUri=str(model.folder))
        until(lambda: server.get_status()["pilots"][0]["state"] == "lit", "the pilot is lit")
        until(lambda: not server.nodes(), "all sleep")
        pilot = server.get_status()["pilots"][0]["proportionalBytes"]

        replies = list(pool.map(lambda name: server.predict(name, model.instances), names))
        assert [reply.status for reply in replies] == [200] * 10
        found = server.get_status()
        awake = [node for version in found["versions"] for node in version["nodes"]]
        assert len(awake) == 10
        total = sum(node["proportionalBytes"] for node in awake) + found["pilots"][0]["proportionalBytes"]
        report(
            f"TensorFlow: one process {one / MIB:.0f} MiB; ten versions awake and their pilot "
            f"{total / MIB:.0f} MiB ({total / one:.2f} times); all asleep {pilot / MIB:.0f} MiB"
        )
        until(lambda: not server.nodes(), "all sleep")
        assert server.stop() == 0
    assert total <= 2.2 * one


def _alone(folder: Path) -> int:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OPENBLAS_NUM_THREADS": "1"}
    with psutil.Popen(
        [sys.executable, "-c", _ALONE, str(folder)],
        env=environment, stdin=-1, stdout=-1, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "loaded\n"
        taken = machine.measure_memory(process.pid).proportional
        process.communicate("\n")
    return taken


def test_sleeping_versions_cost_next_to_nothing(
    tmp_path: Path, trained: Mapping[str, Model], report: Report
) -> None:
    """200 deployed versions: under 10 MB more in the gateway, and no measurable use of the processor."""
    with running_server(tmp_path / "state", "--idle-timeout", "0.5") as server:
        server.create_model(PARENT)
        server.create_version(f"{PARENT}/versions/v0", deploymentUri=str(trained["scikit-learn"].folder))
        few = _private(server)
        idle_few = _cpu(server)
        operations = [
            server.begin_version(
                f"{PARENT}/versions/v{number}", deploymentUri=str(trained["scikit-learn"].folder)
            )
            for number in range(1, 201)
        ]
        for operation in operations:
            server.wait(operation, seconds=600)
        until(lambda: not server.nodes(), "all sleep")
        many = _private(server)
        idle_many = _cpu(server)
        report(
            f"200 sleeping versions: gateway {few / MIB:.1f} -> {many / MIB:.1f} MiB private; idle CPU "
            f"{idle_few:.2%} -> {idle_many:.2%} of a core"
        )
        assert server.stop() == 0
    assert many - few < 10e6
    assert idle_many < 0.01


def _private(server: Server) -> int:
    until(lambda: not server.nodes(), "it sleeps")
    return machine.measure_memory(server.process.pid).private


def _cpu(server: Server, seconds: float = 10) -> float:
    """The part of a core that the gateway uses while nothing happens."""
    process = psutil.Process(server.process.pid)
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system) / seconds
