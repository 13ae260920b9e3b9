"""Which requests are kept as having waited, what is said of them, and that it stays little."""

from __future__ import annotations

import tracemalloc

import pytest

from autoscaler.activator import Lease
from serving.errors import DeadlineExceeded, Unavailable
from serving.gateway.observability.wait_recorder import (
    MOST_WAITS,
    MOST_WAITS_OF_ALL,
    RecordedWait,
    WaitRecorder,
    describe_wait,
    format_milliseconds,
    is_wait,
)
from serving.gateway.proxy.node_client import NodeReply
from tests.serving.gateway.proxy.test_server_timing import make_lease

REPLY = NodeReply(200, (), b"{}")
TOLD = NodeReply(200, ((b"server-timing", b"queue;dur=9, parse;dur=0.5, wait;dur=0.0, infer;dur=3"),), b"{}")


def make_start(*, forked: bool) -> Lease:
    """A wait of 0.1 s: 5 ms before anything, 15 ms for the process, 60 ms to load, 20 ms to warm up."""
    lease = make_lease(arrived=10.0, asked=10.005, ready=10.1, granted=10.1, load=0.06, warm=0.02)
    lease.node.forked = forked
    return lease


@pytest.mark.parametrize(
    ("timing", "is_recorded"),
    [
        ((0.9, 0.9, ()), False),
        ((1.1, 1.1, ()), True),
        ((0.1, 0.0, (make_start(forked=True),)), True),
        ((0.5, 0.49, (make_lease(arrived=1.0, asked=0.0, ready=0.5, granted=1.009),)), False),
        ((0.5, 0.49, (make_lease(arrived=1.0, asked=0.0, ready=0.5, granted=1.011),)), True),
    ],
)
def test_who_waited_for_a_node_or_took_long_is_kept(
    timing: tuple[float, float, tuple[Lease, ...]], *, is_recorded: bool
) -> None:
    assert is_wait(timing) is is_recorded


def test_a_wait_for_a_start_is_told_by_its_phases() -> None:
    """And of the rest what its node has told."""
    recorder = WaitRecorder(lambda: 1000.0)
    recorder.record_answer("v", (0.106, 0.0042, (make_start(forked=True),)), TOLD, "id-1")
    recorder.record_answer("v", (0.104, 0.003, (make_start(forked=False),)), REPLY, "id-2")
    cold, forked = recorder.list_waits("v")

    assert (forked.request_id, forked.status, forked.at) == ("id-1", 200, 1000.0 - 0.106)
    assert {name: round(seconds, 4) for name, seconds in forked.phases.items()} == {
        "queue": 0.005, "start": 0.015, "load": 0.06, "warm": 0.02, "gateway": 0.0025,
        "parse": 0.0005, "infer": 0.003,
    }  # fmt: skip
    assert describe_wait(forked) == (
        "Waited 100 ms for the forked start of a node: 5.0 ms before it began, 15 ms launch, 60 ms load, "
        "20 ms warm-up. Then 3.0 ms computing, 2.5 ms on the way to the node and back."
    )
    assert "for the cold start of a node" in describe_wait(cold)
    assert "15 ms launch" in describe_wait(cold)
    assert describe_wait(cold).endswith("Then 3.0 ms in the node, which reads, queues and computes.")


def test_other_waits_in_words() -> None:
    recorder = WaitRecorder()
    place = make_lease(arrived=1.0, asked=0.0, ready=0.5, granted=1.25)
    recorder.record_answer("v", (0.26, 0.01, (place,)), REPLY, "a")
    recorder.record_answer("v", (1.5, 1.5, ()), REPLY, "b")
    recorder.record_refusal("v", (5.0, 0.0, ()), Unavailable("No memory is left."), "c")
    recorder.record_refusal("v", (5.0, 5.0, ()), DeadlineExceeded("Too slow."), "d")

    assert [describe_wait(one) for one in recorder.list_waits("v")] == [
        "Waited for no node. Then 5 s in the node, which reads, queues and computes. Too slow.",
        "Waited 5 s, and no node answered. No memory is left.",
        "Waited for no node. Then 1.5 s in the node, which reads, queues and computes.",
        "Waited 250 ms for a place in a node: all were taken. "
        "Then 10 ms in the node, which reads, queues and computes.",
    ]
    assert [one.status for one in recorder.list_waits("v")] == [504, 503, 200, 200]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0004, "0.4 ms"), (0.092, "92 ms"), (1.254, "1.25 s"), (62.0, "62 s")]
)
def test_milliseconds(seconds: float, text: str) -> None:
    assert format_milliseconds(seconds) == text


def test_the_last_ones_are_kept() -> None:
    """Of each version, and of all: those of the version that had none for the longest time go first."""
    recorder = WaitRecorder()

    def record(uid: str, number: int) -> None:
        recorder.record_answer(uid, (2.0, 2.0, ()), REPLY, str(number))

    for number in range(MOST_WAITS + 5):
        record("first", number)
    assert [one.request_id for one in recorder.list_waits("first")][::49] == ["54", "5"]
    for version in range(MOST_WAITS_OF_ALL // MOST_WAITS):
        for number in range(MOST_WAITS):
            record(f"v{version}", number)
    assert recorder.list_waits("first") == ()
    assert len(recorder.list_waits("v0")) == MOST_WAITS
    record("first", 1)
    assert len(recorder.list_waits("v0")) == MOST_WAITS - 1
    recorder.forget_version("v1")
    record("first", 2)
    assert len(recorder.list_waits("v0")) == MOST_WAITS - 1


def test_they_take_little_memory() -> None:
    """All that there may be, with ids and phases of their own."""
    tracemalloc.start()
    recorder = WaitRecorder()
    for number in range(MOST_WAITS_OF_ALL):
        timing = (0.106 + number / 1e6, 0.004, (make_start(forked=True),))
        recorder.record_answer(str(number % 100), timing, TOLD, f"{number:032}")
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 6 << 20


def test_a_message_is_cut() -> None:
    recorder = WaitRecorder()
    recorder.record_refusal("v", (1.0, 0.0, ()), Unavailable("x" * 10_000), "a")
    (wait,) = recorder.list_waits("v")
    assert isinstance(wait, RecordedWait)
    assert len(describe_wait(wait)) < 400
