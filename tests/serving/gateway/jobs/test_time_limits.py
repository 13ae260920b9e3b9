"""When a job has waited or run for too long."""

from __future__ import annotations

import datetime

from serving.gateway.jobs.job_kind import TimeLimits, find_deadline
from serving.gateway.state.records import JobRecord
from serving.resources import Job

CREATED, RUNNING = "2030-01-01T00:00:00Z", "2030-01-01T01:00:00Z"


def record(run_time: str = "") -> JobRecord:
    job = Job(create_time=CREATED)
    return JobRecord(name="n", project="p", uid="u", number=1, job=job, run_time=run_time)


def test_a_job_without_limits() -> None:
    assert find_deadline(record(), TimeLimits()) is None
    assert find_deadline(record(), TimeLimits(running=60.0)) is None
    assert find_deadline(record(RUNNING), TimeLimits(waiting=60.0)) is None


def test_waiting_counts_from_creation_and_running_from_the_first_time() -> None:
    limits = TimeLimits(waiting=1800.0, running=90.0)
    waiting, running = find_deadline(record(), limits), find_deadline(record(RUNNING), limits)

    assert waiting is not None
    assert running is not None
    assert waiting.time == datetime.datetime(2030, 1, 1, 0, 30, tzinfo=datetime.UTC)
    assert "waited for longer than scheduling.maxWaitTime allows, 1800s" in waiting.reason
    assert running.time == datetime.datetime(2030, 1, 1, 1, 1, 30, tzinfo=datetime.UTC)
    assert "ran for longer than scheduling.maxRunningTime allows, 90s" in running.reason


def test_a_limit_beyond_the_calendar_is_none() -> None:
    limits = TimeLimits(waiting=999_999_999_999.0, running=999_999_999_999.0)

    assert find_deadline(record(), limits) is None
    assert find_deadline(record(RUNNING), limits) is None
