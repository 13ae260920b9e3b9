from __future__ import annotations

import pytest

from autoscaler.pools import Node
from serving.gateway import tallies
from serving.gateway.tallies import GATEWAY_PHASES, Course, Tallies, Tally
from serving.gateway.upstream import Answer
from serving.phases import NODE_BYTES, NODE_PHASES, Histograms, cells
from tests.serving.gateway.test_server_timing import make_lease

ANSWER = Answer(200, (), b"")


class Clock:
    """Tells the time a test says it is."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The one of requests."""
    made = Clock()
    monkeypatch.setattr(tallies, "time", made)
    return made


def seconds(tally: Tally) -> dict[str, float]:
    """The phases there are, with all their seconds."""
    return {phase: round(histogram.seconds, 6) for phase, histogram in tally.told(()).phases}


def test_a_request_that_need_not_wait(clock: Clock) -> None:
    """What is not spent in the node is the gateway's; nothing else is told."""
    tally = Tally()
    course = Course(7, None)
    clock.now += 0.001
    lease = make_lease(arrived=0.0, asked=0.0, ready=1.0, granted=clock.now)
    lease.arrived = None
    assert course.enters(lease) == b""
    clock.now += 0.02
    course.leaves(ANSWER)
    clock.now += 0.002
    tally.answered(course, 200, 13)

    assert seconds(tally) == {"total": 0.023, "gateway": 0.003}
    told = tally.told(())
    assert (told.statuses, told.bytes_in, told.bytes_out) == ({200: 1}, 7, 13)


def test_a_request_that_waits_and_is_sent_again(clock: Clock) -> None:
    """Every wait counts, and all the time in nodes; the phases add up to the total."""
    tally = Tally()
    course = Course(1, None)
    for ready in (101.0, 103.0):
        lease = make_lease(
            arrived=ready - 1, asked=ready - 1, ready=ready, granted=ready, load=0.5, warm=0.25
        )
        clock.now = ready
        course.enters(lease)
        clock.now += 1.0
        course.leaves(None if ready == 101.0 else ANSWER)
    tally.answered(course, 200, 1)

    assert seconds(tally) == {
        "total": 4.0, "gateway": 0.0, "queue": 0.0, "start": 0.5, "load": 1.0, "warm": 0.5
    }  # fmt: skip


def test_a_place_in_a_ready_node_has_no_start(clock: Clock) -> None:
    """Who waits for it was in the queue."""
    tally = Tally()
    course = Course(1, None)
    course.enters(make_lease(arrived=100.0, asked=10.0, ready=20.0, granted=103.0))
    course.leaves(ANSWER)
    clock.now = 103.0
    tally.answered(course, 200, 1)

    assert seconds(tally) == {"total": 3.0, "gateway": 0.0, "queue": 3.0}


def test_what_nodes_count_outlives_them() -> None:
    """The living ones and the dead ones add up, however often it is asked."""
    found = Tallies()
    tally = found.of("v")
    notes = []
    for infer in (0.1, 0.2):
        shared = memoryview(bytearray(NODE_BYTES))
        Histograms(len(NODE_PHASES), cells(shared)).add(NODE_PHASES.index("infer"), infer)
        notes.append(shared)
    found.node_gone(Node("1", "v", "", bytearray(), notes[0]))
    found.node_gone(Node("2", "another", "", bytearray(), notes[0]))  # nobody asked it for anything

    for _ in range(2):
        ((phase, histogram),) = tally.told([bytes(notes[1])]).phases
        assert (phase, sum(histogram.counts)) == ("infer", 2)
        assert histogram.seconds == pytest.approx(0.3)


def test_versions_that_are_gone_are_forgotten() -> None:
    """The others are not."""
    found = Tallies()
    kept = found.of("a")
    found.of("b").refused(503)
    found.forget_others({"a"})

    assert found.find("a") is kept
    assert found.find("b") is None


def test_phases_have_one_name_each() -> None:
    """They are told as values of one label."""
    assert len({*GATEWAY_PHASES, *NODE_PHASES}) == len(GATEWAY_PHASES) + len(NODE_PHASES)
