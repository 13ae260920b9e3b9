"""Deletes the records of jobs and operations that ended long ago."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.config import ServeConfig
from serving.gateway.catalog import Catalog
from serving.gateway.catalog.studies import delete_study_of_job
from serving.gateway.jobs.job_queue import JobQueue
from serving.gateway.state.catalog_state import StateDraft
from serving.gateway.state.records import ChangeStamp, JobRecord
from serving.gateway.state.sorted_index import SortedSequence
from serving.resources import format_timestamp

# Seconds between two runs; records deleted in one change, few because other changes wait for it.
_INTERVAL, _BATCH = 60.0, 100
_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How many days records are kept after their end, and how many of them; 0: no limit."""

    days: int
    count: int

    def list_due(self, ended: SortedSequence[tuple[str, str]], now: datetime.datetime) -> Sequence[str]:
        """The next names to delete; `ended` has (end time, name)."""
        excess = max(0, len(ended) - self.count) if self.count else 0
        oldest = format_timestamp(now - datetime.timedelta(days=self.days)) if self.days else ""
        return [name for place, (end, name) in enumerate(ended[:_BATCH]) if place < excess or end < oldest]


class RecordPruner:
    """Deletes records as the settings say; `read_clock` is that of the catalog unless given."""

    def __init__(
        self,
        catalog: Catalog,
        jobs: JobQueue,
        config: ServeConfig,
        read_clock: Callable[[], Awaitable[datetime.datetime]] | None = None,
    ) -> None:
        self._catalog = catalog
        self._jobs = jobs
        self._job_retention = RetentionPolicy(config.job_retention_days, config.job_retention_count)
        self._operation_retention = RetentionPolicy(
            config.operation_retention_days, config.operation_retention_count
        )
        self._read_clock = read_clock or catalog.read_clock

    def start(self, supervisor: Supervisor) -> BackgroundLoop:
        async def wait_interval() -> None:
            await asyncio.sleep(_INTERVAL)

        return supervisor.start_loop("retention", wait_interval, self.prune, within=_TIMEOUT)

    async def prune(self) -> None:
        """Delete all that is due, in small changes between which others have their turn, if that is ours."""
        self._catalog.set_work_fence()
        while self._catalog.owns_work and (due := await self._list_due()):
            await self._delete_records(due)

    async def _list_due(self) -> Sequence[tuple[str, str]]:
        now = await self._read_clock()
        state = self._catalog.state
        jobs = self._job_retention.list_due(state.job_index.ended, now)
        operations = self._operation_retention.list_due(state.operation_index.done, now)
        # The queue may still have to record the end of a job.
        idle = (name for name in jobs if not self._jobs.is_working_on(name))
        return [*(("jobs", name) for name in idle), *(("operations", name) for name in operations)]

    async def _delete_records(self, due: Sequence[tuple[str, str]]) -> None:
        state = self._catalog.state
        uids = [state.jobs[name].uid for table, name in due if table == "jobs"]
        await self._catalog.change(_delete_due, due)
        # After the change: logs that a kill leaves are removed at the next start.
        await self._jobs.remove_logs(uids)


def _delete_due(draft: StateDraft, _: ChangeStamp, due: Sequence[tuple[str, str]]) -> None:
    for table, name in due:
        record = draft.jobs.get(name) if table == "jobs" else draft.operations.get(name)
        if isinstance(record, JobRecord):
            delete_study_of_job(draft, record)
        if record is not None:
            draft.delete(record)
