"""`pilotlight servers`."""

from __future__ import annotations

from typing import Any

import pytest

from serving.cli.command_output import CommandOutput
from serving.cli.commands.servers import show_servers
from tests.serving.cli.conftest import Run


def server(name: str, **more: Any) -> dict[str, Any]:
    usual = {
        "name": name, "address": "10.0.0.7:8090", "alive": True, "starting": False, "draining": False,
        "reached": True, "ageSeconds": 0.4, "memoryBytes": 16 << 30, "processors": 8, "load": 0.254,
        "weight": 16, "nodes": 3, "requests": 2,
    }  # fmt: skip
    return {**usual, **more}


def test_a_row_for_each_server(capsys: pytest.CaptureFixture[str]) -> None:
    """With the first reason for which nothing is placed on it."""
    found = [
        server("a:8080", reached=None),
        server("b:8080", draining=True),
        server("c:8080", reached=False, weight=9),
        server("e:8080", starting=True),
        server("d:8080", alive=False, draining=True, ageSeconds=75.0),
    ]
    show_servers({"servers": found}, CommandOutput())
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    assert lines == [
        "SERVER ADDRESS STATE SEEN MEMORY PROCESSORS LOAD WEIGHT NODES REQUESTS",
        "a:8080 10.0.0.7:8090 alive 0.4s 16.0 GiB 8 25% 16/16 3 2",
        "b:8080 10.0.0.7:8090 draining 0.4s 16.0 GiB 8 25% 16/16 3 2",
        "c:8080 10.0.0.7:8090 alive, not reached 0.4s 16.0 GiB 8 25% 9/16 3 2",
        "e:8080 10.0.0.7:8090 starting 0.4s 16.0 GiB 8 25% 16/16 3 2",
        "d:8080 10.0.0.7:8090 silent 1m15s 16.0 GiB 8 25% 16/16 3 2",
    ]


def test_who_decides_on_their_number_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        server("a:8080", scaling={"summary": "3 servers are wanted."}),
        server("b:8080", alive=False, scaling={"summary": "It was."}),
    ]
    show_servers({"servers": found}, CommandOutput())
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:] == ["a:8080 decides on the number of servers: 3 servers are wanted."]


def test_a_server_without_others(pilotlight: Run) -> None:
    assert "passes no requests on to others" in pilotlight("servers").out
    assert pilotlight("servers --format json").json == {"servers": []}
