"""What a server tells of its nodes: /nodes, /why and /metrics, against what is really there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.bounds import HANG_SECONDS
from tests.end_to_end import models
from tests.server import Server, running_server, until

MODEL = "projects/fleet/models/forest"
V1 = f"{MODEL}/versions/v1"
LABELS = {"project": "fleet", "model": "forest", "version": "v1"}
ROW = [[1, 2, 3, 4]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model's files."""
    folder = tmp_path_factory.mktemp("forest")
    models.write_sklearn(folder)
    return str(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folder: str) -> Iterator[Server]:
    """A server on which versions fall asleep soon, with one version."""
    state_dir = tmp_path_factory.mktemp("fleet") / "state"
    with running_server(state_dir, "--idle-timeout", "3", "--tick", "0.1") as server:
        server.create_model(MODEL)
        server.create_version(V1, deploymentUri=folder)
        yield server


def version(server: Server, name: str = V1) -> dict[str, Any]:
    """What /nodes tells of a version."""
    return next(found for found in server.get_status()["versions"] if found["version"] == name)


def asleep(server: Server) -> dict[str, Any]:
    """The version once it has no node."""

    def found() -> dict[str, Any] | None:
        told = version(server)
        return None if told["nodes"] else told

    return until(found, "it is asleep")


def metrics(server: Server, **labels: str) -> dict[str, float]:
    """The values of all series with these labels; several of one name are added up."""
    response = server.http.get(f"{server.url}/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            if labels.items() <= sample.labels.items():
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_a_version_awake_and_asleep(server: Server) -> None:
    """The processes that are told are those that run, and none is there that is not told."""
    assert server.predict(V1, ROW).status == 200
    awake, before, found = version(server), metrics(server, **LABELS), server.get_status()

    (node,) = awake["nodes"]
    assert (awake["state"], awake["ready"], awake["queued"]) == ("awake", 1, 0)
    assert node["pid"] in server.processes()
    assert node["proportionalBytes"] >= node["privateBytes"] > 1 << 20
    assert found["gateway"]["pid"] == server.process.pid
    for pilot in found["pilots"]:
        assert pilot["state"] != "lit" or pilot["pid"] in server.processes()
    assert before["pilotlight_nodes"] == before["pilotlight_nodes_desired"] == 1
    assert before["pilotlight_node_memory_bytes"] > 1 << 20

    sleeping = asleep(server)
    after = metrics(server, **LABELS)
    assert (sleeping["state"], sleeping["desired"]) == ("asleep", 0)
    assert sleeping["reason"].startswith("asleep: no request for ")
    assert after["pilotlight_nodes"] == after["pilotlight_nodes_desired"] == 0
    assert "pilotlight_node_memory_bytes" not in after
    assert (
        after["pilotlight_node_seconds_total"]
        > after["pilotlight_idle_node_seconds_total"]
        > before.get("pilotlight_idle_node_seconds_total", 0.0)
    )
    assert node["pid"] not in server.processes()


def test_a_wake_up_is_measured(server: Server) -> None:
    """Once for each node, its phases adding up to what /nodes tells."""
    asleep(server)
    before = metrics(server, **LABELS, phase="total")
    wakeups = metrics(server, **LABELS, result="ready")["pilotlight_wakeups_total"]
    assert server.predict(V1, ROW).status == 200
    after = metrics(server, **LABELS, phase="total")

    def sums(**labels: str) -> float:
        return metrics(server, **LABELS, **labels)["pilotlight_cold_start_seconds_sum"]

    count, total = "pilotlight_cold_start_seconds_count", "pilotlight_cold_start_seconds_sum"
    assert after[count] == before[count] + 1
    assert after[total] > before[total]
    assert sum(sums(phase=phase) for phase in ("start", "load", "warm")) == pytest.approx(sums(phase="total"))
    assert metrics(server, **LABELS, result="ready")["pilotlight_wakeups_total"] == wakeups + 1
    assert version(server)["startSeconds"]


def test_why(server: Server) -> None:
    """A sleep, a wake-up and a refused request, told for the version and for the model."""
    asleep(server)
    reply = server.predict(V1, ROW, headers={"x-request-timeout": "0.005"})
    assert reply.status == 503, reply.json

    story = server.call("GET", f"/why/{V1}").json
    of_model = server.call("GET", f"/why/{MODEL}").json

    assert of_model["version"] == story["version"] == V1
    assert {decision["nodes"] for decision in story["decisions"]} == {0, 1}
    assert story["decisions"] == sorted(story["decisions"], key=lambda decision: decision["time"])
    assert [refusal["count"] for refusal in story["refusals"]] == [1]
    assert story["refusals"][0]["reason"].startswith("a node would have been ready too late: ")
    assert metrics(server, **LABELS, reason="too_late")["pilotlight_refused_requests_total"] == 1


def test_what_there_is_not(server: Server) -> None:
    """Unknown names are answered as everywhere."""
    for name in (
        f"{MODEL}/versions/v9",
        "projects/fleet/models/none",
        "projects/fleet/models/none/versions/v1",
    ):
        reply = server.call("GET", f"/why/{name}")
        assert reply.status == 404
        assert reply.error["status"] == "NOT_FOUND"
    assert server.call("POST", "/nodes").status == 405


def test_a_deleted_version_is_told_no_more(server: Server, folder: str) -> None:
    """Neither in /nodes nor in /metrics."""
    other = f"{MODEL}/versions/other"
    server.create_version(other, deploymentUri=folder)
    assert metrics(server, **LABELS | {"version": "other"})

    server.delete(other)

    assert metrics(server, **LABELS | {"version": "other"}) == {}
    assert [found["version"] for found in server.get_status()["versions"]] == [V1]


def read_events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a stream: their kinds and their data."""
    kind = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            kind = value
        elif field == "data":
            yield kind, json.loads(value)


def test_a_wake_up_as_it_happens(server: Server) -> None:
    """The decision with its reason, and the node that comes of it."""
    asleep(server)
    with server.http.stream("GET", f"{server.url}/events?parent={V1}") as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        assert server.predict(V1, ROW).status == 200
        events = read_events(stream.iter_lines())
        kind, decision = next(events)
        assert (kind, decision["version"], decision["nodes"]) == ("scaling", V1, 1)
        assert decision["reason"] == "1 node: a request waits"
        states = [next(events)[1]["state"] for _ in range(2)]
        assert states == ["starting", "ready"]


def test_a_server_that_stops_ends_the_streams_and_does_not_wait_for_them(tmp_path: Path) -> None:
    with running_server(tmp_path / "state", "--pilots", "off") as server:
        with server.http.stream("GET", f"{server.url}/events") as stream:
            begun = time.monotonic()
            server.process.terminate()
            [(kind, data)] = read_events(stream.iter_lines())
            assert (kind, data["reason"]) == ("end", "stopping")
        assert server.process.wait(HANG_SECONDS) == 0
        # `request_timeout` is 60 s.
        assert time.monotonic() - begun < 30
