"""A crowd of rude clients in front of a real server: others are served as ever, and nothing leaks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.bounds import HANG_SECONDS
from tests.conftest import Report
from tests.end_to_end import models
from tests.load import Answer, Client, drive
from tests.server import Server, running_server, until

NAME = "projects/soak/models/crowd/versions/v1"
RATE = 50.0
MIB = 1 << 20


@dataclass(frozen=True)
class Size:
    """How many are idle, how many slow in some way, for how long, and what they may do to the others.

    `before` is for how many seconds the others are measured without them.
    """

    idle: int
    slow: int
    seconds: float
    before: float
    ratio: float


SHORT = Size(300, 50, 4, 1, 0)  # too short for a latency to mean anything
LONG = Size(5000, 200, 600, 60, 2.0)

FLAGS = ("--header-timeout", "2", "--body-timeout", "2", "--answer-timeout", "5")


@pytest.mark.parametrize(
    "size",
    [
        SHORT,
        pytest.param(LONG, marks=[pytest.mark.soak, pytest.mark.alone, pytest.mark.timeout(1800)]),
    ],
    ids=["short", "long"],
)
def test_a_rude_crowd_costs_others_little(tmp_path: Path, report: Report, size: Size) -> None:
    """All are answered in about the time that they took before; afterwards all that was held is let go."""
    with running_server(tmp_path / "state", *FLAGS) as server:
        server.create_model(NAME.partition("/versions")[0])
        server.create_version(NAME, **models.routine(tmp_path))
        process = psutil.Process(server.process.pid)
        ask(server, 1)  # so that nothing is done for the first time
        alone = ask(server, size.before)
        server.http.close()
        files, memory = process.num_fds(), process.memory_info().rss

        with crowd(server, size) as ended:
            crowded_memory = process.memory_info().rss
            among = ask(server, size.seconds)
        # Connections to nodes that were needed for the crowd go when they have not been for some seconds.
        until(
            lambda: ask(server, 0.5) and process.num_fds() <= files + 2,
            f"no more files are open than before: {files}",
        )
        left = process.memory_info().rss - memory

        again = ask(server, 1)
        assert [answer.status for answer in (*alone, *among, *again)] == [200] * len([*alone, *among, *again])
        ratio = p99(among) / p99(alone)
        report(
            f"{size.idle} idle and {size.slow} slow clients for {size.seconds:g} s: p99 of others "
            f"{p99(alone) * 1e3:.2f} ms before, {p99(among) * 1e3:.2f} ms among them ({ratio:.2f} times); "
            f"{(crowded_memory - memory) / MIB:.0f} MiB more while they are there, {left / MIB:.0f} after; "
            f"ended by the server: {ended}"
        )
        assert min(ended["ended"].get(kind, 0) for kind in ("head", "body", "pipeline", "half")) > 0
        assert left < (30 + size.seconds / 20) * MIB
        assert not size.ratio or ratio <= size.ratio
        in_flight = {found["running"] + found["queued"] for found in server_fleet(server)}
        assert in_flight == {0}
        assert server.process.poll() is None


def ask(server: Server, seconds: float) -> list[Answer]:
    """Ordinary requests at an even pace."""

    async def main() -> list[Answer]:
        client = Client(server.url, NAME)
        answers = await client.pace(RATE, seconds, lambda _: [1])
        client.close()
        return answers

    answers: list[Answer] = drive(main())
    return answers


def p99(answers: list[Answer]) -> float:
    """Seconds within which 99 of 100 were answered."""
    return sorted(answer.seconds for answer in answers)[int(0.99 * len(answers))]


def server_fleet(server: Server) -> list[dict[str, Any]]:
    """What the server tells of its versions, asked for anew."""
    found: list[dict[str, Any]] = httpx.get(f"{server.url}/nodes").json()["versions"]
    return found


@contextmanager
def crowd(server: Server, size: Size) -> Iterator[dict[str, Any]]:
    """The crowd is there for the time of the block; what it tells is filled in at its end."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.soak.crowd", host, port),
            *(str(size.seconds + 2), str(size.idle), str(size.slow), "0", NAME),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    told: dict[str, Any] = {}
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        time.sleep(1)
        yield told
        told.update(json.loads(process.stdout.readline()))
        assert process.wait(timeout=HANG_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()
