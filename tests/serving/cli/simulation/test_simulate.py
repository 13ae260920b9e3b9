"""`pilotlight simulate`: traces from and to files, settings, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.serving.cli.conftest import Run

_MACHINE = "--max-nodes 4 --start-seconds 0.2"


def log_line(version: str, moment: str, model: str = "flowers") -> str:
    """A line as the access log has it, as far as it is read."""
    entry: dict[str, Any] = {"time": moment, "model": model, "model_version": version, "status": 200}
    return json.dumps(entry | {"latency_ms": 1.5, "request_bytes": 10, "response_bytes": 20}) + "\n"


def results(run: Run, line: str) -> dict[str, Any]:
    """What a simulation prints with --json, without the time it took."""
    result = run(f"simulate {_MACHINE} {line} --json")
    assert result.code == 0, result.err
    found: dict[str, Any] = result.json
    assert found["answered"] + found["refused"] + found["timed_out"] == found["requests"]
    return {key: value for key, value in found.items() if not key.startswith("policy_")}


@pytest.mark.parametrize(("trace", "seconds"), [("office-hours", 31000), ("bursty", 3600), ("sparse", 86400)])
def test_made_up_days(offline: Run, trace: str, seconds: int) -> None:
    """Each made-up trace is replayed, and the results are told in words; the time it took is a note."""
    result = offline(f"simulate {trace} --seconds {seconds} {_MACHINE}")
    told = dict(line.split("  ", 1) for line in result.out.splitlines())

    assert result.code == 0
    assert "Simulated " in result.err
    assert int(told["requests"].replace(",", "")) > 100
    assert int(told["cold starts"]) >= 1
    assert told["longest wait"].endswith(" s")
    assert told["of these idle"].endswith("%")
    assert "µs per tick and version" in told["policy"]


def test_json(offline: Run) -> None:
    """With --json there are all numbers, and the settings they came from."""
    found = results(offline, "sparse --idle-timeout 30 --min-nodes 1 --tick 5 --request-timeout 9")

    assert found["requests"] == found["answered"] > 100
    assert found["cold_starts"] == 0
    assert found["node_seconds"] == pytest.approx(86_400, rel=0.01)
    assert found["policy"]["idle_window"] == 30
    assert found["policy"]["min_nodes"] == 1
    assert found["conditions"]["tick"] == 5
    assert found["conditions"]["request_timeout"] == 9
    assert found["conditions"]["start_seconds"] == [0.2]


def test_settings_are_the_servers(offline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have its defaults, come from its environment, and flags go first."""
    assert results(offline, "sparse --seconds 1")["policy"]["idle_window"] == 300
    monkeypatch.setenv("PILOTLIGHT_IDLE_TIMEOUT", "77")
    assert results(offline, "sparse --seconds 1")["policy"]["idle_window"] == 77
    assert results(offline, "sparse --seconds 1 --idle-timeout 78")["policy"]["idle_window"] == 78
    assert "--idle-timeout" in offline("simulate sparse --idle-timeout 0").err


def test_a_longer_idle_window_costs_more_and_wakes_less(offline: Run) -> None:
    """What the command is for."""
    short, long = (results(offline, f"sparse --idle-timeout {seconds}") for seconds in (30, 900))

    assert short["node_seconds"] < long["node_seconds"] / 3
    assert short["cold_starts"] > 3 * long["cold_starts"]


def test_what_is_written_is_read_again(offline: Run, tmp_path: Path) -> None:
    """A saved trace gives the same results as the one it came from."""
    direct = results(offline, "sparse --write day.csv")
    again = results(offline, "day.csv")
    lines = (tmp_path / "day.csv").read_text().splitlines()

    assert lines[0] == "second,requests"
    assert lines[1].startswith("0,")
    assert lines[-1].startswith("86399,")
    assert again | {"trace": "sparse"} == direct


def test_several_versions(offline: Run, tmp_path: Path) -> None:
    """A column names versions; --versions makes some of one, and what they write can be read."""
    (tmp_path / "two.csv").write_text("second,requests,version\n100,1,a\n100,2,b\n101,1,a\n")
    two = results(offline, "two.csv")
    three = results(offline, "sparse --versions 3 --seconds 7200 --write three.csv")
    again = results(offline, "three.csv")

    assert (two["versions"], two["requests"], two["cold_starts"]) == (2, 4, 2)
    assert three["versions"] == again["versions"] == 3
    assert three["requests"] == again["requests"] > 3
    assert "--versions" in offline("simulate two.csv --versions 2").err


def test_access_log(offline: Run, tmp_path: Path) -> None:
    """The server's own log, in any order: its versions are versions of the simulation."""
    (tmp_path / "log.jsonl").write_text(
        log_line("v1", "2025-03-01T23:59:58.000000Z")
        + log_line("v2", "2025-03-02T00:00:00.500000Z")
        + log_line("v1", "2025-03-01T23:59:57.250000Z")
        + "\n"
    )
    found = results(offline, "log.jsonl --idle-timeout 10 --start-seconds 3 --write log.csv")

    assert (found["versions"], found["requests"], found["cold_starts"]) == (2, 3, 2)
    assert found["wait_max"] == 3.0
    assert (tmp_path / "log.csv").read_text().splitlines() == [
        "second,requests,version",
        "0,1,flowers/v1",
        "0,0,flowers/v2",
        "1,1,flowers/v1",
        "3,0,flowers/v1",
        "3,1,flowers/v2",
    ]


def test_folder_of_access_logs(offline: Run, tmp_path: Path) -> None:
    """A day is a file: a folder of them is one trace."""
    folder = tmp_path / "access" / "flowers"
    folder.mkdir(parents=True)
    (folder / "2025-03-01.jsonl").write_text(log_line("v1", "2025-03-01T23:00:00Z"))
    (folder / "2025-03-02.jsonl").write_text(log_line("v1", "2025-03-02T01:00:00Z"))
    found = results(offline, "access")

    assert (found["requests"], found["cold_starts"]) == (2, 2)
    assert 7200 < found["seconds"] < 7600


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: the heading must name the columns second and requests"),
        ("time,requests\n1,2\n", "line 1: the heading must name the columns second and requests"),
        ("second,requests\n", "there are no rows in it"),
        ("second,requests\n1,0\n", "there is no request in it"),
        ("second,requests\n1,2\n2,-1\n", "line 3: requests must be a whole number, 0 or more; it is '-1'"),
        ("second,requests\n1,2\nx,1\n", "line 3: second must be a whole number, 0 or more; it is 'x'"),
        ("second,requests\n1.5,2\n", "line 2: second must be a whole number, 0 or more; it is '1.5'"),
        ("second,requests\n1\n", "line 2: requests must be a whole number, 0 or more; it is ''"),
        ("second,requests\n1,2\n\n1,2\n", "line 4: second 1 comes after second 1; the seconds must ascend"),
        ("second,requests,version\n5,1,a\n6,1,b\n4,1,a\n", "line 4: second 4 comes after second 5"),
        ("second,requests,version\n5,1,\n", "line 2: the version is missing"),
        ('second,requests\n"1,2\n', "Cannot read"),
        ("\xff\xfe\x00", "Cannot read"),
        ('{"time": "2025-03-01T00:00:00Z"}\n', "line 1: the field 'model' is missing"),
        (log_line("v1", "2025-03-01T00:00:00Z") + "{\n", "line 2: it is no JSON"),
        (log_line("v1", "yesterday"), "line 1: it is no line of an access log"),
        (log_line("v1", "2025-03-01T00:00:00"), "does not say in which zone"),
        ('{"time": 5}\n', "line 1: it is no line of an access log"),
    ],
)
def test_what_is_wrong_with_a_file(offline: Run, tmp_path: Path, content: str, message: str) -> None:
    """A message names the file, the line where there is one, and what is wrong."""
    (tmp_path / "bad").write_bytes(content.encode("latin-1"))
    result = offline("simulate bad")

    assert result.code == 1
    assert "bad" in result.err
    assert message in result.err
    assert result.out == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("night-shift", "There is no file night-shift, and no such trace; there are: office-hours, bursty"),
        (".", "there is no request in it"),
        ("sparse --write nowhere/day.csv", "Cannot write nowhere/day.csv"),
    ],
)
def test_refused(offline: Run, line: str, message: str) -> None:
    """What cannot be done is said in one sentence."""
    result = offline(f"simulate {line}")

    assert result.code == 1
    assert message in result.err


@pytest.mark.parametrize(
    "flags",
    [
        "--start-seconds soon",
        "--start-seconds ,",
        "--start-seconds 1,-2",
        "--start-seconds nan",
        "--versions 0",
    ],
)
def test_wrong_usage(offline: Run, flags: str) -> None:
    """A flag that makes no sense is wrong usage, and named."""
    result = offline(f"simulate sparse {flags}")

    assert result.code == 2
    assert flags.split(maxsplit=1)[0] in result.err


def test_memory(offline: Run, tmp_path: Path) -> None:
    """With memory for one node, two versions take turns; without a limit they do not."""
    (tmp_path / "two.csv").write_text("second,requests,version\n0,1,a\n30,1,b\n60,1,a\n90,1,b\n")
    plenty = results(offline, "two.csv")
    short = results(offline, "two.csv --node-bytes 100 --memory-bytes 150")

    assert (plenty["cold_starts"], plenty["most_nodes"]) == (2, 2)
    assert (short["cold_starts"], short["most_nodes"]) == (4, 1)


def test_progress_is_for_terminals(offline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a bar on a terminal and none elsewhere; results are the same."""
    quiet = offline("simulate sparse --seconds 9000 --json")
    monkeypatch.setattr("serving.cli.simulation.simulate.sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    shown = offline("simulate sparse --seconds 9000 --json")

    assert "Replaying" not in quiet.err
    assert "Replaying sparse" in shown.err
    assert shown.json["node_seconds"] == quiet.json["node_seconds"]


def test_many_servers(offline: Run) -> None:
    """Aggregated, so that the size of the day does not matter; in words, and as JSON."""
    line = (
        "simulate office-hours --cells 4 --versions 500 --requests-per-second 2000 --memory-bytes 1000000000"
    )
    told = dict(row.split("  ", 1) for row in offline(line).out.splitlines())
    found = offline(f"{line} --json").json

    assert told["requests"].strip() == f"{2000 * 86400:,}"
    assert told["servers"].strip() == "4"
    assert found["requests"] == pytest.approx(2000 * 86400)
    assert found["conditions"]["memory_bytes"] == 1_000_000_000
    assert found["moves"] >= 500 / 4
    assert 0.5 < found["hops"] / found["requests"] < 0.8
    refused = offline("simulate sparse --cells 2 --seconds 1")
    assert (refused.code, "no requests" in refused.err) == (2, True)
