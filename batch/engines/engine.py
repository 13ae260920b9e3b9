"""What a job asks of the engine that runs its pipeline, besides what Beam does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

# A worker imports Beam, which takes seconds, or its container is fetched.
WORKER_START_SECONDS = 60.0


class EngineState(StrEnum):
    """UNKNOWN: the engine does not tell. ABSENT: it does not know the job. WAITING: for a slot of a task."""

    UNKNOWN = "UNKNOWN"
    ABSENT = "ABSENT"
    WAITING = "WAITING"
    RUNNING = "RUNNING"
    ENDED = "ENDED"


class Engine(Protocol):
    """A cluster. Each call takes seconds at most; only `cancel` raises."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def worker_start_seconds(self) -> float:
        """How long a worker may take to begin, once the job has its place."""

    def limit_workers(self, wanted: int) -> int:
        """How many of the workers that a job wants the cluster has room for when it does nothing else."""

    def find_state(self) -> EngineState:
        """The state of the job's current attempt."""

    def find_trouble(self) -> str:
        """What keeps the job from going on, as a sentence; "" if nothing is known."""

    def is_worker_lost(self, error: str) -> bool:
        """Whether a pipeline that failed with this error may succeed on other workers."""

    def cancel(self) -> None:
        """End all attempts at the job, and wait for their end. Raises Unavailable if one goes on."""


@dataclass(frozen=True, slots=True)
class PipelineName:
    """What the attempts at a job are called on an engine: names that no other job has."""

    stem: str

    @classmethod
    def of_job(cls, job: str, uid: str) -> PipelineName:
        name = re.sub(r"[^a-z0-9]+", "-", job.rpartition("/")[2].lower()).strip("-")
        # That of `local batch` has the identifier in it.
        return cls(f"pilotlight-{name}" if uid in name else f"pilotlight-{name}-{uid.lower()}")

    def format_attempt(self, attempt: int) -> str:
        return f"{self.stem}-{attempt}" if attempt > 1 else self.stem

    def matches(self, name: str) -> bool:
        """Whether this is the name of one of the attempts."""
        return re.fullmatch(rf"{re.escape(self.stem)}(-\d+)?", name) is not None


class OpaqueEngine:
    """An engine of which nothing is known but what Beam tells."""

    def __init__(self, name: str, worker_start_seconds: float = WORKER_START_SECONDS) -> None:
        self.name = name
        self.worker_start_seconds = worker_start_seconds

    def limit_workers(self, wanted: int) -> int:
        return wanted

    def find_state(self) -> EngineState:
        return EngineState.UNKNOWN

    def find_trouble(self) -> str:
        return ""

    def is_worker_lost(self, error: str) -> bool:
        return False

    def cancel(self) -> None:
        """Beam has asked for it already."""
