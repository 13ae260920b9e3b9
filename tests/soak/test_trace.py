"""The simulation says beforehand what a server will do: both replay the same trace."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autoscaler.decision import ScalingSpec
from autoscaler.simulation.replay import simulate_traces
from autoscaler.simulation.result import SimulationConditions
from autoscaler.simulation.traces import TrafficTrace
from tests.conftest import Report
from tests.end_to_end import models
from tests.load import Answer, Client, drive
from tests.server import Server, running_server, until

NAME = "projects/soak/models/trace/versions/v1"
SERVICE = 0.05


@dataclass(frozen=True)
class Size:
    """How long a trace is, how long a version stays awake, how long pauses are in idle windows, how near
    the server must come."""

    seconds: float
    idle: float
    tick: float
    pauses: tuple[float, ...]
    tolerance: float


# In a short one each moment is a large part: its pauses stay away from where one decides.
SHORT = Size(40, 4, 0.2, (0.4, 2.2), 0.2)
LONG = Size(1200, 20, 1.0, (0.3, 0.6, 1.4, 2.0), 0.1)


@pytest.mark.parametrize(
    "size",
    [SHORT, pytest.param(LONG, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
    ids=["short", "long"],
)
def test_a_server_does_what_the_simulation_says(tmp_path: Path, report: Report, size: Size) -> None:
    """Node-seconds and cold starts, at real speed, with the start times that were measured."""
    seconds, idle = size.seconds, size.idle
    policy = ScalingSpec(
        max_nodes=2,
        target_concurrency=2,
        idle_window=idle,
        stable_window=6,
        panic_window=1,
        scale_down_delay=6,
    )
    trace = TrafficTrace("v1", moments(size), seconds)
    with running_server(tmp_path / "state", *flags(policy), "--tick", str(size.tick)) as server:
        server.create_model(NAME.partition("/versions")[0])
        server.create_version(NAME, **models.routine(tmp_path))
        until(lambda: server.get_status()["pilots"][0]["state"] == "lit", "the pilot is lit")
        until(lambda: not server.nodes(), "it sleeps", seconds=3 * idle + 30)
        before = version(server)

        answers = drive(replay(server, trace))

        until(lambda: not server.nodes(), "it sleeps again", seconds=3 * idle + 30)
        after = version(server)
        starts = after["startSeconds"]["forked"]
        assert server.stop() == 0

    assert [answer.status for answer in answers] == [200] * len(trace.moments)
    result = simulate_traces(
        [trace],
        policy,
        SimulationConditions(start_seconds=[starts], service_seconds=SERVICE + 0.002, tick=size.tick),
    )
    node_seconds = after["nodeSeconds"] - before["nodeSeconds"]
    cold_starts = after["wakeups"]["ready"] - before["wakeups"].get("ready", 0)
    report(
        f"trace of {seconds:.0f} s, {len(answers)} requests: {node_seconds:.0f} node-seconds, {cold_starts} "
        f"cold starts; simulated {result.node_seconds:.0f} and {result.cold_starts}"
    )
    assert node_seconds == pytest.approx(result.node_seconds, rel=size.tolerance)
    assert cold_starts == pytest.approx(result.cold_starts, rel=size.tolerance)


def moments(size: Size) -> list[float]:
    """Spells of steady and of bursty requests, with pauses shorter and longer than the idle window."""
    random_ = random.Random(17)
    found: list[float] = []
    now = 0.5
    while now < size.seconds - size.idle:
        rate, end = random_.choice([1.0, 5.0, 60.0]), now + random_.uniform(0.2, 1.0) * size.idle
        while now < min(end, size.seconds):
            found.append(now)
            now += random_.expovariate(rate)
        now += size.idle * random_.choice(size.pauses)
    return found


def flags(policy: ScalingSpec) -> list[str]:
    """The policy as the server's flags."""
    given = {
        "idle-timeout": policy.idle_window,
        "stable-window": policy.stable_window,
        "panic-window": policy.panic_window,
        "scale-down-delay": policy.scale_down_delay,
        "target-concurrency": policy.target_concurrency,
        "max-nodes": policy.max_nodes,
    }
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def version(server: Server) -> dict[str, Any]:
    """What `GET /nodes` tells of the version."""
    found: dict[str, Any] = server.get_status()["versions"][0]
    return found


async def replay(server: Server, trace: TrafficTrace) -> list[Answer]:
    """Send each request when it is due."""
    client = Client(server.url, NAME)
    start = time.perf_counter()
    asked = []
    for moment in trace.moments:
        if (wait := start + moment - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        asked.append(asyncio.create_task(client.ask([f"sleep {SERVICE}"], start + moment)))
    answers = await asyncio.gather(*asked)
    client.close()
    return list(answers)
