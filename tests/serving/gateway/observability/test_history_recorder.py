"""How the figures of a second become history."""

from __future__ import annotations

import pytest

from autoscaler.pools import Node, NodeState
from serving.gateway.observability.history import GRAINS, Figures
from serving.gateway.observability.history_recorder import HistoryRecorder
from serving.gateway.observability.phase_sums import SAMPLE_SECONDS
from serving.gateway.observability.prediction_stats import PredictionStats
from tests.autoscaler.fakes import Clock, FakePool, memory

SECONDS, MINUTES, _ = GRAINS


class World:
    """A version "v" that is awake as long as a test wants; a second is over when it says so."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.awake = {"v"}
        self.pool = FakePool(self.clock)
        self.stats = PredictionStats()
        self.recorder = HistoryRecorder(lambda: self.awake, self.pool, self.stats, self.clock)

    def answer(self, count: int, *, seconds: float = 0.003, status: int = 200) -> None:
        for _ in range(count):
            self.stats.get_or_create("v").count_answer((seconds, seconds, ()), status, 1, 1)

    def pass_second(self) -> None:
        self.clock.advance(1)
        self.recorder.record_second()

    def last(self, count: int) -> list[Figures]:
        return self.recorder.read_figures("v", SECONDS)[1][-count:]


def test_each_second_has_what_came_in_it() -> None:
    world = World()
    world.answer(5)
    world.pass_second()
    world.answer(2, status=500)
    world.stats.get_or_create("v").count_refusal(429)
    world.pass_second()
    world.pass_second()

    first, second, third = world.last(3)
    assert (first.requests, first.errors) == (5, 0)
    assert 0.0019 <= first.p50 <= first.p99 <= 0.0052
    assert (second.requests, second.errors) == (3, 3)
    assert third == Figures()


def test_nodes_are_counted_once_they_are_ready() -> None:
    world = World()
    world.pool.living = [
        Node("1", "v", "nowhere", memory(), state=NodeState.READY),
        Node("2", "v", "nowhere", memory(), state=NodeState.STARTING),
    ]
    world.pass_second()

    assert world.last(1)[0].nodes == 1


def test_seconds_that_were_missed_have_the_nodes_of_those_around() -> None:
    world = World()
    world.pool.living = [Node("1", "v", "nowhere", memory(), state=NodeState.READY)]
    world.pass_second()
    world.clock.advance(2)
    world.pass_second()

    assert [one.nodes for one in world.last(5)] == [0, 1, 1, 1, 1]


def test_the_last_answers_before_a_version_falls_asleep_count() -> None:
    """They came after the last look at it; asleep it is looked at no more."""
    world = World()
    world.answer(1)
    world.pass_second()
    world.answer(4)
    world.awake = set()
    for _ in range(90):
        world.pass_second()

    _, minutes = world.recorder.read_figures("v", MINUTES)
    assert sum(one.requests for one in minutes) == 5


def test_what_is_recent_is_the_sum_of_some_seconds() -> None:
    world = World()
    assert world.recorder.read_recent("v") is None
    for _ in range(30):
        world.answer(2)
        world.pass_second()

    recent = world.recorder.read_recent("v")
    assert recent is not None
    assert recent.requests == pytest.approx(20)


def test_a_version_that_is_gone_leaves_nothing() -> None:
    """Nor one that did nothing for a day."""
    world = World()
    world.pass_second()
    world.recorder.forget_version("v")
    assert world.recorder.read_recent("v") is None

    world.pass_second()
    world.awake = set()
    world.pass_second()
    world.clock.advance(2 * 86_400)
    world.pass_second()
    assert world.recorder.read_recent("v") is None


def test_what_is_recent_began_some_minutes_ago() -> None:
    """Whatever the turn of a version is; nothing is known of one that is gone."""
    world = World()
    world.answer(1)
    assert world.recorder.read_older_sample("v") is None
    for _ in range(2 * SAMPLE_SECONDS):
        world.pass_second()
    ages = set()
    for _ in range(SAMPLE_SECONDS):
        world.pass_second()
        sampled = world.recorder.read_older_sample("v")
        assert sampled is not None
        ages.add(sampled[1])
    assert (min(ages), max(ages)) == (SAMPLE_SECONDS, 2 * SAMPLE_SECONDS - 1)
    world.recorder.forget_version("v")
    assert world.recorder.read_older_sample("v") is None
