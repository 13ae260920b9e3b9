"""When a job has waited or run for too long. Pure."""

from __future__ import annotations

import datetime
from typing import NamedTuple

from serving.gateway.jobs.job_kind import TimeLimits
from serving.gateway.state.records import JobRecord


class Deadline(NamedTuple):
    """When a job is cancelled, and why."""

    time: datetime.datetime
    reason: str


def find_deadline(record: JobRecord, limits: TimeLimits) -> Deadline | None:
    """The next one. Waiting ends with the first time that a job is RUNNING, for good."""
    since, seconds, field, verb = (
        (record.run_time, limits.running, "maxRunningTime", "ran")
        if record.run_time
        else (record.job.create_time, limits.waiting, "maxWaitTime", "waited")
    )
    if not seconds:
        return None
    try:
        time = datetime.datetime.fromisoformat(since) + datetime.timedelta(seconds=seconds)
    except OverflowError:  # after the year 9999
        return None
    reason = f"The job was cancelled: it {verb} for longer than scheduling.{field} allows, {seconds:g}s."
    return Deadline(time, reason)
