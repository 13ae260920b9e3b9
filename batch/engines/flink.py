"""Flink, by its REST interface.

Beam's job server does not pass a cancel on to Flink while the job runs, and tells nothing of a job that waits
for slots. Source: https://nightlies.apache.org/flink/flink-docs-stable/docs/ops/rest_api/
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batch.engines.engine import WORKER_START_SECONDS, EngineState, PipelineName
from batch.engines.http_calls import HttpStatusError, fetch_json, normalize_url
from batch.engines.root_cause import find_root_cause
from serving.errors import Unavailable

logger = logging.getLogger(__name__)

# Seconds within which a cancelled job must end, and within which one may still arrive that was being
# submitted.
_END_WITHIN, _ARRIVE_WITHIN = 10.0, 3.0
_POLL_SECONDS = 0.2
_ENDS = frozenset({"CANCELED", "FAILED", "FINISHED"})
# TaskManagers that are asked which job holds their slots.
_MOST_MANAGERS = 50
# States of tasks that have no slot.
_WAITING_TASKS = ("created", "scheduled")
# What Flink says when a TaskManager, a worker beside it, or the JobManager of one is gone.
_LOST_WORKER = (
    "TaskManager",
    # "The heartbeat of JobManager with id ... timed out": a TaskManager was cut off.
    "JobManager",
    "TaskExecutor",
    "task manager",
    "RecipientUnreachableException",
    "RemoteTransportException",
    "LocalTransportException",
    "PartitionConnectionException",
    "PartitionNotFoundException",
    "SDK harness closed connection",
    "SdkHarness",
    "UNAVAILABLE: Network closed",
    "call already cancelled",
    # Killed, for example for lack of memory.
    "Process died with exit code 13",
)


@dataclass(frozen=True, slots=True)
class FlinkJob:
    """A job as Flink lists it. `tasks` counts its tasks by state."""

    identifier: str
    name: str
    state: str
    tasks: Mapping[str, int]

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> FlinkJob:
        return cls(given["jid"], given["name"], given["state"], given.get("tasks", {}))

    @property
    def is_waiting(self) -> bool:
        """Whether its tasks have no slots. Tasks of later steps wait for those of earlier ones too."""
        waiting = sum(self.tasks.get(state, 0) for state in _WAITING_TASKS)
        begun = sum(self.tasks.values()) - self.tasks.get("total", 0) - waiting
        return self.state in ("CREATED", "RUNNING") and waiting > 0 and not begun


@dataclass(frozen=True, slots=True)
class FlinkOverview:
    task_managers: int
    slots: int
    free_slots: int

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> FlinkOverview:
        return cls(given["taskmanagers"], given["slots-total"], given["slots-available"])


class FlinkEngine:
    """A Flink cluster at a URL, and the attempts at a job that are called by `pipeline` on it."""

    name = "Flink"
    worker_start_seconds = WORKER_START_SECONDS

    def __init__(
        self,
        url: str,
        pipeline: PipelineName,
        attempt: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = normalize_url(url)
        self._pipeline = pipeline
        self._attempt = attempt
        self._clock = clock
        self._wait = wait

    def limit_workers(self, wanted: int) -> int:
        try:
            slots = FlinkOverview.from_json(self._get("/overview")).slots
        except OSError:
            return wanted
        # A cluster without any may start TaskManagers on demand.
        return min(wanted, slots) if slots else wanted

    def find_state(self) -> EngineState:
        try:
            jobs = self._find_current_jobs()
        except OSError:
            return EngineState.UNKNOWN
        if not jobs:
            return EngineState.ABSENT
        if all(job.state in _ENDS for job in jobs):
            return EngineState.ENDED
        return EngineState.WAITING if any(job.is_waiting for job in jobs) else EngineState.RUNNING

    def find_trouble(self) -> str:
        try:
            jobs = self._find_current_jobs()
            overview = FlinkOverview.from_json(self._get("/overview"))
            for job in jobs:
                if job.state == "RESTARTING":
                    return f"Flink restarts the job: {self._find_last_error(job)}"
                if job.is_waiting:
                    # Those that a waiting job holds already are free for it.
                    free = overview.free_slots + self._count_held_slots(job)
                    return _describe_missing_slots(self._fetch_job_parallelism(job), free, overview)
        except OSError as error:
            return f"Flink does not answer at {self._url}: {error}."
        return ""

    def is_worker_lost(self, error: str) -> bool:
        return any(sign in error for sign in _LOST_WORKER)

    def cancel(self) -> None:
        """Jobs are looked for until those found have ended, and none can arrive any more."""
        start = self._clock()
        found = False
        while True:
            try:
                jobs = [job for job in self._list_jobs() if job.state not in _ENDS]
                for job in jobs:
                    if job.state != "CANCELLING":
                        logger.info("cancelling the job %s of Flink", job.identifier)
                        self._call("PATCH", f"/jobs/{job.identifier}?mode=cancel")
            except OSError as error:
                raise Unavailable(f"Flink does not answer at {self._url}: {error}.") from error
            found = found or bool(jobs)
            seconds = self._clock() - start
            if not jobs and (found or seconds > _ARRIVE_WITHIN):
                return
            if seconds > _END_WITHIN:
                names = ", ".join(job.identifier for job in jobs)
                raise Unavailable(f"Flink has not ended {names} within {_END_WITHIN:.0f} s.")
            self._wait(_POLL_SECONDS)

    def _find_current_jobs(self) -> list[FlinkJob]:
        name = self._pipeline.format_attempt(self._attempt)
        return [job for job in self._list_jobs() if job.name == name]

    def _list_jobs(self) -> list[FlinkJob]:
        jobs: Sequence[Mapping[str, Any]] = self._get("/jobs/overview")["jobs"]
        return [FlinkJob.from_json(job) for job in jobs if self._pipeline.matches(job["name"])]

    def _fetch_job_parallelism(self, job: FlinkJob) -> int:
        steps = self._get(f"/jobs/{job.identifier}")["vertices"]
        return max((int(step["parallelism"]) for step in steps), default=1)

    def _count_held_slots(self, job: FlinkJob) -> int:
        managers = self._get("/taskmanagers")["taskmanagers"][:_MOST_MANAGERS]
        details = [self._get(f"/taskmanagers/{one['id']}") for one in managers]
        return sum(slot["jobId"] == job.identifier for one in details for slot in one["allocatedSlots"])

    def _find_last_error(self, job: FlinkJob) -> str:
        history = self._get(f"/jobs/{job.identifier}/exceptions?maxExceptions=1")
        return find_root_cause(history.get("root-exception") or "") or "it does not say why."

    def _get(self, path: str) -> Any:
        return self._call("GET", path)

    def _call(self, method: str, path: str) -> Any:
        """The JSON of the answer. Raises OSError."""
        try:
            return fetch_json(method, f"{self._url}{path}")
        except HttpStatusError as error:
            # A job that has just ended cannot be cancelled any more.
            if method == "PATCH" and error.status in (404, 409):
                return {}
            raise


def _describe_missing_slots(workers: int, free: int, overview: FlinkOverview) -> str:
    managers = overview.task_managers
    return (
        f"{workers} workers wanted, {free} {'slot is' if free == 1 else 'slots are'} free in Flink "
        f"({overview.slots} in all, on {managers} TaskManager{'' if managers == 1 else 's'}): the job waits. "
        "Start TaskManagers, wait for the end of other jobs, or ask for fewer workers (maxWorkerCount, "
        "--parallelism)."
    )
