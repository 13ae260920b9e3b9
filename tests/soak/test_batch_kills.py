"""Kills at random moments of jobs, twenty times, and processes that stand still: the long form."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.conftest import Report
from tests.emulator import Emulator
from tests.end_to_end import jobs
from tests.end_to_end.killing import VICTIMS, Battle, battle
from tests.server import until

# Some thirty jobs, most of them begun twice; on a busy machine each takes half a minute.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

KILLS = 20


@pytest.fixture
def field(emulator_server: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Battle]:
    """A server to be killed."""
    environment = {"STORAGE_EMULATOR_HOST": emulator_server.url}
    with battle(tmp_path_factory.mktemp("kills"), environment=environment) as field:
        yield field


def test_kills_at_random_moments(field: Battle, emulator_server: Emulator, report: Report) -> None:
    """From submission to the last moves of files: every job succeeds, with one prediction per good record."""
    bucket = f"gs://{emulator_server.bucket('kills')}"
    length = undisturbed(field)
    killed: Counter[str] = Counter()
    states: Counter[str] = Counter()
    number = 0
    while killed.total() < KILLS:
        number += 1
        job_id, victim = f"job_{number}", VICTIMS[number % 3]
        folder = field.root / job_id
        uri = f"{bucket}/{job_id}" if number % 2 else str(folder)
        name = field.submit(job_id, uri)
        time.sleep(random.uniform(0, length))  # that is the moment, not a wait
        has_ended = jobs.get(field.server, name)["state"] in jobs.ENDS
        killed[victim] += field.kill(victim) and not has_ended

        jobs.finished(field.server, name)

        if number % 2:
            jobs.download(emulator_server, uri, folder)
        states[field.check(name, folder)["state"]] += 1
    report(f"kills at random moments of jobs of {length:.1f} s: {dict(killed)}; in the end {dict(states)}")
    assert states == {"SUCCEEDED": number}
    assert number < 2 * KILLS


def undisturbed(field: Battle) -> float:
    """How many seconds a job takes that nobody touches."""
    start = time.monotonic()
    field.check(field.submit("undisturbed", field.root / "undisturbed"), field.root / "undisturbed")
    return time.monotonic() - start


def test_processes_that_stand_still_are_given_up(field: Battle, report: Report) -> None:
    """A worker of one job, the process of the other: after a minute of silence both begin anew."""
    for kind in ("worker", "process"):
        others = set(pids(field, kind))
        field.submit(kind, field.root / kind)
        (victim, *_) = until(lambda kind=kind, others=others: set(pids(field, kind)) - others, f"a {kind}")  # type: ignore[misc]
        os.kill(victim, signal.SIGSTOP)
    start = time.monotonic()

    for kind in ("worker", "process"):
        name = f"projects/kills/jobs/{kind}"
        assert field.check(name, field.root / kind, seconds=150)["state"] == "SUCCEEDED"
        assert field.server.call("GET", f"/jobs/{name}").json["attempt"] == 2
    seconds = time.monotonic() - start
    report(f"a worker and a job's process that stand still: begun anew, done after {seconds:.0f} s")


def pids(field: Battle, kind: str) -> list[int]:
    return jobs.processes(field.server)[kind]
