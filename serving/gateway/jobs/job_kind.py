"""The protocol of a kind of job; see `serving.gateway.jobs.kinds`.

Queue, attempts, supervision of processes, logs, states, positions, cancellation and restarts are the same for
all kinds, in the other modules here, in `serving.gateway.catalog.jobs` and `serving.gateway.api.jobs`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from autoscaler.node_process import LaunchSpec
from autoscaler.pools import PilotSpec
from serving.gateway.catalog.jobs import NewJobRules, PlannedVersion
from serving.gateway.jobs.log_lines import JobLogLine
from serving.gateway.state.records import JobOutput, JobRecord, VersionRecord
from serving.resources import Job

# In the folder of a job: what attempts leave in it is removed when they end, whatever comes of them.
SCRATCH_FOLDER = "scratch"
# The name of a process that was forked for a job.
JOB_PROCESS = "pilotlight-job"


class SucceededAttempt(NamedTuple):
    """The work is done."""

    output: JobOutput


class FailedAttempt(NamedTuple):
    """Another attempt would not help; the process has left nothing behind."""

    message: str
    output: JobOutput


class LostProcess(NamedTuple):
    """The process ended before it reported a result."""

    reason: str


AttemptResult = SucceededAttempt | FailedAttempt | LostProcess


class FoundModels(NamedTuple):
    """The folders with models that are in a folder, "" where there is none."""

    folder: str = ""
    models: Sequence[str] = ()


class TimeLimits(NamedTuple):
    """Seconds from a job's creation until it must be RUNNING, and from then until its end; 0: no limit."""

    waiting: float = 0.0
    running: float = 0.0


class JobDeadline(NamedTuple):
    """When a job is cancelled, and why."""

    time: datetime.datetime
    reason: str


def find_deadline(record: JobRecord, limits: TimeLimits) -> JobDeadline | None:
    """The next one of a job. Waiting ends with the first time that a job is RUNNING, for good."""
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
    return JobDeadline(time, reason)


class ForkPlan(NamedTuple):
    """How a process is forked from a pilot: what it runs, and which pilot has imported what that needs."""

    pilot: PilotSpec
    launch: LaunchSpec


class JobAttempt(Protocol):
    """One process that works on a job, and what it has reported so far. Called on the event loop."""

    @property
    def request(self) -> bytes:
        """What the process reads on its stdin: JSON."""

    @property
    def phase(self) -> str:
        """The step that it has begun, "" while none is known."""

    @property
    def is_running(self) -> bool:
        """Whether its preparations are over."""

    @property
    def output(self) -> JobOutput | None:
        """What has come of the job so far, None while nothing is known."""

    def read_report(self, line: bytes, now: float) -> AttemptResult | None:
        """Read a line of the process's stdout; `now` is in seconds on any monotonic clock.

        Returns the result if the line has it. A line that is no report is skipped.
        """


class JobKind(NewJobRules, Protocol):
    """What is particular to one kind of job."""

    @property
    def command(self) -> Sequence[str]:
        """Starts a process; one word is `autoscaler.child_launcher.LIFELINE_PLACEHOLDER`."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the processes."""

    @property
    def grace_seconds(self) -> float:
        """How long a process may take to end when it is asked to."""

    @property
    def oom_score(self) -> int:
        """That of the processes, 0 for the server's; see `autoscaler.linux.raise_oom_score`."""

    @property
    def log_task(self) -> str:
        """The task, in the log, of what the processes write to their stderr."""

    def list_permissions(self, project: str, job: Job) -> Sequence[tuple[str, str]]:
        """What the sender of a job of a project needs besides: permissions, each with a resource."""

    def check_settings(self, job: Job) -> None:
        """Check what the settings allow. Blocks.

        Raises InvalidArgument, FailedPrecondition or Unimplemented.
        """

    async def check_output_writable(self, job: Job) -> None:
        """Try whether a new job can write where it is to write. Raises a ServingError naming the field."""

    def find_time_limits(self, job: Job) -> TimeLimits:
        """A job that goes over one is cancelled."""

    def choose_due(self, waiting: Sequence[JobRecord], running: Sequence[JobRecord]) -> Sequence[JobRecord]:
        """Choose which waiting jobs start now, beside those that run; both have the oldest first."""

    def explain_wait(
        self, record: JobRecord, waiting: Sequence[JobRecord], running: Sequence[JobRecord]
    ) -> str:
        """Why one of the waiting jobs has not started yet."""

    def build_next_output(self, record: JobRecord) -> JobOutput:
        """The output of a job when its next attempt begins."""

    def create_attempt(self, record: JobRecord, version: VersionRecord | None, folder: Path) -> JobAttempt:
        """Build the next attempt; `version` is the job's target, `folder` is the job's alone."""

    def plan_fork(self, attempt: JobAttempt) -> ForkPlan | None:
        """How to fork an attempt's process, which reports as one of `command` does; None: only `command`.

        Blocks.
        """

    async def direct(self, record: JobRecord, attempt: JobAttempt) -> None:
        """Tell an attempt what to do while it works; runs beside its process, and is cancelled with it."""

    def create_cleanup(
        self, record: JobRecord, version: VersionRecord | None, folder: Path
    ) -> JobAttempt | None:
        """Build the removal of what attempts have left outside of `folder`; None if there is nothing."""

    def describe_leftovers(self, record: JobRecord) -> str:
        """What may be left when the removal fails, for the owner of the job."""

    async def find_models(self, record: JobRecord, trial: str = "") -> FoundModels:
        """The folders with models that a job has made, or one of its trials. Raises a ServingError."""

    async def plan_version(self, record: JobRecord) -> PlannedVersion | None:
        """The version that a job becomes when it succeeds, if it is to. Raises a ServingError."""

    def add_details(self, record: JobRecord) -> JobRecord:
        """Add to the output what is kept elsewhere, to be shown."""

    def iter_extra_log_lines(self, folder: Path, since: int) -> Iterator[JobLogLine]:
        """Lines that processes have written elsewhere than to stderr, from a time on, in order.

        The time is in microseconds since the epoch. Blocks.
        """

    def read_last_extra_lines(self, folder: Path, count: int) -> Sequence[str]:
        """The texts of the last of these lines. Blocks."""

    def render_progress(self, record: JobRecord, attempt: JobAttempt | None) -> Mapping[str, Any]:
        """What only this kind tells of a job's progress; `attempt` is None while nobody works on the job."""
