from __future__ import annotations

import math
from dataclasses import astuple, replace

import pytest

from loadtests.run_record import NodeSample, RequestRecord
from loadtests.shapes import LoadPlan, LoadStage
from loadtests.summary import Latencies, WakeUp, format_duration, summarize_run, summarize_seconds
from tests.loadtests.runs import PLAN, REQUESTS, RUN, SAMPLES, record


def values(found: Latencies | WakeUp) -> tuple[float, ...]:
    """The numbers alone, to compare approximately."""
    return astuple(found)


def failed_demands(**parts: object) -> list[str]:
    """What of the objective a run missed."""
    return [check.demand for check in summarize_run(record(**parts)).checks if check.passed is False]  # type: ignore[arg-type]


def test_the_numbers_of_a_good_run() -> None:
    """Every one of them, counted by hand."""
    summary = summarize_run(record())

    assert summary.passed
    assert summary.requests == 100
    assert summary.failed == 0
    assert values(summary.latencies) == pytest.approx((0.01, 0.01, 1.0))
    assert [values(wake) for wake in summary.wake_ups] == [pytest.approx((10.0, 1.0, 0))]
    assert summary.seconds == 30.5
    assert summary.most_nodes == 1
    assert summary.node_seconds == pytest.approx(0.5 + 14 + 1)
    assert summary.waited == 0
    assert summary.lateness == pytest.approx(0.001)


def test_latency_counts_from_when_a_request_was_due() -> None:
    """A request that found all users busy has waited already when it is sent."""
    assert RequestRecord(due=5, free=8, sent=8.25, done=9).latency == 4
    assert RequestRecord(due=5, free=8, sent=8.25, done=9).lateness == 0.25


def test_the_timer_of_the_loading_machine_is_not_the_servers_latency() -> None:
    """With a user ready in time, latency counts from the sending; the lateness is told apart."""
    assert RequestRecord(due=5, free=4, sent=5.25, done=6).latency == 0.75
    assert RequestRecord(due=5, free=4, sent=5.25, done=6).lateness == 0.25


def test_failures_are_counted_by_reason_and_have_no_latency() -> None:
    """A quick refusal must not make the server look fast."""
    requests = [replace(one, failure="status 503", done=one.sent) for one in REQUESTS[:60]]
    requests += [replace(one, failure="status 500") for one in REQUESTS[60:70]] + REQUESTS[70:]
    summary = summarize_run(record(requests))

    assert summary.failures == {"status 503": 60, "status 500": 10}
    assert values(summary.latencies) == pytest.approx((0.01, 0.01, 0.01))
    assert summary.wake_ups == [WakeUp(10.0, math.inf, 0)]
    assert not summary.passed


def test_what_was_never_answered_has_failed() -> None:
    """Nothing that was due is forgotten, recorded or not."""
    summary = summarize_run(record(REQUESTS[:97]))

    assert summary.requests == 100
    assert summary.failures == {"not answered by the end of the run": 3}
    assert not summary.passed


def test_a_wakeup_that_was_never_answered_took_for_ever() -> None:
    """The second request, which came through, says nothing of the first."""
    assert [wake.latency for wake in summarize_run(record(REQUESTS[1:])).wake_ups] == [math.inf]


def test_nodes_count_from_the_start_of_the_run() -> None:
    """They are looked at before."""
    samples = [
        NodeSample(-1.5, 2, 0, 0),
        NodeSample(-0.5, 2, 0, 0),
        NodeSample(0.5, 1, 0, 0),
        NodeSample(30.5, 0, 0, 0),
    ]

    assert summarize_run(record(samples=samples)).node_seconds == pytest.approx(2 * 0.5 + 30)


def test_a_run_cut_short_is_judged_by_what_was_due_until_then() -> None:
    """It fails for that alone."""
    short = [one for one in REQUESTS if one.due < 15]
    summary = summarize_run(record(short, SAMPLES[:15], ended=None))

    assert summary.requests == summary.requests - summary.failed == 50
    assert "the run comes to its end" in [check.demand for check in summary.checks if not check.passed]


@pytest.mark.parametrize(
    ("parts", "demand"),
    [
        ({"wake_within": 0.9}, "the first answer after a pause within 0.9 s"),
        ({"p99_within": 0.005}, "p99 in the second half of each stage within 0.005 s"),
        ({"samples": [NodeSample(9, 1, 0, 0), NodeSample(30, 0, 0, 0)]}, "no node at the end of each pause"),
        ({"samples": [NodeSample(9, 0, 0, 0), NodeSample(30, 0, 0, 1)]}, "no node at the end of each pause"),
    ],
)
def test_each_demand_can_be_missed_alone(parts: dict[str, object], demand: str) -> None:
    """And the report names it."""
    assert failed_demands(**parts) == [demand]


def test_a_slow_start_of_a_stage_is_forgiven_but_not_its_second_half() -> None:
    """Nodes need time to follow; every stage is judged, not their mean."""
    plan = LoadPlan("staircase", (LoadStage(10, 10), LoadStage(10, 20)))
    requests = [
        RequestRecord(due, 0, due, due + (2.0 if due % 10 < 4 else 0.01)) for due in plan.iter_due_times()
    ]
    slow = [replace(one, done=one.due + 2) if 16 <= one.due < 17 else one for one in requests]

    assert failed_demands(requests=requests, plan=plan) == []
    assert failed_demands(requests=slow, plan=plan) == ["p99 in the second half of each stage within 0.5 s"]


def test_a_server_that_does_not_tell_its_nodes_is_not_judged_by_them() -> None:
    """Nor is it said to have woken."""
    summary = summarize_run(record(samples=[]))

    assert summary.passed
    assert [check.passed for check in summary.checks][-1] is None
    assert summary.node_seconds is summary.most_nodes is None
    assert [wake.nodes for wake in summary.wake_ups] == [None]


def test_a_server_that_answers_nothing_fails_with_numbers_for_all() -> None:
    """No request, no answer, no node."""
    summary = summarize_run(record([], []))

    assert not summary.passed
    assert summary.failed == 100
    assert math.isnan(summary.latencies.p50)
    assert summarize_seconds(record([], []))[10].answered == 0


def test_the_seconds_of_a_run() -> None:
    """Answers count when they come, latencies when they were due, nodes as last told."""
    seconds = summarize_seconds(record())

    assert len(seconds) == 31
    assert sum(one.answered for one in seconds) == 100
    assert [one.answered for one in seconds[9:13]] == [0, 9, 11, 10]
    assert [one.latencies.max for one in seconds[10:12]] == pytest.approx([1.0, 0.01])
    assert math.isnan(seconds[9].latencies.p50)
    assert [(one.ready, one.starting) for one in seconds[8:12]] == [(0, 0), (0, 0), (1, 0), (1, 0)]


def test_percentiles_are_values_that_occurred() -> None:
    """The smallest that the share does not exceed."""
    plan = LoadPlan("steady", (LoadStage(10, 20),))
    requests = [
        RequestRecord(due, 0, due, due + number) for number, due in enumerate(plan.iter_due_times(), 1)
    ]

    assert values(summarize_run(record(requests, plan=plan)).latencies) == pytest.approx((100, 198, 200))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.000345, "0.34 ms"), (0.0023, "2.3 ms"), (0.0456, "46 ms"), (0.9994, "999 ms"), (1.234, "1.23 s"),
     (75, "75 s"), (1234, "1,234 s"), (math.inf, "no answer"), (math.nan, "no answer")],
)  # fmt: skip
def test_durations_are_for_people(seconds: float, text: str) -> None:
    """Few digits and a unit."""
    assert format_duration(seconds) == text


def test_the_plan_of_these_tests_is_what_it_says() -> None:
    """The numbers above rest on it."""
    assert (len(REQUESTS), PLAN.seconds, RUN.plan) == (100, 30, PLAN)
