"""Sleep and wake-up, bursts, and nodes that die, on a real server: no request may be lost.

Each promise has a short form here and a long one that `make soak` runs.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.conftest import Report
from tests.end_to_end import models
from tests.end_to_end.conftest import Files
from tests.load import Answer, Client, drive
from tests.server import Server, running_server, until

pytestmark = pytest.mark.alone

MODEL = "projects/scale/models/m"
FOREST = f"{MODEL}/versions/forest"
ROUTINE = f"{MODEL}/versions/routine"
HARDY = f"{MODEL}/versions/hardy"


def short_or_long(short: float, long: float) -> pytest.MarkDecorator:
    """A number for every run of the tests, and one for `make soak`."""
    return pytest.mark.parametrize(
        "size",
        [short, pytest.param(long, marks=[pytest.mark.soak, pytest.mark.timeout(600)])],
        ids=["short", "long"],
    )


@pytest.fixture(scope="module")
def scaler(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[Server]:
    """A server on which versions fall asleep within a second, with at most two nodes each."""
    state_dir = tmp_path_factory.mktemp("scaler") / "state"
    flags = (
        "--idle-timeout", "1", "--stable-window", "2", "--panic-window", "0.5", "--scale-down-delay", "0.5",
        "--tick", "0.1", "--max-nodes", "2",
    )  # fmt: skip
    with running_server(state_dir, *flags) as server:
        server.create_model(MODEL)
        server.create_version(FOREST, deploymentUri=str(files.root / "sklearn"))
        routine = models.routine(state_dir.parent)
        server.create_version(ROUTINE, **routine)
        server.create_version(HARDY, **routine, labels={"pilotlight-repeatable": "on"})
        yield server
        assert server.stop() == 0


def version(server: Server, name: str) -> dict[str, Any]:
    """What `GET /nodes` tells of one version."""
    return next(found for found in server.get_status()["versions"] if found["version"] == name)


def asleep(server: Server, name: str) -> None:
    """Wait until no process of the version is left."""
    until(lambda: not server.nodes(name), f"{name} is asleep")


def pilot(server: Server, key: str) -> int:
    """The pid of a lit pilot."""

    def ready() -> int | None:
        pids = [found["pid"] for found in server.get_status()["pilots"] if found["pilot"] == key]
        states = [found["state"] for found in server.get_status()["pilots"] if found["pilot"] == key]
        return pids[0] if states == ["lit"] else None

    return until(ready, f"the pilot {key} is lit")


def rows(count: int) -> list[list[list[float]]]:
    """Requests of one row each, all different."""
    values = np.random.default_rng(11).normal(size=(count, 4)).round(6)
    return [[row] for row in values.tolist()]


def all_right(answers: list[Answer], wanted: list[Any]) -> None:
    """Every request was answered, with its own answer."""
    failed = [answer for answer in answers if answer.status != 200]
    assert not failed, f"{len(failed)} of {len(answers)} failed, e.g. {failed[0]}"
    assert [answer.predictions for answer in answers] == wanted


def summary(answers: list[Answer]) -> str:
    """What became of them, for people."""
    seconds = sorted(answer.seconds for answer in answers)
    failed = sum(answer.status != 200 for answer in answers)
    p50, p99 = (seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99))
    return f"{failed} failed; p50 {p50 * 1e3:.1f}, p99 {p99 * 1e3:.0f}, max {seconds[-1] * 1e3:.0f} ms"


# ---- sleep and wake-up


def test_a_version_falls_asleep_and_wakes_forked(scaler: Server, files: Files) -> None:
    """Zero processes after the idle time; the next request wakes one from the pilot and is told the price."""
    pilot(scaler, "tabular")
    asleep(scaler, FOREST)

    reply = scaler.predict(FOREST, [[1, 2, 3, 4]])

    assert reply.json == {"predictions": files.sklearn.predict([[1, 2, 3, 4]]).tolist()}
    (node,) = version(scaler, FOREST)["nodes"]
    assert node["forked"]
    timing = dict(part.split(";dur=") for part in reply.headers["server-timing"].split(", "))
    assert timing.keys() >= {"queue", "start", "load", "warm", "parse", "infer", "encode"}
    assert "server-timing" not in scaler.predict(FOREST, [[1, 2, 3, 4]]).headers
    asleep(scaler, FOREST)


@short_or_long(4, 50)
def test_no_request_fails_at_the_edge_of_sleep(
    scaler: Server, files: Files, report: Report, size: float
) -> None:
    """A trickle whose gaps end just when the node is going, over many falls asleep."""

    async def trickle() -> list[Answer]:
        client = Client(scaler.url, FOREST)
        answers = []
        for number in range(int(size)):
            # Gaps that end before, at, and after the moment of the fall.
            await asyncio.sleep(1.0 + [0.1, 0.6, 0.11, 0.9, 0.05][number % 5])
            answers += await asyncio.gather(*(client.ask(instances) for instances in rows(3)))
        client.close()
        return answers

    before = version(scaler, FOREST)["wakeups"].get("ready", 0)
    answers = drive(trickle())
    woken = version(scaler, FOREST)["wakeups"].get("ready", 0) - before

    all_right(answers, [files.sklearn.predict(instances).tolist() for instances in rows(3)] * int(size))
    assert woken <= size, "it was woken more often than it was left alone"
    report(
        f"trickle: {len(answers)} requests around {size:.0f} idle times, {woken} wake-ups: {summary(answers)}"
    )


def test_a_sleeping_version_tells_when_it_was_last_used(scaler: Server) -> None:
    """`lastUseTime`, to the second."""
    before = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    assert scaler.predict(ROUTINE, [1]).status == 200

    last = scaler.call("GET", ROUTINE).json["lastUseTime"]

    assert before <= last <= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# ---- bursts from zero


@pytest.mark.parametrize("killed", ["nothing", "node", "pilot"])
def test_a_burst_on_a_sleeping_version_is_answered_to_the_last(
    scaler: Server, files: Files, report: Report, killed: str
) -> None:
    """A thousand requests at once, none lost, even when a node or the pilot is killed in the middle."""
    burst = rows(1000)
    wanted = files.sklearn.predict([row for (row,) in burst])
    pid = pilot(scaler, "tabular")
    asleep(scaler, FOREST)

    async def main() -> list[Answer]:
        client = Client(scaler.url, FOREST, timeout=90)
        asked = await client.burst(burst)
        if killed == "pilot":
            os.kill(pid, signal.SIGKILL)
        elif killed == "node":
            for answered in itertools.islice(asyncio.as_completed(asked), 100):
                await answered
            nodes = [child for child in server.children() if child.name() == "pilotlight-node"]
            assert nodes
            nodes[0].kill()
            assert sum(one.done() for one in asked) < 900
        answers = await asyncio.gather(*asked)
        client.close()
        return answers

    server = psutil.Process(scaler.process.pid)
    answers = drive(main())
    all_right(answers, [[label] for label in wanted.tolist()])
    report(f"burst of {len(burst)} from zero, {killed} killed: {summary(answers)}")


# ---- nodes that die under load


@short_or_long(10, 60)
def test_killed_nodes_and_a_poison_request_cost_nobody_else(
    scaler: Server, report: Report, size: float
) -> None:
    """A random node is killed every 3 s, at half the capacity; one request ends its node each time.

    The short form measures the capacity for 3 s only, which may be too much: it keeps to a third of that.
    """

    def instances(number: int) -> list[Any]:
        return [number]

    pilot(scaler, "tabular")

    async def main() -> tuple[list[Answer], list[Answer], int]:
        client, kills = Client(scaler.url, HARDY), 0
        seconds, share = (20, 0.5) if size > 20 else (3, 0.33)
        await client.ask([0])  # the capacity is that of nodes, without their start
        sustained = await client.saturate(32, seconds, instances)
        rate = share * len(sustained) / seconds
        stream = asyncio.create_task(client.pace(rate, size, instances))
        poison: list[Answer] = []
        while not stream.done():
            await asyncio.wait([stream], timeout=3)
            if not stream.done():
                pids = await asyncio.to_thread(scaler.nodes, HARDY)
                if pids:
                    with suppress(ProcessLookupError):  # it has ended just now
                        os.kill(random.choice(pids), signal.SIGKILL)
                        kills += 1
                if not poison:
                    poison.append(await client.ask(["exit 3"]))
        answers = await stream
        client.close()
        return answers, poison, kills

    answers, (poison,), kills = drive(main())
    assert kills
    all_right(answers, [[2.0 * number] for number in range(len(answers))])
    assert poison.status == 500
    assert b"exit code 3" in poison.body
    report(
        f"{size:.0f} s at {len(answers) / size:.0f} requests/s, {kills} nodes killed and one poison request: "
        f"{summary(answers)}"
    )


@pytest.mark.soak
def test_requests_that_wait_cost_the_gateway_little_more(scaler: Server, report: Report) -> None:
    """CPU time of the gateway per request: with 2,000 that wait for a slot, beside 32 at a time, by turns.

    If it were more than about three times, a queue that a moment of trouble left behind would never shrink
    at half the capacity.
    """
    gateway = psutil.Process(scaler.process.pid)

    def read_cpu_seconds() -> float:
        times = gateway.cpu_times()
        return times.user + times.system

    async def measure(users: int) -> float:
        client = Client(scaler.url, HARDY)
        await client.saturate(users, 2, lambda number: [number])
        before = read_cpu_seconds()
        answers = await client.saturate(users, 4, lambda number: [number])
        spent = read_cpu_seconds() - before
        client.close()
        assert {answer.status for answer in answers} == {200}
        return spent / len(answers)

    async def main() -> list[tuple[float, float]]:
        return [(await measure(32), await measure(2000)) for _ in range(3)]

    rounds = drive(main())
    ratio = statistics.median(waiting / quick for quick, waiting in rounds)
    quick, waiting = (statistics.median(costs) * 1e6 for costs in zip(*rounds, strict=True))
    report(
        f"CPU of the gateway per request: {quick:.0f} us, while 2,000 wait {waiting:.0f} ({ratio:.2f} times)"
    )
    assert ratio < 2.4


def test_without_leave_no_request_is_computed_twice(scaler: Server, tmp_path: Path) -> None:
    """A routine whose owner has not said so: the request it worked on fails, those behind it do not."""
    gate = tmp_path / "gate"

    async def main() -> tuple[Answer, list[Answer]]:
        client = Client(scaler.url, ROUTINE)
        first = asyncio.create_task(client.ask([f"wait {gate}"]))
        await asyncio.to_thread(until, gate.with_name("gate.reached").exists, "the routine works on it")
        behind = await client.burst([[number] for number in range(20)])
        await asyncio.sleep(0.3)
        for pid in await asyncio.to_thread(scaler.nodes, ROUTINE):
            os.kill(pid, signal.SIGKILL)
        answers = await first, await asyncio.gather(*behind)
        client.close()
        return answers

    first, behind = drive(main())
    assert first.status == 500
    assert b"SIGKILL" in first.body
    all_right(behind, [[2.0 * number] for number in range(20)])
