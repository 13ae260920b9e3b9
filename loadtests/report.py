"""The report of a run, from the folder it was recorded in.

    python -m loadtests.report FOLDER

writes into the folder

- `report.png`: the run as a picture;
- `report.txt`, which it also prints: percentiles, failures, node-seconds, wake-ups, and what of the shape's
  objective was met;
- `seconds.csv`: the run second by second.

The exit code is 1 when the objective was missed.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterable
from pathlib import Path

from loadtests.run_plot import draw_report
from loadtests.run_record import RunRecord, read_run
from loadtests.summary import (
    Latencies,
    RunSummary,
    SecondStats,
    WakeUp,
    format_duration,
    summarize_run,
    summarize_seconds,
)

_CHECK_WORDS = {True: "ok", False: "FAILED", None: "not judged"}
_MOST_REASONS = 5
# Above this the figures say more about the loading machine than about the server.
_LATE_SECONDS = 0.02


def main() -> int:
    """Write the report of the folder in the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.report", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="what --report named when the run was made"
    )
    folder: Path = parser.parse_args().folder
    try:
        record = read_run(folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"{folder} holds no recorded run: {error}", file=sys.stderr)
        return 2
    summary = write_report(folder, record)
    print(format_report(record, summary))
    return 0 if summary.passed else 1


def write_report(folder: Path, record: RunRecord) -> RunSummary:
    """Write the plot, the text and the table of a run into a folder."""
    summary = summarize_run(record)
    seconds = summarize_seconds(record)
    (folder / "report.txt").write_text(f"{format_report(record, summary)}\n")
    _write_second_stats(folder / "seconds.csv", seconds)
    draw_report(folder / "report.png", format_title(record, summary), record, summary, seconds)
    return summary


def format_title(record: RunRecord, summary: RunSummary) -> str:
    found = summary.latencies
    parts = [
        f"{summary.requests:,} requests, {summary.failed:,} failed",
        _format_latencies(found),
    ]
    wakes = [wake.latency for wake in summary.wake_ups if wake.nodes == 0 and math.isfinite(wake.latency)]
    if wakes:
        parts.append(f"woke in {format_duration(max(wakes))}{' at most' if len(wakes) > 1 else ''}")
    if summary.node_seconds is not None:
        parts.append(f"{summary.node_seconds:,.0f} node-seconds")
    verdict = "passed" if summary.passed else "FAILED"
    return f"{record.run.plan.shape} {verdict}: {'; '.join(parts)}"


def format_report(record: RunRecord, summary: RunSummary) -> str:
    run, found = record.run, summary.latencies
    peak = max(stage.rate for stage in run.plan.stages)
    verdict = "passed" if summary.passed else "FAILED"
    lines = [
        f"{run.plan.shape}: {verdict}",
        _format_line("target", f"{run.target} at {run.host}, instances per request: {run.rows}"),
        _format_line(
            "load", f"at most {peak:g} requests/s and {run.users} in flight, {summary.seconds:.0f} s"
        ),
        _format_line("requests", f"{summary.requests:,}, failed {summary.failed:,}"),
        *[
            _format_line("", f"{times:,} x {reason}")
            for reason, times in summary.failures.most_common(_MOST_REASONS)
        ],
        _format_line("latency", _format_latencies(found)),
        *[
            _format_line("wake-up" if wake.nodes == 0 else "first reply", _format_wake_up(wake))
            for wake in summary.wake_ups
        ],
        _format_line("nodes", _format_nodes(summary)),
        _format_line("loader", _format_loader(summary)),
        *[
            _format_line(_CHECK_WORDS[check.passed], f"{check.demand}: {check.found}")
            for check in summary.checks
        ],
    ]
    return "\n".join(lines)


def _format_latencies(found: Latencies) -> str:
    p50, p99, longest = map(format_duration, (found.p50, found.p99, found.max))
    return f"p50 {p50}, p99 {p99}, max {longest}"


def _format_line(head: str, rest: str) -> str:
    return f"  {head:<11} {rest}"


def _format_wake_up(wake: WakeUp) -> str:
    nodes = {None: "nodes unknown", 0: "asleep", 1: "1 node there"}
    there = nodes.get(wake.nodes, f"{wake.nodes} nodes there")
    return f"at {wake.at:.0f} s, {there}: {format_duration(wake.latency)}"


def _format_nodes(summary: RunSummary) -> str:
    if summary.node_seconds is None:
        return "unknown: the server does not answer /nodes"
    return f"at most {summary.most_nodes}, {summary.node_seconds:,.1f} node-seconds"


def _format_loader(summary: RunSummary) -> str:
    lateness = format_duration(summary.lateness)
    late = f"sent {lateness} late (p99), {summary.waited:,} requests waited for a free user"
    if summary.lateness > _LATE_SECONDS:
        return f"{late}; THIS MACHINE IS TOO BUSY to measure well"
    return late


def _write_second_stats(file: Path, seconds: Iterable[SecondStats]) -> None:
    with file.open("w", newline="") as output:
        rows = csv.writer(output)
        rows.writerow(("second", "answered", "failed", "p50", "p99", "max", "ready", "starting"))
        for one in seconds:
            found = one.latencies
            times = ("" if math.isnan(time) else f"{time:.6f}" for time in (found.p50, found.p99, found.max))
            rows.writerow((one.second, one.answered, one.failed, *times, one.ready, one.starting))


if __name__ == "__main__":
    raise SystemExit(main())
