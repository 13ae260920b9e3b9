"""`pilotlight nodes`."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from serving.cli.command_output import CommandOutput
from serving.cli.commands.nodes import format_duration, show_nodes
from tests.server import Server
from tests.serving.cli.conftest import Run

MIB = 1 << 20


def process(pid: int, private: int, proportional: int) -> dict[str, Any]:
    return {"pid": pid, "privateBytes": private * MIB, "proportionalBytes": proportional * MIB}


def node(pid: int, state: str = "ready", *, forked: bool = True) -> dict[str, Any]:
    more = {"id": str(pid), "state": state, "forked": forked, "ageSeconds": 125.0, "inFlight": 1}
    return {**more, **process(pid, 30, 50)}


def version(name: str, state: str, nodes: list[dict[str, Any]], queued: int = 0) -> dict[str, Any]:
    states = [one["state"] for one in nodes]
    return {
        "version": f"projects/{name}",
        "state": state,
        **{state: states.count(state) for state in ("ready", "starting", "draining")},
        "running": len(nodes),
        "queued": queued,
        "nodes": nodes,
    }


def pilot(key: str, state: str, **more: Any) -> dict[str, Any]:
    age = {"ageSeconds": 3700.0, "litSeconds": 2.46, "nodesForked": 2}
    return {"pilot": key, "state": state, **age, **process(7, 10, 60), **more}


FLEET: dict[str, Any] = {
    "versions": [
        version(
            "local/models/flowers/versions/v1", "awake", [node(11), node(12, "starting", forked=False)], 3
        ),
        version("local/models/flowers/versions/v2", "asleep", []),
        version("other/models/digits/versions/v1", "awake", [node(13)]),
    ],
    "pilots": [
        pilot("tabular", "lit"),
        pilot("tensorflow", "failed", reason="It cannot fork.", ageSeconds=None, **process(0, 0, 0)),
    ],
    "gateway": process(1, 80, 90),
}


def test_nodes_pilots_and_sums(capsys: pytest.CaptureFixture[str]) -> None:
    """A row per node, the version's own columns once; what is shared is told apart; sums at the end."""
    show_nodes(FLEET, "projects/local", CommandOutput())
    lines = capsys.readouterr().out.splitlines()

    assert [" ".join(line.split()) for line in lines[:9]] == [
        "VERSION STATE READY STARTING RUNNING QUEUED PID NODE AGE PRIVATE SHARED",
        "flowers/v1 awake 1 1 2 3 11 forked 2m05s 30.0 MiB 20.0 MiB",
        "12 cold, starting 2m05s 30.0 MiB 20.0 MiB",
        "flowers/v2 asleep 0 0 0 0",
        "projects/other/models/digits/versions/v1 awake 1 0 1 0 13 forked 2m05s 30.0 MiB 20.0 MiB",
        "",
        "PILOT STATE PID AGE LIT_IN NODES_FORKED PRIVATE SHARED",
        "tabular lit 7 1h01m 2.5s 2 10.0 MiB 50.0 MiB",
        "tensorflow failed 0 2.5s 2",
    ]
    assert lines[9:] == [
        "",
        "Memory in all: 300.0 MiB (the server 90.0 MiB, 3 nodes 150.0 MiB, 2 pilots 60.0 MiB).",
        "The pilot tabular uses 60.0 MiB, 10.0 MiB of it its own.",
        "The pilot tensorflow is failed: It cannot fork.",
    ]


def test_a_server_without_versions(capsys: pytest.CaptureFixture[str]) -> None:
    """The heading, and what the server itself takes."""
    show_nodes({**FLEET, "versions": [], "pilots": []}, "projects/local", CommandOutput())

    heading, *rest = capsys.readouterr().out.splitlines()
    assert heading.startswith("VERSION")
    assert rest == ["", "Memory in all: 90.0 MiB (the server 90.0 MiB, 0 nodes 0.0 MiB, 0 pilots 0.0 MiB)."]


def test_of_several_servers_it_says_which_one_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show_nodes({**FLEET, "server": "host:8080"}, "projects/local", CommandOutput())
    several = capsys.readouterr().out
    show_nodes(FLEET, "projects/local", CommandOutput())

    line = "These are the nodes of host:8080 alone; `pilotlight servers` lists all servers.\n"
    assert several == capsys.readouterr().out + line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.0, "0s"),
        (0.1234, "0.12s"),
        (9.97, "10s"),
        (59.9, "59s"),
        (60.0, "1m00s"),
        (3599.9, "59m59s"),
        (3660, "1h01m"),
        (90061, "1d01h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    """To two digits, or two units; never rounded up to a whole unit."""
    assert format_duration(seconds) == text


def test_nodes_of_a_server(pilotlight: Run, server: Server, forest: str) -> None:
    """The version is there with its node, and the server's memory; JSON is what the server sent."""
    assert server.predict(f"projects/local/models/{forest}", [[1, 2, 3, 4]]).status == 200

    table = pilotlight("nodes")
    json = pilotlight("nodes --format json")

    assert (table.code, table.err, json.code) == (0, "", 0)
    (row,) = (line.split() for line in table.out.splitlines() if line.startswith("forest/v1 "))
    (pid,) = server.nodes("projects/local/models/forest/versions/v1")
    assert row[1:3] == ["awake", "1"]
    assert str(pid) in row
    assert "Memory in all: " in table.out
    assert json.json.keys() == server.get_status().keys()
    assert json.json["gateway"]["pid"] == server.process.pid


@pytest.mark.parametrize("terminal", [True, False])
def test_watching(pilotlight: Run, forest: str, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    """It looks again and again, and Ctrl-C is the way to end it; a terminal is cleared each time."""
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", nap)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    watched = pilotlight("nodes --watch")

    assert (watched.code, watched.err) == (0, "")
    assert watched.out.count("forest/v1") == watched.out.count("VERSION") == 3
    assert watched.out.count("\x1b[H\x1b[2J") == (3 if terminal else 0)
    assert naps == [1.0] * 3
