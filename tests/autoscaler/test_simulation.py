"""Known answers by hand, laws that hold for any trace, and how long it takes."""

from __future__ import annotations

import dataclasses
import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.decision import ScalingSpec
from autoscaler.simulation.replay import simulate_traces
from autoscaler.simulation.result import SimulationConditions, SimulationResult, wait_percentile
from autoscaler.simulation.traces import GENERATED, TrafficTrace, build_trace, generate_trace, replicate_trace

POLICY = ScalingSpec(idle_window=10.0, max_nodes=4)
CONDITIONS = SimulationConditions(start_seconds=(2.0,), service_seconds=0.5)


def trace(*moments: float, key: str = "v1", seconds: float | None = None) -> TrafficTrace:
    """Requests at these moments."""
    return TrafficTrace(key, sorted(moments), max(moments, default=0.0) + 1 if seconds is None else seconds)


def run(*traces: TrafficTrace, policy: ScalingSpec = POLICY, **conditions: object) -> SimulationResult:
    return simulate_traces(traces, policy, dataclasses.replace(CONDITIONS, **conditions))  # type: ignore[arg-type]


# ---- one version


def test_one_request() -> None:
    """It wakes a node, waits for it, and the node goes at the first tick over the idle window later."""
    result = run(trace(5.0))

    # asked for at 5, ready at 7, done at 7.5; 10 s later are over at the tick of 18
    assert (result.requests, result.answered, result.held, result.cold_starts) == (1, 1, 1, 1)
    assert result.wait_p50 == result.wait_p99 == result.wait_max == 2.0
    assert (result.most_nodes, result.nodes_started) == (1, 1)
    assert (result.seconds, result.node_seconds) == (18.0, 13.0)
    assert result.idle_share == pytest.approx(10.5 / 13)


def test_idle_for_exactly_the_window() -> None:
    """It must be more than the window: a node that is idle since 8 with a window of 10 is there at 18."""
    assert run(trace(5.0), service_seconds=1.0).seconds == 19.0
    assert run(trace(5.0), service_seconds=0.999).seconds == 18.0


def test_two_bursts() -> None:
    """Two bursts, further apart than the idle window, are two cold starts; closer, they are one."""
    first = [5.0 + part / 10 for part in range(5)]

    apart = run(trace(*first, *(moment + 100 for moment in first)))
    close = run(trace(*first, *(moment + 10 for moment in first)))

    assert (apart.cold_starts, apart.held, apart.answered) == (2, 10, 10)
    assert (close.cold_starts, close.held, close.answered) == (1, 5, 10)
    assert apart.node_seconds > close.node_seconds


def test_steady_load_keeps_one_node() -> None:
    """Less than one node can do: one node, and nobody waits once it is there."""
    result = run(trace(*range(1, 301)), start_seconds=(0.25,))

    assert (result.cold_starts, result.most_nodes, result.held, result.answered) == (1, 1, 1, 300)
    assert (result.wait_p99, result.wait_max) == (0.0, 0.25)


def test_more_load_gets_more_nodes_but_not_more_than_allowed() -> None:
    """Requests that pile up bring nodes, up to the most that may be."""
    many = [20 + second + part / 8 for second in range(60) for part in range(8)]
    policy = dataclasses.replace(POLICY, target_concurrency=2.0)

    result = run(trace(*many), policy=policy, request_timeout=1000.0)
    alone = run(trace(*many), policy=dataclasses.replace(policy, max_nodes=1), request_timeout=1000.0)

    assert (result.most_nodes, result.cold_starts, result.answered) == (4, 1, 480)
    assert (alone.most_nodes, alone.answered) == (1, 480)
    assert result.wait_max < 20 < alone.wait_max


def test_a_floor_is_there_from_the_start() -> None:
    """With minNodes there is no cold start, and the node stays until the trace ends."""
    result = run(trace(50.0, seconds=100.0), policy=dataclasses.replace(POLICY, min_nodes=1))

    assert (result.cold_starts, result.held, result.wait_max) == (0, 0, 0.0)
    assert (result.seconds, result.node_seconds, result.nodes_started) == (100.0, 100.0, 1)


def test_nothing_to_do() -> None:
    """A trace without requests costs nothing."""
    result = run(trace(seconds=1000.0))

    assert (result.requests, result.looks, result.node_seconds, result.policy_microseconds) == (0, 0, 0, 0)


def test_sleep_is_skipped() -> None:
    """A version that sleeps is not looked at."""
    assert run(trace(5.0, 86_000.0)).looks < 40


def test_node_start_times_are_taken_in_turn() -> None:
    """Each node takes the next of the start times, then the first again."""
    result = run(trace(5.0, 105.0, 205.0, 305.0), start_seconds=(1.0, 2.0, 4.0))

    assert (result.cold_starts, result.wait_p50, result.wait_max) == (4, 1.0, 4.0)
    assert result.node_seconds - run(trace(5.0), start_seconds=(1.0,)).node_seconds * 4 == 1.0 + 3.0


# ---- limits


def test_a_full_queue_refuses() -> None:
    """Of five requests that come before the node, as many are refused as cannot wait."""
    result = run(trace(5.0, 5.1, 5.2, 5.3, 5.4), queue_requests=2)

    assert (result.answered, result.refused, result.timed_out) == (2, 3, 0)


def test_a_start_that_takes_too_long_is_not_waited_for() -> None:
    """A request that cannot wait as long as nodes take to start is refused at once; the node comes."""
    result = run(trace(5.0, 14.0), start_seconds=(8.0,), request_timeout=7.0)

    assert (result.answered, result.refused, result.timed_out) == (1, 1, 0)
    assert result.cold_starts == 1


def test_requests_time_out() -> None:
    """The third node starts unusually slowly: who came for it waits in vain."""
    result = run(trace(5.0, 105.0, 205.0, 206.0, 213.0), start_seconds=(3.0, 3.0, 9.0), request_timeout=5.0)

    assert (result.answered, result.refused, result.timed_out) == (3, 0, 2)
    assert result.wait_max == 3.0


def test_an_answer_that_comes_too_late_is_none() -> None:
    """Waiting and computing together must not take longer than a request may."""
    assert run(trace(5.0), request_timeout=2.5).answered == 1
    assert run(trace(5.0), request_timeout=2.4).timed_out == 1


def test_requests_wait_outside_of_a_full_node() -> None:
    """A node has room for so many; the others are held, in order, and wait no longer for that."""
    moments = [5.0, 8.0, 8.0, 8.0, 8.0]
    policy = dataclasses.replace(POLICY, max_nodes=1)

    narrow = run(trace(*moments), policy=policy, node_concurrency=2)
    wide = run(trace(*moments), policy=policy)

    assert (narrow.held, wide.held) == (3, 1)
    assert (narrow.wait_p50, narrow.wait_max) == (wide.wait_p50, wide.wait_max) == (1.0, 2.0)


def test_an_idle_version_makes_room() -> None:
    """Memory for one node: the version that wakes gets that of the idle one at once."""
    policy = dataclasses.replace(POLICY, idle_window=300.0)
    traces = (trace(0.5, key="a"), trace(20.0, key="b"))

    result = run(*traces, policy=policy, node_bytes=100, memory_bytes=150)

    assert (result.cold_starts, result.most_nodes, result.wait_max) == (2, 1, 2.0)


def test_a_busy_version_does_not_make_room() -> None:
    """Memory for one node: who wakes while another computes waits until that is done."""
    traces = (trace(0.5, key="a"), trace(20.0, key="b"))

    result = run(*traces, node_bytes=100, memory_bytes=150, service_seconds=30.0, request_timeout=100.0)

    # a's node is ready at 2.5 and computes until 32.5; b's node takes 2 s from then on
    assert (result.cold_starts, result.most_nodes, result.wait_max) == (2, 1, 14.5)


def test_memory_comes_free_between_two_ticks() -> None:
    """A busy node that drains gives its memory when it is done, and who waits for it is looked at then."""
    policy = ScalingSpec(
        max_nodes=2,
        target_concurrency=2.0,
        idle_window=10.0,
        stable_window=4.0,
        panic_window=4.0,
        scale_down_delay=0.0,
    )
    # a's first node gets four requests, 19.9 s each, and starts at 0.5; its second two, and starts at 3.5.
    # From 62.2 each has one left: one node would do. So at 66.5 the first drains, until 82.1; the second
    # sleeps at 92.5. In between comes b, whose node has memory from 82.1, and sleeps at 114.5.
    many = trace(*[0.5] * 4, 41.0, 50.0, key="a")

    result = run(
        many,
        trace(70.0, key="b"),
        policy=policy,
        service_seconds=19.9,
        request_timeout=600.0,
        node_bytes=100,
        memory_bytes=240,
    )

    assert (result.answered, result.nodes_started, result.most_nodes) == (7, 3, 2)
    assert result.node_seconds == pytest.approx((82.1 - 0.5) + (92.5 - 3.5) + (114.5 - 82.1))


# ---- laws

MOMENTS = st.lists(st.floats(0, 200, allow_nan=False), max_size=60)


@settings(max_examples=60)
@given(
    traces=st.lists(MOMENTS, min_size=1, max_size=3),
    service=st.sampled_from([0.0, 0.1, 1.0, 7.0]),
    starts=st.lists(st.sampled_from([0.0, 0.3, 5.0]), min_size=1, max_size=3),
    timeout=st.sampled_from([2.0, 20.0, 600.0]),
    room=st.integers(1, 4),
    memory=st.sampled_from([None, 100, 250]),
    target=st.sampled_from([0.5, 2.0]),
)
def test_nothing_is_lost(
    traces: list[list[float]],
    service: float,
    starts: list[float],
    timeout: float,
    room: int,
    memory: int | None,
    target: float,
) -> None:
    """Whatever comes: each request ends in one way, waits no longer than it may, and twice is the same."""
    policy = dataclasses.replace(POLICY, target_concurrency=target, scale_down_delay=3.0)
    conditions = SimulationConditions(
        service_seconds=service,
        start_seconds=starts,
        request_timeout=timeout,
        node_concurrency=room,
        queue_requests=20,
        node_bytes=80,
        memory_bytes=memory,
    )
    loads = [trace(*moments, key=str(number)) for number, moments in enumerate(traces)]

    result = simulate_traces(loads, policy, conditions)

    assert result.answered + result.refused + result.timed_out == result.requests == sum(map(len, traces))
    assert result.wait_p50 <= result.wait_p99 <= result.wait_max <= timeout
    assert result.cold_starts <= result.nodes_started
    assert result.most_nodes <= min(result.nodes_started, 4 * len(traces))
    assert result.node_seconds + 1e-6 >= result.answered * service
    assert 0 <= result.idle_share <= 1
    assert result == simulate_traces(loads, policy, conditions)


@settings(max_examples=30)
@given(moments=st.lists(st.floats(10, 60), min_size=1, max_size=80))
def test_one_node_is_a_queue(moments: list[float]) -> None:
    """With exactly one node, waits are those of the textbook: who came before me must be done."""
    result = run(trace(*moments), policy=ScalingSpec(exact_nodes=1), node_concurrency=3, request_timeout=1e9)

    free, waits = 0.0, []
    for moment in sorted(moments):
        begin = max(moment, free)
        free = begin + 0.5
        waits.append(begin - moment)
    waits.sort()
    assert result.wait_max == pytest.approx(waits[-1])
    assert result.wait_p50 == pytest.approx(waits[(len(waits) - 1) // 2])
    assert result.node_seconds * (1 - result.idle_share) == pytest.approx(2.0 + 0.5 * len(waits))


def test_percentiles() -> None:
    """The nearest rank; waits of nothing are only counted."""
    assert wait_percentile([], 0, 0.5) == 0.0
    assert wait_percentile([1.0, 2.0], 2, 0.5) == 0.0
    assert wait_percentile([1.0, 2.0], 2, 0.51) == 1.0
    assert wait_percentile([1.0, 2.0], 2, 1.0) == 2.0


# ---- traces


@pytest.mark.parametrize("name", GENERATED)
def test_made_up_days(name: str) -> None:
    """The same seed makes the same day, another seed another; its moments are a day's, in order."""
    day = generate_trace(name, 1)

    assert list(day.moments) == list(generate_trace(name, 1).moments)
    assert list(day.moments) != list(generate_trace(name, 2).moments)
    assert day.seconds == 86_400
    assert day.moments[0] >= 0
    assert day.moments[-1] < 86_400
    assert all(one <= other for one, other in itertools.pairwise(day.moments))


def test_spread() -> None:
    """Requests of a second come somewhere within it, in order; the load is as given."""
    load = {3: 5, 4: 1, 9: 0, 10: 2}
    made = build_trace("v1", list(load.items()), 20, "seed")

    assert made.count_by_second() == {3: 5, 4: 1, 10: 2}
    assert list(made.iter_arrivals()) == sorted(made.moments)
    assert made.length == 20


def test_replicated() -> None:
    """Each version has all requests, and begins at another point of the trace."""
    first, second = replicate_trace(trace(0.25, 1.0, 6.0, 7.0, seconds=8.0), 2)

    assert first.key != second.key
    assert list(first.iter_arrivals()) == [0.25, 1.0, 6.0, 7.0]
    assert list(second.iter_arrivals()) == [2.0, 3.0, 4.25, 5.0]
    assert list(dataclasses.replace(second, cut=4.0).iter_arrivals()) == [2.0, 3.0]
    assert dataclasses.replace(second, cut=4.0).length == 4.0


# ---- how long it takes


def test_a_day_of_a_million_requests() -> None:
    """It takes seconds; the progress is told and only grows."""
    parts: list[float] = []
    day = generate_trace("office-hours", 0)
    start = time.monotonic()
    result = simulate_traces([day], ScalingSpec(), SimulationConditions(), parts.append)

    assert time.monotonic() - start < 30  # 2.5 s on an idle machine
    assert result.answered == result.requests == len(day.moments) > 1_000_000
    assert result.cold_starts == 1
    assert parts == sorted(parts)
    assert parts[-1] <= 1.0


def test_a_thousand_versions() -> None:
    """Ten thousand requests a second on a thousand versions: the policy's cost per version stays the same."""
    day = generate_trace("office-hours", 0)
    few, many = (
        simulate_traces(
            [dataclasses.replace(one, cut=20.0) for one in replicate_trace(day, versions)],
            ScalingSpec(),
            SimulationConditions(),
        )
        for versions in (10, 1000)
    )

    assert many.requests > 200_000
    assert many.answered == many.requests
    assert 400 < many.most_nodes <= 1000
    assert many.policy_microseconds < 5 * few.policy_microseconds + 100
