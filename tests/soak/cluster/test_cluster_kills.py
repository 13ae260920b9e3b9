"""Three servers on one database, of which one is killed every few seconds under mixed work."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import Report
from tests.postgres import Postgres
from tests.soak.cluster.world import REGISTERS, ServerPlace, Size, has_balancer, list_violations, open_world
from tests.soak.conftest import Progress

SERVERS = 3
SHORT = Size(seconds=9, pause=3, down=0.5, clients=3, jobs=0, versions=1)
LONG = Size(seconds=600, pause=5, down=1, clients=4, jobs=30, versions=60, tunings=4)


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
    places = [ServerPlace(postgres.create_database())] * SERVERS
    with open_world(tmp_path, places, seed, size) as world:
        balancer = world.start_balancer() if has_balancer() else ""
        with world.run_clients(balancer):
            world.kill_some(progress)
        violations = list_violations(world)

    changes = sum(map(len, world.history.values()))
    report(
        f"seed {seed}: {len(world.kills)} kills of one of {SERVERS} servers; {changes} reads and "
        f"changes of {len(REGISTERS)} records, answers {dict(sorted(world.answers.items()))}; "
        f"{len(world.failed)} predictions failed; {len(world.operations)} operations, "
        f"{len(world.jobs)} jobs, {len(world.tunings)} tuning jobs"
    )
    assert not violations
