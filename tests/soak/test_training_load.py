"""Training jobs that print or compute as much as they can, beside the server: the long forms."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import psutil
import pytest

from tests.conftest import Report
from tests.end_to_end import models
from tests.end_to_end.jobs import finished, get, submit
from tests.end_to_end.training_jobs import PARENT, list_log, texts, training_job, write_wheel
from tests.load import Answer, Client, drive
from tests.server import Server, running_server, until
from training.logs.reader import LogPosition, LogQuery, position_of, read_entries

# Prints numbers at a rate, as far as the processor allows it, for some seconds.
PRINTING = """
    import argparse, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir")
    parser.add_argument("--rate", type=float)
    parser.add_argument("--seconds", type=float)
    args = parser.parse_args()
    begin, number = time.monotonic(), 0
    while (passed := time.monotonic() - begin) < args.seconds:
        for number in range(number, int(passed * args.rate)):
            print("line", number)
        number = int(passed * args.rate)
        time.sleep(0.02)
    open(f"{args.job_dir}/{time.time_ns()}.count", "w").write(str(number))
    # The master's end is the job's.
    time.sleep(5)
"""
RATE, REPLICAS = 10_000, 4
TASKS = ("master-replica-0", "worker-replica-0", "worker-replica-1", "worker-replica-2")


@pytest.mark.parametrize(
    "seconds", [pytest.param(5, id="short"), pytest.param(60, marks=pytest.mark.soak, id="a minute")]
)
@pytest.mark.timeout(900)
def test_many_lines_of_four_replicas(tmp_path: Path, report: Report, seconds: int) -> None:
    """None is lost below the cap, those of each replica are in order, and the gateway hardly works."""
    out, state = tmp_path / "out", tmp_path / "state"
    job = training_job(
        "printing", write_wheel(tmp_path, PRINTING), jobDir=str(out), scaleTier="CUSTOM",
        masterType="n1-standard-4", workerType="n1-standard-4", workerCount=str(REPLICAS - 1),
        args=["--rate", str(RATE // REPLICAS), "--seconds", str(seconds)],
    )  # fmt: skip
    with running_server(state, "--training-log-bytes", str(1 << 30)) as server:
        name = submit(server, job)
        until(lambda: get(server, name)["state"] == "RUNNING", "it runs")
        gateway = psutil.Process(server.process.pid)
        before, begin = sum(gateway.cpu_times()[:2]), time.monotonic()
        until(lambda: len(list(out.glob("*.count"))) == REPLICAS, "all is printed", seconds=seconds + 100)
        used, took = sum(gateway.cpu_times()[:2]) - before, time.monotonic() - begin
        assert finished(server, name)["state"] == "SUCCEEDED"
        printed = sum(int(file.read_text()) for file in out.glob("*.count"))
        (folder,) = (state / "jobs").glob("*/logs")
        found = {task: list(_read_numbers(folder, task)) for task in TASKS}
        assert server.stop() == 0
    report(
        f"{printed} lines of {REPLICAS} replicas in {took:.1f} s ({printed / took:.0f}/s, asked {RATE}/s), "
        f"{sum(map(len, found.values()))} in the log; gateway {100 * used / took:.1f} % of a core; load "
        f"{os.getloadavg()[0]:.1f}"
    )
    assert sum(map(len, found.values())) == printed
    assert all(numbers == list(range(len(numbers))) for numbers in found.values())
    assert used / took <= 0.1


def _read_numbers(folder: Path, task: str) -> Iterator[int]:
    position = LogPosition()
    while entries := read_entries(folder, LogQuery(after=position, task=task, limit=20_000)):
        position = position_of(entries[-1])
        yield from (int(entry.text.split()[1]) for entry in entries)


# As many processes as there are cores compute without a pause.
COMPUTING = """
    import os
    print("computing", flush=True)
    for _ in range(len(os.sched_getaffinity(0)) - 1):
        if os.fork() == 0:
            break
    while True:
        sum(range(100_000))
"""
ROUNDS, SECONDS, PACE = 8, 8.0, 100
VERSION = f"{PARENT}/models/beside/versions/v1"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_predictions_beside_training_on_all_cores(tmp_path: Path, report: Report) -> None:
    """Their 99th percentile is at most twice what it is without, in turns on one server."""
    models.write_sklearn(tmp_path / "model")
    rows = models.data()[0].tolist()
    wheel = write_wheel(tmp_path, COMPUTING)
    without: list[float] = []
    beside: list[float] = []
    with running_server(tmp_path / "state") as server:
        server.create_model(f"{PARENT}/models/beside")
        server.create_version(VERSION, deploymentUri=str(tmp_path / "model"))
        drive(_measure_p99(server, rows))
        for number in range(ROUNDS):
            without.append(drive(_measure_p99(server, rows)))
            job_id = f"computing_{number}"
            name = submit(server, training_job(job_id, wheel))
            until(lambda job_id=job_id: "computing" in texts(list_log(server, job_id)), "it computes")  # type: ignore[misc]
            beside.append(drive(_measure_p99(server, rows)))
            assert server.call("POST", f"{name}:cancel").status == 200
            assert finished(server, name)["state"] == "CANCELLED"
        assert server.stop() == 0
    ratio = median(beside) / median(without)
    report(
        f"p99 of predictions at {PACE}/s, {ROUNDS} rounds of {SECONDS:g} s in turns: alone "
        f"{_in_milliseconds(without)}, beside training on all cores {_in_milliseconds(beside)}; medians "
        f"{1000 * median(without):.2f} and {1000 * median(beside):.2f} ms, {ratio:.2f} times; load "
        f"{os.getloadavg()[0]:.1f}"
    )
    assert ratio <= 2.0


async def _measure_p99(server: Server, rows: list[list[float]]) -> float:
    client = Client(server.url, VERSION)
    answers: list[Answer] = await client.pace(PACE, SECONDS, lambda number: [rows[number % len(rows)]])
    client.close()
    assert {answer.status for answer in answers} == {200}
    return sorted(answer.seconds for answer in answers)[int(0.99 * len(answers))]


def _in_milliseconds(seconds: list[float]) -> str:
    return " ".join(f"{1000 * one:.1f}" for one in seconds)
