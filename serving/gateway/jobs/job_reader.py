"""Reads what is known of a job beyond its record, on the server that has worked on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from serving.gateway.jobs.job_kind import FoundModels
from serving.gateway.jobs.job_queue import JobQueue
from serving.gateway.jobs.log_query import LogPart, LogQuery, find_first_time, select_lines
from serving.gateway.state.records import JobRecord
from serving.gateway.thread_pool import ThreadPool

_TAIL_LINES = 20
_TAIL_THREADS, _TAIL_QUEUE = 2, 62
_LOG_THREADS, _LOG_QUEUE = 2, 30

# The points of each metric, by its tag and the folder that it is in: `tuning.metrics.event_curves.Curves`.
Curves = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]


class JobReader(Protocol):
    """All raise a ServingError; where another server is asked, it has so many seconds to answer."""

    async def read_progress(self, record: JobRecord, seconds: float) -> Mapping[str, Any]:
        """The counts of a job, its rate, and the end of its log."""

    async def read_log(self, record: JobRecord, query: LogQuery, seconds: float) -> Sequence[LogPart]:
        """What a query asks for: a part from each server that has worked on the job."""

    async def find_models(self, record: JobRecord, trial: str, seconds: float) -> FoundModels:
        """See `JobKind.find_models`."""

    async def read_curves(self, record: JobRecord, seconds: float) -> Curves:
        """The metrics of a training job, as far as event files in its folder have them."""


class LocalJobReader:
    """What this server has. `read_curves` reads the event files in the folder of a job."""

    def __init__(self, job_queue: JobQueue, read_curves: Callable[[str], Awaitable[Curves]]) -> None:
        self._job_queue = job_queue
        self._read_curves = read_curves
        self._tail_threads = ThreadPool("job logs", _TAIL_THREADS, queue=_TAIL_QUEUE)
        self._log_threads = ThreadPool("log entries", _LOG_THREADS, queue=_LOG_QUEUE)

    async def read_progress(self, record: JobRecord, seconds: float = 0.0) -> Mapping[str, Any]:
        return {**self.render_progress(record), "log": await self.read_last_lines(record)}

    async def read_log(self, record: JobRecord, query: LogQuery, seconds: float = 0.0) -> Sequence[LogPart]:
        return [await self.read_log_part(record, query)]

    async def find_models(self, record: JobRecord, trial: str, seconds: float = 0.0) -> FoundModels:
        return await self._job_queue.kinds[record.kind].find_models(record, trial)

    async def read_curves(self, record: JobRecord, seconds: float = 0.0) -> Curves:
        return await self._read_curves(find_job_dir(record))

    def render_progress(self, record: JobRecord) -> Mapping[str, Any]:
        """See `JobQueue.render_progress`."""
        return self._job_queue.render_progress(record)

    async def read_last_lines(self, record: JobRecord, folder: Path | None = None) -> Sequence[str]:
        """The texts of the last lines of a job's log that are on this server, or in `folder`."""
        return await self._tail_threads.run(self._job_queue.read_last_lines, record, _TAIL_LINES, folder)

    async def read_log_part(
        self, record: JobRecord, query: LogQuery, place: int = 0, folder: Path | None = None
    ) -> LogPart:
        """What of a job's log is on this server, or in `folder`; see `JobQueue.iter_log_lines`."""

        def read() -> LogPart:
            lines = self._job_queue.iter_log_lines(record, find_first_time(query), place, folder)
            return select_lines(lines, record, query)

        return await self._log_threads.run(read)


def find_job_dir(record: JobRecord) -> str:
    """The folder of a training job as it was given, "" where it has none."""
    return str(record.sent_input.get("jobDir", ""))
