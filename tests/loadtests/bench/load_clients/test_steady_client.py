from __future__ import annotations

import asyncio

from loadtests.bench.load_clients.steady_client import run_steady_load
from tests.loadtests.bench.stub import answering


def test_all_targets_are_asked_at_the_rate() -> None:
    """100 a second for half a second; each connection sends one more when time is up."""
    with answering(b"{}") as url:
        outcome = asyncio.run(run_steady_load(url, ["/a", "/b", "/c", "/d"], [b"1", b"2"], 100, 0.5))

    assert outcome.errors.total() == 0
    assert 40 <= len(outcome.seconds) <= 60
    assert min(outcome.seconds) > 0


def test_what_comes_late_counts_from_when_it_was_due() -> None:
    """A server that keeps up with a fifth of the rate: requests wait longer and longer."""
    with answering(b"{}", seconds=0.05) as url:
        outcome = asyncio.run(run_steady_load(url, ["/a"], [b"1"], 100, 0.5))

    assert len(outcome.seconds) < 20
    assert outcome.seconds[-1] > 0.3
