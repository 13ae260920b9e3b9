from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.load_run import ANSWER_TIMEOUT_SECONDS, LoadRun
from loadtests.payloads import InstanceTemplate
from loadtests.run_record import RequestRecord, RunSettings, read_run
from loadtests.shapes import LoadPlan, LoadStage

PLAN = LoadPlan("idle-wake-idle", (LoadStage(2, 0), LoadStage(1, 2), LoadStage(3, 0)))
# Nobody listens there, so there is nobody to tell of nodes.
RUN = RunSettings("http://127.0.0.1:1", "projects/p/models/m", 1, 4, PLAN, wake_within=1, p99_within=1)


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
def load(tmp_path: Path, clock: Clock) -> LoadRun:
    """A load that starts in two seconds."""
    return LoadRun(RUN, [InstanceTemplate("[", 1.5, "]")], tmp_path, lead=2, clock=clock)


def test_requests_are_handed_out_once(load: LoadRun) -> None:
    """Each with a body of its own, and then no more."""
    assert load.elapsed_seconds() == -2
    assert load.take_request() == (2.0, '{"instances": [[1.5]]}')
    assert load.take_request() == (2.5, '{"instances": [[1.5000015]]}')
    assert load.take_request() is None
    load.finish()


def test_a_run_lasts_to_the_end_of_its_last_stage(load: LoadRun, clock: Clock, tmp_path: Path) -> None:
    """Though all is answered: there are nodes to watch."""
    for due in PLAN.iter_due_times():
        load.record_request(RequestRecord(due, 0, due, due + 0.1))
    over = []
    for clock.now in (1002, 1007.9, 1008.1):
        over.append(load.is_over)
    summary, text = load.finish()

    assert over == [False, False, True]
    assert summary.passed
    assert summary.seconds == 6
    assert text.startswith("idle-wake-idle: passed")
    assert read_run(tmp_path).run.ended == 6


def test_a_run_waits_for_answers_but_not_for_ever(load: LoadRun, clock: Clock) -> None:
    """What has none by then has failed."""
    load.record_request(RequestRecord(2, 0, 2, 2.1))
    clock.now = 1008.1
    waits = not load.is_over
    clock.now += ANSWER_TIMEOUT_SECONDS
    ends = load.is_over
    summary, _ = load.finish()

    assert waits
    assert ends
    assert summary.failures == {"not answered by the end of the run": 1}


def test_a_run_that_is_stopped_has_failed(load: LoadRun, clock: Clock) -> None:
    """Even if nothing else went wrong."""
    clock.now = 1003
    summary, text = load.finish()

    assert not summary.passed
    assert "FAILED      the run comes to its end: no" in text
