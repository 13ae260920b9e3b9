"""Recorded runs for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from loadtests.run_record import NodeSample, RequestRecord, RunRecord, RunSettings
from loadtests.shapes import LoadPlan, LoadStage

# A pause of 10 s, ten seconds with 10 requests each, and a pause again.
PLAN = LoadPlan("idle-wake-idle", (LoadStage(10, 0), LoadStage(10, 10), LoadStage(10, 0)), sleeps=True)
RUN = RunSettings(
    "http://host:1", "projects/p/models/m", 1, 8, PLAN, wake_within=2, p99_within=0.5, ended=30.5
)

# The first request wakes the version, which takes a second; the others take 10 ms.
REQUESTS = [
    RequestRecord(due, due - 1, due + 0.001, due + 0.001 + (1.0 if due == 10 else 0.01))
    for due in PLAN.iter_due_times()
]
# One node is there from second 11 to second 25; it starts for one second.
SAMPLES = [
    NodeSample(float(at), ready=int(11 <= at < 25), starting=int(at == 10.5), draining=int(at == 25))
    for at in (*range(11), 10.5, *range(11, 31))
]


def record(
    requests: Iterable[RequestRecord] = REQUESTS, samples: Iterable[NodeSample] = SAMPLES, **run: object
) -> RunRecord:
    """The run above, with other parts where they are given."""
    return RunRecord(replace(RUN, **run), list(requests), list(samples))  # type: ignore[arg-type]
