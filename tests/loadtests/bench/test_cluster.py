"""What several servers cost: the tables, and the promises on a machine that is left alone."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from loadtests.bench.cluster import (
    ClusterFigures,
    Plan,
    RequestTimes,
    format_costs,
    format_sum,
    measure_cluster,
)
from loadtests.bench.workloads import BenchFiles
from tests.conftest import Report
from tests.postgres import Postgres


def test_turns_are_compared_with_themselves() -> None:
    """In the second one the machine was busy with something else."""
    figures = ClusterFigures(
        alone=RequestTimes(cpu=[100e-6, 300e-6]), owner=RequestTimes(cpu=[125e-6, 375e-6])
    )

    assert format_sum(figures).splitlines()[2:] == [
        "| processor time of a request, a server without others | 200 µs |",
        "| two servers on a core each that both own the version | 250 µs |",
        "| what two do, as a part of twice what one does, median | 0.80 |",
    ]


def test_a_hop_is_what_another_server_adds() -> None:
    requests = RequestTimes(warm=[1e-3, 2e-3, 3e-3], woken=[0.02])
    figures = ClusterFigures(
        [0.004] * 50, requests, requests, RequestTimes(warm=[1.5e-3, 2.25e-3, 9e-3], woken=[0.03])
    )

    assert "| one hop | 250 µs |" in format_costs(figures)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_what_several_servers_cost(postgres: Postgres, tmp_path: Path, report: Report) -> None:
    figures = measure_cluster(postgres.create_database(), BenchFiles(tmp_path), Plan(turns=10))

    report(format_costs(figures))
    report(format_sum(figures))
    assert figures.change_p99 <= 0.1
    assert figures.hop_seconds <= 300e-6
    assert median(figures.hop.woken) <= median(figures.alone.woken) + 0.001
    assert figures.share_of_sum >= 0.9
