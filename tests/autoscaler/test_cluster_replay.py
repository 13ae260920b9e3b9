"""The simulation of many servers: the decisions of the server, and numbers that can be known without it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autoscaler.placement.members import Member
from autoscaler.placement.ownership import choose_owners
from autoscaler.simulation.cluster_replay import ClusterConditions, compute_claims, simulate_cluster

HOUR = 60  # steps
SMALL = ClusterConditions(
    servers=5, versions=2000, curve=[100.0] * HOUR, node_bytes=1 << 20, memory_bytes=1 << 30, processors=4,
    service_seconds=0.001, idle_window=300, losses=0,
)  # fmt: skip


def test_claims_are_those_of_the_server() -> None:
    versions, servers = [f"v{number}" for number in range(300)], ["a", "b", "c"]
    owners = [choose_owners(key, [Member(id=one, capacity=1) for one in servers])[0].id for key in versions]

    assert [servers[row] for row in compute_claims(versions, servers).argmax(axis=0)] == owners


def test_a_quiet_hour() -> None:
    """No server goes, and none has too much to do: nothing moves."""
    result = simulate_cluster(SMALL)
    rates = [100.0 / rank for rank in range(1, 2001)]
    rates = [rate * 100.0 / sum(rates) for rate in rates]

    assert result.requests == pytest.approx(360_000)
    assert (result.moves, result.moved_starts, result.most_owners, result.full_minutes) == (0, 0, 1, 0)
    assert result.hops == pytest.approx(0.8 * result.requests)
    expected = 3600 * sum(rate * math.exp(-300 * rate) for rate in rates)
    assert result.cold_starts == pytest.approx(expected)
    awake = sum(1 - math.exp(-300 * rate) for rate in rates)
    assert result.memory_mean == pytest.approx(awake / 5 * (1 << 20))


def test_a_lost_server_moves_its_own_versions_twice() -> None:
    """They go to the others, and come back; that costs a cold start of each that was awake."""
    result = simulate_cluster(replace(SMALL, losses=1, loss_seconds=600))

    assert result.moves / 2 == pytest.approx(2000 / 5, rel=0.15)
    assert result.moved_starts == pytest.approx(result.awake_moves)
    assert 0 < result.awake_moves < result.moves


def test_a_busy_version_gets_more_owners() -> None:
    """The first of 2,000 has an eighth of all requests."""
    result = simulate_cluster(replace(SMALL, curve=[12_000.0] * HOUR, memory_bytes=1 << 40, losses=0))

    assert result.most_owners == 1
    result = simulate_cluster(replace(SMALL, curve=[12_000.0] * HOUR, service_seconds=0.0013))
    busy = 12_000 * 0.0013 / sum(1 / rank for rank in range(1, 2001))
    assert result.most_owners == math.ceil(math.ceil(busy) / 2)
    limited = simulate_cluster(replace(SMALL, curve=[12_000.0] * HOUR, service_seconds=0.0013, max_nodes=1))
    assert limited.most_owners == 1


def test_the_same_day_gives_the_same_numbers() -> None:
    conditions = replace(SMALL, losses=2)
    assert simulate_cluster(conditions) == simulate_cluster(conditions)
