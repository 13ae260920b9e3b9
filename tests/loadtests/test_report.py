from __future__ import annotations

import csv
import os
import struct
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.node_counts import NodeCounts
from loadtests.report import format_report, format_title, write_report
from loadtests.run_record import RunRecord, RunWriter, read_run
from loadtests.summary import summarize_run
from tests.loadtests.runs import REQUESTS, RUN, record

ROOT = Path(__file__).parents[2]
ODD = 'status 500: {"error": "a, b"}\nand more'


def recorded(folder: Path, wanted: RunRecord) -> Path:
    """A folder as a run leaves it."""
    writer = RunWriter(folder, replace(wanted.run, ended=None))
    for request in reversed(wanted.requests):
        writer.add_request(request)
    for sample in wanted.samples:
        writer.add_nodes(sample.at, NodeCounts(sample.ready, sample.starting, sample.draining))
    writer.close(wanted.run.ended)
    return folder


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    """In the order in which it was due, whatever the order of the answers."""
    wanted = record([replace(REQUESTS[0], failure=ODD), *REQUESTS[1:]])
    found = read_run(recorded(tmp_path / "run", wanted))

    assert found.run == wanted.run
    assert found.samples == wanted.samples
    assert [one.failure for one in found.requests] == [ODD, *[""] * 99]
    assert [one.latency for one in found.requests] == pytest.approx([one.latency for one in wanted.requests])


def test_a_run_that_was_killed_can_be_read(tmp_path: Path) -> None:
    """Without its end, and with half a line."""
    writer = RunWriter(tmp_path, RUN)
    writer.add_request(REQUESTS[0])
    writer.add_nodes(11, NodeCounts(1, 0, 0))
    writer.flush()
    with (tmp_path / "requests.csv").open("a") as output:
        output.write("10.1,9.")
    found = read_run(tmp_path)
    writer.close(None)

    assert len(found.requests) == len(found.samples) == 1


def test_the_report_tells_the_numbers_and_the_verdict(tmp_path: Path) -> None:
    """All of them, in words."""
    wanted = record()

    assert format_report(wanted, summarize_run(wanted)).splitlines() == [
        "idle-wake-idle: passed",
        "  target      projects/p/models/m at http://host:1, instances per request: 1",
        "  load        at most 10 requests/s and 8 in flight, 30 s",
        "  requests    100, failed 0",
        "  latency     p50 10 ms, p99 10 ms, max 1 s",
        "  wake-up     at 10 s, asleep: 1 s",
        "  nodes       at most 1, 15.5 node-seconds",
        "  loader      sent 1 ms late (p99), 0 requests waited for a free user",
        "  ok          the run comes to its end: yes",
        "  ok          every request is answered: 100 of 100",
        "  ok          the first answer after a pause within 2 s: 1 s at most",
        "  ok          p99 in the second half of each stage within 0.5 s: 10 ms at most",
        "  ok          no node at the end of each pause: none",
    ]
    assert format_title(wanted, summarize_run(wanted)) == (
        "idle-wake-idle passed: 100 requests, 0 failed; p50 10 ms, p99 10 ms, max 1 s; woke in 1 s; "
        "16 node-seconds"
    )


@pytest.mark.parametrize(
    "wanted",
    [
        record(),
        record(samples=[]),
        record([replace(one, failure="status 503") for one in REQUESTS]),
        record([], [], ended=None),
    ],
    ids=["good", "without nodes", "all failed", "empty"],
)
def test_every_run_makes_a_picture(tmp_path: Path, wanted: RunRecord) -> None:
    """About as wide as a README shows it, and not blank; beside it the text and the table."""
    write_report(tmp_path, wanted)
    picture = (tmp_path / "report.png").read_bytes()

    assert picture.startswith(b"\x89PNG")
    assert struct.unpack(">2I", picture[16:24]) == (1000, 700)
    assert len(picture) > 10_000
    assert (tmp_path / "report.txt").read_text().startswith("idle-wake-idle: ")


def test_the_table_of_seconds(tmp_path: Path) -> None:
    """For other tools; a cell is empty where there is nothing to tell."""
    write_report(tmp_path, record())
    head, *rows = list(csv.reader((tmp_path / "seconds.csv").read_text().splitlines()))

    assert head == ["second", "answered", "failed", "p50", "p99", "max", "ready", "starting"]
    assert rows[9] == ["9", "0", "0", "", "", "", "0", "0"]
    assert rows[10] == ["10", "9", "0", "0.010000", "1.000000", "1.000000", "1", "0"]


def command(arguments: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """`python -m loadtests.report`."""
    return subprocess.run(
        [sys.executable, "-m", "loadtests.report", *arguments],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("wanted", "code"), [(record(), 0), (record(REQUESTS[1:]), 1)])
def test_the_command_makes_the_report_anew(tmp_path: Path, wanted: RunRecord, code: int) -> None:
    """Its exit code is the verdict."""
    done = command([str(recorded(tmp_path, wanted))])

    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout == (tmp_path / "report.txt").read_text()
    assert (tmp_path / "report.png").exists()


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    """In one line."""
    done = command([str(tmp_path)])

    assert done.returncode == 2
    assert "holds no recorded run" in done.stderr
    assert len(done.stderr.splitlines()) == 1
