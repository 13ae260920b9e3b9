from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loadtests.bench import report
from loadtests.bench.reporting import tables
from loadtests.bench.reporting.results import (
    BenchResults,
    LoadResult,
    MeasurementFailure,
    ServerResult,
    format_row,
)

RESULTS = BenchResults(
    [
        LoadResult("echo", "iris", "W1", 1, 9000, 100, 200),
        LoadResult("echo", "iris", "W1", 64, 40000, 1500, 3000),
        LoadResult("node", "iris", "W1", 1, 7000, 140, 300, cpu_us=90, front_cpu_us=90),
        LoadResult("node", "iris", "W1", 16, 20000, 800, 1600),
        LoadResult("node", "iris", "W1", 64, 24000, 2500, 5000, cpu_us=40, front_cpu_us=40),
        LoadResult("gateway", "iris", "W1", 1, 5000, 200, 400),
        LoadResult("gateway", "iris", "W1", 64, 15000, 4000, 9000, cpu_us=66, front_cpu_us=26),
        LoadResult("fastapi-naive", "iris", "W1", 1, 1800, 500, 900),
        LoadResult("fastapi-naive", "iris", "W1", 64, 2400, 26000, 50000),
        LoadResult("asgi-best-batch", "iris", "W1", 16, 20000, 800, 3200),
        LoadResult("node", "tf-img", "W6", 16, 300, 50000, 60000),
    ],
    [ServerResult("node", "iris", 1.25, 210, 190, 1), ServerResult("mine", "iris", None, 100, 90, 1)],
    [],
)


def rows(table: str) -> dict[str, list[str]]:
    """Cells by the first one."""
    lines = [[cell.strip() for cell in one.strip("|").split("|")] for one in table.splitlines()]
    return {name: cells for name, *cells in lines}


def test_rates_are_those_of_the_busiest_load() -> None:
    """64 connections, or the most that a workload took; the fastest first; gaps stay empty."""
    found = rows(tables.rates_table(RESULTS))

    assert next(iter(found)) == "requests/s"
    assert list(found)[2].startswith("echo")
    assert found["requests/s"] == ["W1", "W6"]
    assert found["**`pilotlight node`**"] == ["**24,000**", "**300**"]
    assert found["FastAPI"] == ["2,400", ""]


def test_latencies_are_those_of_one_connection() -> None:
    """In milliseconds, the quickest first."""
    found = rows(tables.latencies_table(RESULTS))

    assert found["**`pilotlight node`**"] == ["**0.14**", ""]
    assert list(found)[-1] == "FastAPI"


def test_ratios_say_how_ours_relate() -> None:
    """To the echo, to each other, to the best of the others."""
    found = rows(tables.ratios_table(RESULTS))

    assert found["node / echo, requests/s"][0] == "0.60"
    assert found["gateway / node, requests/s"][0] == "0.62"
    assert found["node / FastAPI, requests/s"][0] == "10.0"
    assert found["gateway minus node, p50 on one connection, µs"][0] == "60"
    assert found["best other / gateway, p50 on one connection"][0] == "2.5"
    assert found["node, p99 / p50 at 16, of that of bare ASGI with batching"][0] == "0.50"


def test_what_stands_in_front_is_beside_the_node() -> None:
    """Rate, latency and CPU time of each, and the rate that the last allows."""
    proxy = [
        LoadResult("nginx", "iris", "W1", 1, 5000, 190, 400),
        LoadResult("nginx", "iris", "W1", 64, 18000, 3000, 9000, cpu_us=60, front_cpu_us=20),
    ]
    table = tables.in_front_table(BenchResults([*RESULTS.loads, *proxy], [], []))

    assert table.splitlines()[3:] == [
        "| W1 | **`pilotlight serve` (gateway and node)** | 15,000 | 0.62 | 0.2 | 60 | 26 | 38,500 |",
        "| W1 | node behind nginx | 18,000 | 0.75 | 0.19 | 50 | 20 | 50,000 |",
    ]
    assert tables.in_front_table(RESULTS) == ""


def test_costs_and_processes() -> None:
    """CPU time where it was measured; start and memory, a start only where there was one."""
    assert rows(tables.costs_table(RESULTS))["**`pilotlight serve` (gateway and node)**"][0] == "66 / 26"
    assert rows(tables.processes_table(RESULTS))["**`pilotlight node`**"] == ["1.2 / 190"]
    assert rows(tables.processes_table(RESULTS))["mine"] == ["? / 90"]


def test_tables_are_put_into_a_document() -> None:
    """In place of what stood there; a place without a table keeps what it has."""
    document = "a\n<!-- bench:rates -->\nold\n<!-- end -->\nb\n<!-- bench:none -->\nkept\n<!-- end -->\n"

    assert report.insert_tables(document, {"rates": "| new |"}) == document.replace("old", "| new |")


def test_what_went_wrong_is_told() -> None:
    """A wrong answer, a request that failed, a server that did not start; each once."""
    wrong = LoadResult("node", "iris", "W1", 1, 1, 1, 1, 0, 10, 2, "body 3: 1.0 instead of 2.0")
    found = BenchResults([wrong, wrong], [], [MeasurementFailure("mine", "iris", "no answer")])

    said = report.list_problems(found)

    assert said == [
        "WRONG: node, W1: body 3: 1.0 instead of 2.0",
        "2 of 10 requests failed: node, W1, 1 connections",
        "not measured: mine, iris: no answer",
    ]
    assert report.list_problems(RESULTS) == []


def test_the_command_writes_tables_and_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed, into a document, and as pictures."""
    file, document = tmp_path / "results.jsonl", tmp_path / "document.md"
    file.write_text("\n".join([*map(format_row, RESULTS.loads), *map(format_row, RESULTS.processes)]))
    document.write_text("<!-- bench:latencies -->\n<!-- end -->\n")
    images = tmp_path / "images"
    options = ["--images", str(images), "--into", str(document), "--tables", "latencies"]
    monkeypatch.setattr(sys, "argv", ["report", str(file), *options])

    assert report.main() == 0

    printed = capsys.readouterr().out
    assert "### latencies" in printed
    assert "### rates" not in printed
    assert "**0.14**" in document.read_text()
    pictures = [images / "bench-rates.png", images / "bench-latencies.png"]
    assert all(one.read_bytes().startswith(b"\x89PNG") for one in pictures)


def test_a_file_that_is_no_result_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage, and no traceback."""
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path / "none.jsonl")])

    assert report.main() == 2
    assert "none.jsonl" in capsys.readouterr().err
