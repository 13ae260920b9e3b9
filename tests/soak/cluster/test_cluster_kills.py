"""Three servers on one database, of which one is killed every few seconds under mixed work."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import Report
from tests.end_to_end import jobs, models
from tests.postgres import Postgres
from tests.soak.cluster.world import (
    ASKED,
    INITIAL,
    RECORDS,
    REGISTERS,
    Client,
    Size,
    has_balancer,
    list_violations,
    open_world,
)
from tests.soak.conftest import Progress

SHORT = Size(seconds=9, pause=3, down=0.5, clients=3, jobs=0, versions=1)
LONG = Size(seconds=600, pause=5, down=1, clients=4, jobs=30, versions=60)


@pytest.mark.parametrize(
    "size",
    [SHORT, pytest.param(LONG, marks=[pytest.mark.soak, pytest.mark.timeout(1500)])],
    ids=["short", "long"],
)
def test_no_acknowledged_change_is_lost_to_kills(
    postgres: Postgres, tmp_path: Path, report: Report, progress: Progress, size: Size
) -> None:
    """Changes are linearizable, operations and jobs end once, predictions fail only in a killed server.

    HAProxy stands before the servers where it is installed.
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    models.write_sklearn(tmp_path / "forest")
    jobs.write_lines(tmp_path / "rows.jsonl", models.data()[0].tolist()[:RECORDS])
    with open_world(tmp_path, postgres.create_database(), seed, size) as world:
        for name in (*REGISTERS, ASKED.rpartition("/versions/")[0]):
            world.servers[0].create_model(name, description=INITIAL)
        world.servers[0].create_version(ASKED, deploymentUri=str(tmp_path / "forest"))
        balancer = world.start_balancer() if has_balancer() else ""
        with ThreadPoolExecutor(size.clients) as pool:
            clients = [Client(world, number, balancer) for number in range(size.clients)]
            working = [pool.submit(client.run) for client in clients]
            world.kill_some(progress)
        for done in working:
            done.result()
        violations = list_violations(world)

    changes = sum(map(len, world.history.values()))
    report(
        f"seed {seed}: {len(world.kills)} kills of one of {len(world.servers)} servers; {changes} reads and "
        f"changes of {len(REGISTERS)} records, answers {dict(sorted(world.answers.items()))}; "
        f"{len(world.failed)} predictions failed; {len(world.operations)} operations, {len(world.jobs)} jobs"
    )
    assert not violations
