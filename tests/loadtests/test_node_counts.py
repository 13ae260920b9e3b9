from __future__ import annotations

import socket
from typing import Any

import pytest

from loadtests.node_counts import NodeCounts, fetch_node_counts, parse_node_counts
from tests.loadtests import sleeper
from tests.loadtests.sleeper import running_sleeper

MODEL = "projects/p/models/m"


def version(name: str, ready: int = 0, starting: int = 0, draining: int = 0) -> dict[str, Any]:
    """An entry of /nodes."""
    return {"version": name, "ready": ready, "starting": starting, "draining": draining, "nodes": []}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        (f"{MODEL}/versions/v1", NodeCounts(2, 1, 0)),
        (f"{MODEL}/versions/v3", NodeCounts(0, 0, 0)),
        ("projects/p/models/mm", NodeCounts(7, 7, 7)),
    ],
)
def test_only_the_nodes_of_the_target_count(name: str, counts: NodeCounts) -> None:
    """A version that is not listed sleeps."""
    listed = [
        version(f"{MODEL}/versions/v1", 2, 1),
        version(f"{MODEL}/versions/v2", 1, 0, 4),
        version("projects/p/models/mm/versions/v1", 7, 7, 7),
    ]

    assert parse_node_counts({"versions": listed, "pilots": []}, name) == counts


def test_of_a_model_with_several_versions_it_takes_the_one_that_is_called() -> None:
    """Nodes of others, such as one with minNodes, say nothing about the load."""
    listed = [version(f"{MODEL}/versions/v1", 2), version(f"{MODEL}/versions/v2", 1)]

    assert parse_node_counts({"versions": listed}, MODEL) is None
    assert parse_node_counts({"versions": listed[:1]}, MODEL) == NodeCounts(2, 0, 0)


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"versions": 1}, {"versions": [1]}, {"versions": [{"version": f"{MODEL}/versions/v1"}]}],
)
def test_anything_else_tells_nothing(document: Any) -> None:
    """An older server, or another one, may answer something of its own."""
    assert parse_node_counts(document, MODEL) is None


def test_a_server_is_asked_over_http() -> None:
    """For the version that the model's predictions go to, whether it tells its nodes or not."""
    with running_sleeper(idle_seconds=9) as server:
        assert fetch_node_counts(server.url, sleeper.MODEL, 5) == NodeCounts(0, 0, 0)
        assert fetch_node_counts(server.url, f"{sleeper.MODEL}/versions/v0", 5) == NodeCounts(1, 0, 0)
        assert fetch_node_counts(server.url, "projects/p/models/sleeper", 5) == NodeCounts(0, 0, 0)
        assert fetch_node_counts(f"{server.url}/elsewhere", sleeper.MODEL, 5) is None


def test_a_server_that_is_not_there_tells_nothing() -> None:
    """The load goes on without it."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]

    assert fetch_node_counts(f"http://127.0.0.1:{port}", MODEL, 5) is None
