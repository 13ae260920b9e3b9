"""Logging every request while its sink is down for long, and what that costs."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import joblib
import pytest
from sklearn.linear_model import LinearRegression

from autoscaler import machine
from tests.conftest import Report
from tests.emulator import Emulator, Front
from tests.load import Answer, Client, drive
from tests.server import Server, running_server, until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(2400),
    pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning"),
]

# Seconds, and requests per second.
DOWN, RATE = 600.0, 500.0
PAIRS, PHASE = 5, 20.0
USERS = 16
# How long processes take to get their size.
SETTLED = 60.0
MIB = 1 << 20

MODEL = "projects/soak/models/logged"
VERSION = f"{MODEL}/versions/v1"
ROW = [0.5, 1.5, 2.5, 3.5]


@pytest.fixture
def server(tmp_path: Path, front: Front) -> Iterator[Server]:
    """With the smallest of models, always awake, and a bucket that can fail."""
    (tmp_path / "model").mkdir()
    joblib.dump(LinearRegression().fit([[0, 0, 0, 0], [1, 1, 1, 1]], [0, 1]), tmp_path / "model/model.joblib")
    flags = ("--log-rotate-seconds", "5")
    environment = {"STORAGE_EMULATOR_HOST": front.url}
    with running_server(tmp_path / "state", *flags, environment=environment) as server:
        server.create_model(MODEL)
        server.create_version(
            VERSION, deploymentUri=str(tmp_path / "model"), autoScaling={"minNodes": 1, "maxNodes": 1}
        )
        until(lambda: server.nodes(VERSION), "it is awake")
        yield server


def sample(server: Server, address: str, share: float) -> None:
    """Log that share of the requests there."""
    config = {"bigqueryTableName": address, "samplingPercentage": share}
    reply = server.call(
        "PATCH", f"{VERSION}?updateMask=requestLoggingConfig", json={"requestLoggingConfig": config}
    )
    assert reply.status == 200, reply.json


def counts(server: Server) -> dict[str, int]:
    found: dict[str, int] = server.call("GET", "/stats").json["requestLog"]
    assert found["sampled"] == found["sent"] + found["waiting"] + found["dropped"]
    return found


def p99(answers: Sequence[Answer]) -> float:
    assert {answer.status for answer in answers} == {200}
    return sorted(answer.seconds for answer in answers)[int(len(answers) * 0.99)]


@asynccontextmanager
async def client(server: Server) -> AsyncIterator[Client]:
    found = Client(server.url, VERSION)
    yield found
    found.close()


def rows(emulator: Emulator, bucket: str) -> list[str]:
    """The ids of all records in the bucket."""
    return [
        json.loads(line)["record_id"]
        for blob in emulator._client.list_blobs(bucket)
        for line in emulator.get(f"gs://{bucket}/{blob.name}").splitlines()
    ]


def test_a_sink_that_is_down_for_long(
    tmp_path: Path, server: Server, front: Front, emulator: Emulator, report: Report
) -> None:
    """Memory stays flat and answers come, and all that was sampled is delivered once the sink is up."""
    bucket = emulator.bucket("logs")
    sample(server, f"gs://{bucket}/p", 1)
    front.fail(503, times=1 << 30)
    sizes: list[tuple[float, float]] = []

    def measure() -> float:
        return sum(machine.measure_memory(pid).private for pid in writing(server)) / MIB

    async def load() -> list[Answer]:
        async with client(server) as asking, asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch(measure, sizes))
            answers = await asking.pace(RATE, DOWN, lambda number: [ROW])
            watching.cancel()
            return answers

    answers: list[Answer] = drive(load())
    while_down = counts(server)
    front.fail(503, times=0)
    start = time.monotonic()
    until(lambda: counts(server)["waiting"] == 0, "all is delivered", seconds=300)
    took = time.monotonic() - start
    last = counts(server)
    found = rows(emulator, bucket)
    settled = [size for at, size in sizes if at >= min(SETTLED, DOWN / 2)]
    report(
        f"request log, sink down {DOWN:.0f} s at {RATE:.0f}/s: {len(answers)} answers, p99 "
        f"{p99(answers) * 1000:.1f} ms; gateway and writer {min(settled):.0f} to {max(settled):.0f} MiB "
        f"private; {while_down['waiting']} records waited, delivered within {took:.0f} s of its return"
    )

    assert last == {"sampled": len(answers), "sent": len(answers), "waiting": 0, "dropped": 0}
    assert len(found) == len(set(found)) == len(answers)
    assert max(settled) - min(settled) < 32


def writing(server: Server) -> list[int]:
    """The gateway and its log writer."""
    writers = [pid for pid, line in server.processes().items() if "serving.logs.sinks" in line]
    return [server.process.pid, *writers]


async def watch(measure: Callable[[], float], sizes: list[tuple[float, float]]) -> None:
    start = time.monotonic()
    while True:
        await asyncio.sleep(2)
        sizes.append((time.monotonic() - start, await asyncio.to_thread(measure)))


def test_answers_while_the_sink_is_down(
    server: Server, front: Front, emulator: Emulator, report: Report
) -> None:
    """Their p99 is at most 1.25 times that without logging: the median of alternating pairs."""
    bucket = emulator.bucket("logs")
    front.fail(503, times=1 << 30)

    async def phase() -> list[Answer]:
        async with client(server) as asking:
            return await asking.pace(RATE, PHASE, lambda number: [ROW])

    pairs = alternate(server, f"gs://{bucket}/p", lambda: p99(drive(phase())))
    ratio = statistics.median(on / off for off, on in pairs)
    report(
        f"request log on a sink that is down, {RATE:.0f}/s, p99 off/on ms: "
        + ", ".join(f"{off * 1000:.2f}/{on * 1000:.2f}" for off, on in pairs)
        + f"; median ratio {ratio:.2f}"
    )

    assert ratio <= 1.25


def test_what_logging_all_costs(server: Server, emulator: Emulator, report: Report) -> None:
    """At most a tenth of the throughput of the smallest model: the median of alternating pairs."""
    bucket = emulator.bucket("logs")

    async def phase() -> float:
        async with client(server) as asking:
            answers = await asking.saturate(USERS, PHASE, lambda number: [ROW])
            assert {answer.status for answer in answers} == {200}
            return len(answers) / PHASE

    pairs = alternate(server, f"gs://{bucket}/p", lambda: drive(phase()))
    ratio = statistics.median(on / off for off, on in pairs)
    report(
        "request log of all requests, requests/s off/on: "
        + ", ".join(f"{off:.0f}/{on:.0f}" for off, on in pairs)
        + f"; median ratio {ratio:.3f}"
    )

    assert ratio >= 0.9


def alternate(server: Server, address: str, measure: Callable[[], float]) -> list[tuple[float, float]]:
    """What is measured without and with logging, a few times in turn."""
    pairs = []
    for _ in range(PAIRS):
        sample(server, address, 0)
        off = measure()
        sample(server, address, 1)
        pairs.append((off, measure()))
    return pairs
