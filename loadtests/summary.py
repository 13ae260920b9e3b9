"""The figures of a recorded run, and whether it met the objective of its shape: pure functions."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadtests.run_record import NodeSample, RequestRecord, RunRecord
from loadtests.shapes import StageSpan

NEVER_ANSWERED = "not answered by the end of the run"
# Times are recorded to the microsecond.
_TIME_RESOLUTION = 2e-6


@dataclass(frozen=True)
class Latencies:
    """Seconds; NaN when nothing was answered."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class WakeUp:
    """The first request after a time without traffic."""

    at: float
    latency: float
    """Seconds to its answer; infinite when none was right."""
    nodes: int | None
    """Nodes there were when it came; None when the server does not report it."""


@dataclass(frozen=True)
class ObjectiveCheck:
    """One demand; `passed` is None when it could not be judged."""

    demand: str
    passed: bool | None
    found: str


@dataclass(frozen=True)
class SecondStats:
    """One second of a run."""

    second: int
    answered: int
    """Right answers that came in it."""
    failed: int
    """Failures that were noticed in it."""
    latencies: Latencies
    """Of the requests that were due in it."""
    ready: int | None
    starting: int | None
    """Nodes as last reported before its end; None when the server does not report it."""


@dataclass(frozen=True)
class RunSummary:
    """All numbers of the report. Latencies are those of right answers; times are seconds."""

    requests: int
    """Requests that were due."""
    failures: Counter[str]
    latencies: Latencies
    wake_ups: list[WakeUp]
    seconds: float
    """How long the run lasted."""
    most_nodes: int | None
    node_seconds: float | None
    """Nodes in any state, summed over time; None when the server does not report it."""
    waited: int
    """Requests that were late because all users were busy."""
    lateness: float
    """By how much the loading machine was late, p99."""
    checks: list[ObjectiveCheck]

    @property
    def failed(self) -> int:
        """Requests without a right answer."""
        return self.failures.total()

    @property
    def passed(self) -> bool:
        return all(check.passed is not False for check in self.checks)


def summarize_run(record: RunRecord) -> RunSummary:
    end = _end_time(record)
    failures = Counter(one.failure for one in record.requests if one.failure)
    due = record.run.plan.count_due_before(end)
    if missing := due - len(record.requests):
        failures[NEVER_ANSWERED] = missing
    wakes = _find_wake_ups(record, end)
    return RunSummary(
        requests=due,
        failures=failures,
        latencies=measure_latencies(record.requests),
        wake_ups=wakes,
        seconds=end,
        most_nodes=max((one.nodes for one in record.samples), default=None),
        node_seconds=_node_seconds(record.samples) if record.samples else None,
        waited=sum(one.free > one.due for one in record.requests),
        lateness=_find_quantile(sorted(one.lateness for one in record.requests), 0.99),
        checks=_check_objectives(record, failures, due, wakes),
    )


def measure_latencies(requests: Iterable[RequestRecord]) -> Latencies:
    """Percentiles of the right answers."""
    times = sorted(one.latency for one in requests if not one.failure)
    return Latencies(_find_quantile(times, 0.5), _find_quantile(times, 0.99), _find_quantile(times, 1))


def summarize_seconds(record: RunRecord) -> list[SecondStats]:
    due = defaultdict(list)
    answered: Counter[int] = Counter()
    failed: Counter[int] = Counter()
    for one in record.requests:
        due[int(one.due)].append(one)
        (failed if one.failure else answered)[int(one.done)] += 1
    return [
        SecondStats(
            second=second,
            answered=answered[second],
            failed=failed[second],
            latencies=measure_latencies(due[second]),
            ready=sample.ready if sample else None,
            starting=sample.starting if sample else None,
        )
        for second in range(math.ceil(_end_time(record)))
        for sample in [_last_sample(record.samples, second + 1)]
    ]


def _find_quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def _end_time(record: RunRecord) -> float:
    """When the run ended, or the last recorded time."""
    if record.run.ended is not None:
        return record.run.ended
    known = [one.done for one in record.requests] + [one.at for one in record.samples]
    return max(known, default=0.0)


def _last_sample(samples: Sequence[NodeSample], at: float) -> NodeSample | None:
    """The last sample up to a time."""
    found = bisect_right(samples, at, key=lambda one: one.at)
    return samples[found - 1] if found else None


def _node_seconds(samples: Sequence[NodeSample]) -> float:
    # The first count comes before the start.
    return sum(
        (after.at - max(before.at, 0)) * before.nodes for before, after in pairwise(samples) if after.at > 0
    )


def _find_wake_ups(record: RunRecord, end: float) -> list[WakeUp]:
    wakes = []
    for begin in record.run.plan.list_wake_times():
        if begin < end:
            first = next((one for one in record.requests if abs(one.due - begin) < _TIME_RESOLUTION), None)
            right = first is not None and not first.failure
            sample = _last_sample(record.samples, begin)
            latency = first.latency if first and right else math.inf
            wakes.append(WakeUp(begin, latency, sample.nodes if sample else None))
    return wakes


def _check_objectives(
    record: RunRecord, failures: Counter[str], due: int, wakes: Sequence[WakeUp]
) -> list[ObjectiveCheck]:
    run = record.run
    slowest = max((wake.latency for wake in wakes), default=math.nan)
    settled = [_settled_p99(record.requests, span) for span in run.plan.spans if span.rate]
    worst = max(settled, default=math.nan)
    checks = [
        ObjectiveCheck("the run comes to its end", run.ended is not None, "yes" if run.ended else "no"),
        ObjectiveCheck(
            "every request is answered", not failures.total(), f"{due - failures.total():,} of {due:,}"
        ),
        ObjectiveCheck(
            f"the first answer after a pause within {run.wake_within:g} s",
            slowest <= run.wake_within,
            f"{format_duration(slowest)} at most",
        ),
        ObjectiveCheck(
            f"p99 in the second half of each stage within {run.p99_within:g} s",
            worst <= run.p99_within,
            f"{format_duration(worst)} at most",
        ),
    ]
    return [*checks, _check_sleep(record, wakes)] if run.plan.sleeps else checks


def _settled_p99(requests: Iterable[RequestRecord], span: StageSpan) -> float:
    """p99 in the second half of a stage; infinite when nothing was answered."""
    middle = (span.begin + span.end) / 2
    p99 = measure_latencies(one for one in requests if middle <= one.due < span.end).p99
    return math.inf if math.isnan(p99) else p99


def _check_sleep(record: RunRecord, wakes: Sequence[WakeUp]) -> ObjectiveCheck:
    demand = "no node at the end of each pause"
    ends = [wake.nodes for wake in wakes]
    if not record.run.plan.stages[-1].rate:
        last = _last_sample(record.samples, math.inf)
        ends.append(last.nodes if last else None)
    known = [nodes for nodes in ends if nodes is not None]
    if len(known) < len(ends):
        return ObjectiveCheck(demand, None, "the server does not report node counts")
    left = f"{', '.join(map(str, known))} left; is the pause longer than the server's idle time-out?"
    return ObjectiveCheck(demand, not any(known), left if any(known) else "none")


def format_duration(seconds: float) -> str:
    """A time with three digits and a unit."""
    if not math.isfinite(seconds):
        return "no answer"
    milliseconds = seconds * 1000
    if milliseconds < 1000:
        return f"{milliseconds:.2g} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
