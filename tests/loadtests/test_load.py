from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.load import PATIENCE_SECONDS, Load
from loadtests.record import Request, Run, read
from loadtests.rows import Row
from loadtests.shapes import Plan, Stage

PLAN = Plan("idle-wake-idle", (Stage(2, 0), Stage(1, 2), Stage(3, 0)))
# Nobody listens there, so there is nobody to tell of nodes.
RUN = Run("http://127.0.0.1:1", "projects/p/models/m", 1, 4, PLAN, wake_within=1, p99_within=1)


class Clock:
    """Time, moved by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The time of a load."""
    return Clock()


@pytest.fixture
def load(tmp_path: Path, clock: Clock) -> Load:
    """A load that starts in two seconds."""
    return Load(RUN, [Row("[", 1.5, "]")], tmp_path, lead=2, clock=clock)


def test_requests_are_handed_out_once(load: Load) -> None:
    """Each with a body of its own, and then no more."""
    assert load.now() == -2
    assert load.take() == (2.0, '{"instances": [[1.5]]}')
    assert load.take() == (2.5, '{"instances": [[1.5000015]]}')
    assert load.take() is None
    load.finish()


def test_a_run_lasts_to_the_end_of_its_last_stage(load: Load, clock: Clock, tmp_path: Path) -> None:
    """Though all is answered: there are nodes to watch."""
    for due in PLAN.due():
        load.note(Request(due, 0, due, due + 0.1))
    over = []
    for clock.now in (1002, 1007.9, 1008.1):
        over.append(load.over)
    summary, text = load.finish()

    assert over == [False, False, True]
    assert summary.passed
    assert summary.seconds == 6
    assert text.startswith("idle-wake-idle: passed")
    assert read(tmp_path).run.ended == 6


def test_a_run_waits_for_answers_but_not_for_ever(load: Load, clock: Clock) -> None:
    """What has none by then has failed."""
    load.note(Request(2, 0, 2, 2.1))
    clock.now = 1008.1
    waits = not load.over
    clock.now += PATIENCE_SECONDS
    ends = load.over
    summary, _ = load.finish()

    assert waits
    assert ends
    assert summary.failures == {"not answered by the end of the run": 1}


def test_a_run_that_is_stopped_has_failed(load: Load, clock: Clock) -> None:
    """Even if nothing else went wrong."""
    clock.now = 1003
    summary, text = load.finish()

    assert not summary.passed
    assert "FAILED      the run comes to its end: no" in text
