"""Kills at random moments of mixed work: whatever was acknowledged stays, and nothing is left over."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import Report
from tests.soak.mixed import Client, Size, check, world

pytestmark = pytest.mark.alone

SHORT = Size(kills=8, pause=1.2, clients=3, jobs=1, seconds=30)
LONG = Size(kills=200, pause=1.6, clients=4, jobs=12, seconds=1200)


@pytest.mark.parametrize(
    "size",
    [SHORT, pytest.param(LONG, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
    ids=["short", "long"],
)
def test_what_was_acknowledged_survives_kills(tmp_path: Path, report: Report, size: Size) -> None:
    """Server, pilots, nodes and jobs die while clients create, patch, delete, predict and submit."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with world(tmp_path, seed, size) as found:
        with ThreadPoolExecutor(size.clients) as pool:
            working = [pool.submit(Client(found, number).run) for number in range(size.clients)]
            try:
                found.kill_some()
            finally:
                found.over.set()
        for done in working:
            done.result()
        assert not found.violations
        check(found)
    report(f"seed {seed}: killed {dict(found.killed)}; answers {dict(sorted(found.answers.items()))}")
    assert found.killed.total() == size.kills
