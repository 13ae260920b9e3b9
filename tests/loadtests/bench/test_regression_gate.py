from __future__ import annotations

import os

import pytest

from loadtests.bench import regression_gate
from loadtests.bench.load_clients.programs import choose_program
from loadtests.bench.targets.servers import SERVERS
from loadtests.bench.workloads import WORKLOADS, BenchFiles
from tests.loadtests.bench.conftest import IRIS


def test_ratios_are_those_of_the_same_turn() -> None:
    """A machine that halves its speed for a while changes nothing."""
    rates = {
        "echo": [40_000.0, 20_000.0, 40_000.0],
        "node": [24_000.0, 12_000.0, 3_000.0],
        "gateway": [1.0] * 3,
    }

    node, gateway, both = regression_gate.judge_limits(IRIS, rates)

    assert node.ratio == pytest.approx(0.6)
    assert node.passed
    assert not gateway.passed
    assert not both.passed
    assert "node / echo" in str(node)
    assert "TOO SLOW" in str(gateway)


def test_limits_are_about_what_exists() -> None:
    """Each names a workload."""
    assert {limit.workload for limit in regression_gate.LIMITS} <= set(WORKLOADS)


@pytest.mark.alone
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="servers and load need a core each")
def test_serving_has_not_become_much_slower(material: BenchFiles) -> None:
    """Node and gateway hold half of each limit in a short run."""
    servers = [SERVERS[name] for name in ("echo", "node", "gateway")]
    rates = regression_gate.measure_rates(
        material, IRIS, servers, choose_program("own", 1), turns=3, seconds=0.2, core=0
    )

    assert all(
        verdict.ratio >= verdict.limit.least / 2 for verdict in regression_gate.judge_limits(IRIS, rates)
    )
