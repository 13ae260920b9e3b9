"""What is kept of one version: loads, start times, failures, and the story told of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.decision import ScalingSpec
from autoscaler.moving_average import ConcurrencyMeter
from autoscaler.pools import MemoryUsage, Node, NodeState
from autoscaler.version_scaler import StartFailures, VersionScaler
from tests.autoscaler.fakes import memory, spec

START = 1000.0


def make(*, cpu_target: float | None = None, since: float = START) -> VersionScaler:
    scaling = ScalingSpec(max_nodes=8, cpu_target=cpu_target)
    return VersionScaler(spec(), scaling, ConcurrencyMeter(since), since, memory=77)


def node(state: NodeState = NodeState.READY, *, asked: float = START, ready: float | None = None) -> Node:
    found = Node(id="1", key="v", address="", shared=memory(4), asked_at=asked, state=state, forked=True)
    found.ready_at = asked if ready is None and state is NodeState.READY else ready
    return found


def unknown(_: Node) -> float | None:
    return None


# ---- failures


def test_crashes_are_tried_again_the_later_the_more_there_were() -> None:
    """The first at once; from the third on it is no use to wait."""
    failures, told = StartFailures(), []
    for _ in range(9):
        failures.add("why", 100.0)
        told.append((failures.retry_delay(100.0), failures.permanent))

    assert [delay for delay, _ in told] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert [final for _, final in told] == [False] * 2 + [True] * 7


def test_a_failure_holds_back_until_its_time_has_come() -> None:
    """To the very moment."""
    failures = StartFailures()
    assert not failures.is_blocked(0.0)
    failures.add("why", 100.0, permanent=True)

    assert failures.permanent
    assert failures.is_blocked(100.999)
    assert not failures.is_blocked(101.0)
    assert failures.retry_delay(100.75) == 0.25
    assert failures.retry_delay(200.0) == 0.0


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(0, 5000))
def test_however_often_it_fails_the_delay_has_its_bounds(is_permanent: list[bool], before: int) -> None:
    """A version with a lower bound may fail for months."""
    failures = StartFailures(count=before)
    for one in is_permanent:
        failures.add("why", 50.0, permanent=one)

        assert 0 <= failures.retry_delay(50.0) <= 60
        assert failures.permanent or failures.count < 3


def test_what_the_machine_was_short_of_is_no_failure() -> None:
    """It is tried again after the same short time, however often; those who wait go on waiting."""
    tracked = make()
    starved = node(NodeState.GONE)
    starved.starved, starved.reason = True, "Cannot start a process: [Errno 11]"
    for number in range(9):
        now = START + 10 * number
        tracked.record_crash(starved, now)
        tracked.record_start_failure(starved.reason, now, starved=True)
        assert tracked.failures.retry_delay(now) == 1.0
    failures = tracked.failures

    assert (failures.count, failures.permanent) == (0, False)
    assert tracked.estimate_start([], True, now).reason == (
        "No node of version v can start now: Cannot start a process: [Errno 11]."
    )
    tracked.record_ready(node())
    assert (failures.shortage, failures.is_blocked(now)) == ("", False)


def test_a_node_that_becomes_ready_opens_the_door_but_the_count_goes_on() -> None:
    """Until it has served or lasted."""
    tracked = make()
    for _ in range(3):
        tracked.record_crash(node(NodeState.GONE), 1010.0)
    assert tracked.failures.permanent
    good = node(asked=1012.0, ready=1013.0)
    tracked.record_ready(good)
    assert (tracked.failures.permanent, tracked.failures.is_blocked(1010.0), tracked.failures.count) == (
        False,
        False,
        3,
    )

    tracked.forget_failures_if_stable([good], 1023.0)
    assert tracked.failures.count == 3
    tracked.forget_failures_if_stable([good], 1023.001)
    assert tracked.failures.count == 0


def test_a_node_that_has_served_is_proof_enough() -> None:
    """However short its life; one that starts or leaves proves nothing."""
    tracked = make()
    tracked.record_crash(node(NodeState.GONE), 1000.0)
    tracked.forget_failures_if_stable(
        [node(NodeState.STARTING), node(NodeState.DRAINING, ready=START)], 2000.0
    )
    assert tracked.failures.count == 1

    used = node()
    used.acquire_slot()
    tracked.forget_failures_if_stable([used], 1000.0)
    assert tracked.failures.count == 0


@pytest.mark.parametrize(
    ("ready", "used", "lived", "failures", "lost"),
    [
        (False, False, 5.0, 1, 0),
        (True, False, 9.9, 1, 1),
        (True, False, 10.0, 0, 1),
        (True, True, 0.1, 0, 1),
    ],
)
def test_what_a_crash_counts_as(ready: bool, used: bool, lived: float, failures: int, lost: int) -> None:
    """A start that failed, a node to be replaced, or both."""
    tracked, crashed = make(), node(NodeState.GONE, ready=1020.0 if ready else None)
    crashed.used = used
    tracked.record_crash(crashed, 1020.0 + lived)

    assert (tracked.failures.count, tracked.crashed_nodes) == (failures, lost)


# ---- what is seen


def test_a_lost_node_counts_as_starting_once() -> None:
    """So it is replaced, and then forgotten."""
    tracked = make()
    tracked.record_crash(node(NodeState.GONE, ready=START), START + 20)

    assert tracked.observe([], unknown, START + 20).starting == 1
    assert tracked.observe([], unknown, START + 21).starting == 0


def test_who_asked_and_went_away_counts_once() -> None:
    """The next request finds the node that was started for it."""
    tracked = make()
    tracked.wake_requested = True

    assert tracked.observe([], unknown, START).requests == 1
    assert tracked.observe([], unknown, START).requests == 0


def test_averages_are_those_of_the_meter() -> None:
    """Over the whole window, the time before the first request included."""
    tracked = make()
    tracked.meter.change(6, START + 54)
    tracked.observe([], unknown, START + 54)
    seen = tracked.observe([], unknown, START + 60)

    assert seen.requests == 6
    assert seen.stable == pytest.approx(0.6)
    assert seen.panic == pytest.approx(6.0)
    assert seen.settled
    assert not make().observe([], unknown, START + 59.9).settled


def test_idle_is_since_the_latest_of_all_that_happened() -> None:
    """The autoscaler's start, the last request's end, the newest node's becoming ready."""
    tracked = make()
    assert tracked.idle_since([node(NodeState.STARTING, asked=START + 50)]) == START
    tracked.meter.change(1, START + 1)
    tracked.meter.change(-1, START + 3)
    assert tracked.idle_since([node(ready=START + 2)]) == START + 3
    assert tracked.idle_since([node(ready=START + 9), node(ready=START + 4)]) == START + 9


def test_idle_seconds_are_those_of_ready_nodes_without_a_request() -> None:
    """From when they were ready, at the earliest since the last look."""
    tracked = make()
    idle, busy, fresh = node(), node(), node(ready=START + 3.5)
    busy.acquire_slot()
    others = [node(NodeState.STARTING), node(NodeState.DRAINING, ready=START)]
    tracked.observe([idle, busy, *others], unknown, START + 3)
    assert tracked.idle_node_seconds == 3.0

    tracked.observe([idle, busy, fresh, *others], unknown, START + 4)
    assert tracked.idle_node_seconds == 4.5


def test_the_use_of_processors_is_averaged_over_ready_nodes() -> None:
    """Since they were ready; it is looked at only where it is an aim."""
    ready, fresh, starting = node(), node(ready=START + 10), node(NodeState.STARTING)
    ready.id, fresh.id = "ready", "fresh"
    used = {"ready": 0.0, "fresh": 3.0}

    def cpu_seconds(of: Node) -> float | None:
        return used.get(of.id)

    tracked = make(cpu_target=0.6)
    assert tracked.observe([starting], cpu_seconds, START).cpu is None
    tracked.observe([ready, fresh], cpu_seconds, START + 10)
    used.update(ready=5.0, fresh=5.0)
    seen = tracked.observe([ready, fresh, starting], cpu_seconds, START + 20)
    assert seen.cpu == pytest.approx((5 / 20 + 2 / 10) / 2)
    assert make().observe([ready], cpu_seconds, START + 20).cpu is None


def test_memory_is_what_was_last_measured() -> None:
    """The most of the nodes there are; what was known before until then."""
    tracked = make()
    assert tracked.memory_per_node([node()]) == 77
    small, large = node(), node()
    small.memory, large.memory = MemoryUsage(30, 50), MemoryUsage(40, 60)
    assert tracked.memory_per_node([small, large, node()]) == 40
    assert tracked.memory_per_node([]) == 40


# ---- what to expect


def test_start_times_are_learned_forked_and_cold_apart() -> None:
    """The median of the last eight, so that one odd start does not count."""
    tracked = make()
    assert tracked.start_seconds(forked=True) is None
    for seconds in (99.0, 99.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 50.0, 2.0):
        tracked.record_ready(node(asked=START, ready=START + seconds))
    cold = node(asked=START, ready=START + 8)
    cold.forked = False
    assert tracked.start_seconds(forked=True) == 2.0
    assert tracked.start_seconds(forked=False) is None
    tracked.record_ready(cold)
    assert tracked.start_seconds(forked=False) == 8.0


def test_the_outlook_is_what_is_left_of_a_start() -> None:
    """Unknown until one was seen; a start that takes longer than others may be over any moment."""
    tracked = make()
    starting = node(NodeState.STARTING, asked=START + 1)
    assert tracked.estimate_start([starting], True, START + 1).seconds is None
    tracked.starts.append((True, 5.0))
    tracked.starts.append((False, 9.0))

    assert tracked.estimate_start([], True, START).seconds == 5.0
    assert tracked.estimate_start([], False, START).seconds == 9.0
    assert tracked.estimate_start([starting], True, START + 3).seconds == 3.0
    assert tracked.estimate_start([starting], True, START + 30).seconds == 0.0
    starting.pid, starting.forked = 1, False
    told = tracked.estimate_start([starting], True, START + 3)
    assert told.seconds == 7.0
    assert told.reason == "A node of version v is starting; it takes about 9.0 s."


def test_the_outlook_is_that_of_the_quickest_start() -> None:
    """Nobody is sent away because other nodes waited for a machine that was busy, or for a fault to end."""
    tracked = make()
    tracked.starts += [(True, 40.0), (True, 0.5), (True, 30.0)]

    assert tracked.estimate_start([], True, START).seconds == 0.5
    late = tracked.estimate_start([node(NodeState.STARTING)], True, START + 2)
    assert (late.seconds, late.reason) == (
        0.0,
        "A node of version v is starting; it takes longer than 0.5 s this time.",
    )


def test_a_node_without_a_process_starts_as_the_next_one_would() -> None:
    """While its pilot is being lit it is not known to start cold."""
    tracked = make()
    tracked.starts.append((False, 25.0))
    waiting = node(NodeState.STARTING)
    waiting.forked = False

    assert tracked.estimate_start([waiting], True, START).seconds is None
    assert tracked.estimate_start([waiting], False, START).seconds == 25.0


def test_the_outlook_counts_the_time_until_the_next_try() -> None:
    """Not for a node that starts already."""
    tracked = make()
    tracked.starts.append((True, 5.0))
    tracked.failures.add("why", START, permanent=True)

    assert tracked.estimate_start([], True, START + 0.25).seconds == 5.75
    assert tracked.estimate_start([], True, START + 2.0).seconds == 5.0
    assert tracked.estimate_start([node(NodeState.STARTING)], True, START + 0.25).seconds == 4.75


def test_the_outlook_names_a_shortage() -> None:
    """While it keeps the first node from starting; for how long is not known."""
    tracked = make()
    tracked.starts.append((True, 5.0))
    tracked.record_decision(0, "not enough memory", 0, short=True)
    told = tracked.estimate_start([], True, START)
    assert (told.seconds, told.reason) == (None, "No node of version v can start now: not enough memory.")

    assert tracked.estimate_start([node(NodeState.STARTING)], True, START + 1).seconds == 4.0
    tracked.record_decision(1, "a request waits", 0)
    assert tracked.estimate_start([], True, START).seconds == 5.0


# ---- the story


def test_only_what_changes_is_news() -> None:
    """The number of nodes, and whether it is less than was wanted; not the words alone."""
    tracked = make()
    steps = [
        (tracked.record_decision(1, "a request waits", 0), True),
        (tracked.record_decision(1, "2 requests run", 1), False),
        (tracked.record_decision(1, "1 of 2 nodes: 9 MiB free", 1, short=True), True),
        (tracked.record_decision(1, "1 of 2 nodes: 8 MiB free", 1, short=True), False),
        (tracked.record_decision(1, "a request runs", 1), True),
        (tracked.record_decision(0, "asleep", 1), True),
    ]

    assert [got for got, _ in steps] == [wanted for _, wanted in steps]
    assert [event.reason for event in tracked.events] == [
        "a request waits",
        "1 of 2 nodes: 9 MiB free",
        "a request runs",
        "asleep",
    ]
    assert tracked.reason == "asleep"


def test_the_story_keeps_its_last_fifty_events() -> None:
    """However long it goes on."""
    tracked = make()
    for number in range(120):
        tracked.record_decision(number % 2, str(number), 0)
        tracked.record_refusal(str(number))

    assert [event.reason for event in tracked.events] == [str(number) for number in range(70, 120)]
    assert [refusal.reason for refusal in tracked.refusals] == [str(number) for number in range(70, 120)]


def test_refusals_for_the_same_reason_are_counted() -> None:
    """As long as they come in a row."""
    tracked = make()
    for reason in ("full", "full", "late", "full"):
        tracked.record_refusal(reason)

    assert [(one.count, one.reason) for one in tracked.refusals] == [(2, "full"), (1, "late"), (1, "full")]


def test_wake_ups_are_counted_by_how_they_ended() -> None:
    """From no node to a ready one, or to giving up; more nodes are no wake-up."""
    tracked = make()
    tracked.record_decision(1, "", 0)
    tracked.record_crash(node(NodeState.GONE), START)
    assert tracked.wakeups == {}
    tracked.record_ready(node())
    tracked.record_decision(2, "", 1)
    tracked.record_ready(node())
    assert tracked.wakeups == {"ready": 1}

    tracked.record_decision(1, "", 0)
    is_permanent = node(NodeState.GONE)
    is_permanent.permanent_failure = True
    tracked.record_crash(is_permanent, START)
    tracked.record_crash(is_permanent, START)
    assert tracked.wakeups == {"ready": 1, "failed": 1}
    tracked.record_decision(1, "", 0)
    tracked.record_start_failure("no process", START, starved=False)
    assert tracked.wakeups == {"ready": 1, "failed": 2}


def test_node_seconds_add_up_all_nodes_ever() -> None:
    """Those that are gone, and those that are there so far."""
    tracked = make()
    tracked.record_end(node(NodeState.GONE, asked=START), START + 10)
    tracked.record_end(node(NodeState.GONE, asked=START + 5), START + 10)

    assert tracked.node_seconds([], START + 100) == 15
    assert tracked.node_seconds([node(asked=START + 90), node(asked=START + 99)], START + 100) == 26
