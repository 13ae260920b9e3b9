from __future__ import annotations

import pytest

from autoscaler.pools import Node
from serving.gateway.observability.prediction_stats import (
    GATEWAY_PHASES,
    PredictionStats,
    VersionStats,
)
from serving.latency_histograms import (
    NODE_BYTES,
    NODE_CALLS,
    NODE_LAST,
    NODE_PHASES,
    NODE_ROWS,
    LatencyHistograms,
    as_cells,
)
from tests.autoscaler.fakes import memory
from tests.serving.gateway.proxy.test_server_timing import make_lease


def seconds(stats: VersionStats) -> dict[str, float]:
    """The phases there are, with all their seconds."""
    return {phase: round(histogram.seconds, 6) for phase, histogram in stats.take_snapshot(()).phases}


def test_a_request_that_need_not_wait() -> None:
    """What is not spent in the node is the gateway's; nothing else is told."""
    stats = VersionStats()
    stats.count_answer((0.023, 0.02, ()), 200, 7, 13)

    assert seconds(stats) == {"total": 0.023, "gateway": 0.003}
    snapshot = stats.take_snapshot(())
    assert (snapshot.statuses, snapshot.bytes_in, snapshot.bytes_out) == ({200: 1}, 7, 13)


def test_a_request_that_waits_and_is_sent_again() -> None:
    """Every wait counts, and all the time in nodes; the phases add up to the total."""
    stats = VersionStats()
    waits = [
        make_lease(arrived=ready - 1, asked=ready - 1, ready=ready, granted=ready, load=0.5, warm=0.25)
        for ready in (101.0, 103.0)
    ]
    stats.count_answer((4.0, 2.0, tuple(waits)), 200, 1, 1)

    assert seconds(stats) == {
        "total": 4.0, "gateway": 0.0, "queue": 0.0, "start": 0.5, "load": 1.0, "warm": 0.5
    }  # fmt: skip
    started = dict(stats.take_snapshot(()).started)
    assert (sum(started["total"].counts), started["total"].seconds) == (1, 4.0)


def test_a_place_in_a_ready_node_has_no_start() -> None:
    """Who waits for it was in the queue."""
    stats = VersionStats()
    lease = make_lease(arrived=100.0, asked=10.0, ready=20.0, granted=103.0)
    stats.count_answer((3.0, 0.0, (lease,)), 200, 1, 1)

    assert seconds(stats) == {"total": 3.0, "gateway": 0.0, "queue": 3.0}
    assert stats.take_snapshot(()).started == ()


def test_what_nodes_count_outlives_them() -> None:
    """The living ones and the dead ones add up, however often it is asked."""
    found = PredictionStats()
    stats = found.get_or_create("v")
    nodes = []
    for infer in (0.1, 0.2):
        shared = memory(counter_bytes=NODE_BYTES)
        cells = as_cells(shared.counters)
        LatencyHistograms(len(NODE_PHASES), cells).record(NODE_PHASES.index("infer"), infer)
        cells[NODE_ROWS], cells[NODE_CALLS], cells[NODE_LAST] = 3, 2, int(infer * 1000)
        nodes.append(shared)
    found.absorb_node(Node("1", "v", "", nodes[0]))
    found.absorb_node(Node("2", "another", "", nodes[0]))  # nobody asked it for anything

    for _ in range(2):
        snapshot = stats.take_snapshot([bytes(nodes[1].counters)])
        assert (snapshot.rows, snapshot.calls, snapshot.last) == (6, 4, 200)
        ((phase, histogram),) = snapshot.phases
        assert (phase, sum(histogram.counts)) == ("infer", 2)
        assert histogram.seconds == pytest.approx(0.3)


def test_versions_that_are_gone_are_forgotten() -> None:
    """The others are not."""
    found = PredictionStats()
    kept = found.get_or_create("a")
    found.get_or_create("b").count_refusal(503)
    found.retain_versions({"a"})

    assert found.find_version("a") is kept
    assert found.find_version("b") is None


def test_phases_have_one_name_each() -> None:
    """They are told as values of one label."""
    assert len({*GATEWAY_PHASES, *NODE_PHASES}) == len(GATEWAY_PHASES) + len(NODE_PHASES)
