"""Runs queued jobs of all kinds; retries lost processes; resumes after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import heapq
import logging
import operator
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from autoscaler.pools import NodePool
from autoscaler.supervision import Supervisor
from serving.artifacts.job_logs import LOG_FILE, LOG_FOLDER
from serving.errors import FailedPrecondition, InvalidArgument, ServingError, Unavailable, Unimplemented
from serving.gateway.catalog import Catalog
from serving.gateway.catalog import jobs as rules
from serving.gateway.jobs.error_streak import ErrorStreak, explain_error
from serving.gateway.jobs.job_kind import (
    SCRATCH_FOLDER,
    AttemptResult,
    FailedAttempt,
    ForkPlan,
    JobAttempt,
    JobDeadline,
    JobKind,
    LostProcess,
    SucceededAttempt,
    find_deadline,
)
from serving.gateway.jobs.job_log import JobLog
from serving.gateway.jobs.job_process import JobProcesses, JobProcessLauncher, ReportHandler
from serving.gateway.jobs.log_copies import COPIED_FILE, COPIES_FOLDER, LogCopies
from serving.gateway.jobs.log_lines import JobLogLine, parse_log_lines
from serving.gateway.state.catalog_state import CatalogState, Commit
from serving.gateway.state.records import JobKindName, JobOutput, JobRecord, JobServer, VersionRecord
from serving.gateway.thread_pool import ThreadPool
from serving.resources import Job, Operation, Version
from serving.scratch_folders import remove_folder

logger = logging.getLogger(__name__)

# Lost attempts that make a job fail, and tries to remove what they have left behind.
_MAX_LOST_ATTEMPTS, _MAX_CLEANUP_ATTEMPTS = 4, 3
# What is kept of a job's files after its end.
_KEPT_FILES = frozenset({LOG_FILE, LOG_FOLDER, COPIED_FILE, COPIES_FOLDER})
_MAX_TIMER_SECONDS = 86400.0
_STOP_NOTE = "The server stops. The job goes on when the server is started again."
_HAND_OVER_NOTE = "The job goes on at another server."
# For copies of logs, when the server stops.
_COPY_SECONDS = 10.0
# For logs, and for the removal of files.
_THREADS = 4
# A removal reports nothing while it runs, however many files there are.
_CLEANUP_SILENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class JobTiming:
    """In seconds: how long a process may be silent; the delays after the first lost attempt, the second and
    so on; how often counts are stored; and the delays after errors of the server's own (see `ErrorStreak`).
    """

    silence_seconds: float = 60.0
    retry_delays: tuple[float, ...] = (1.0, 2.0, 4.0)
    save_interval: float = 2.0
    error_delays: tuple[float, ...] = (2.0, 10.0, 30.0)


class OperationStarter(Protocol):
    """What jobs need of operations."""

    async def check_sources(self, version: Version) -> None:
        """Raises a ServingError for files that may not be deployed."""

    def begin(self, operation: Operation) -> None:
        """Start an operation that was just committed."""


@dataclass(slots=True)
class _ActiveJob:
    """A job that is worked on. `stop` is set when its process is to end; `holds` if it takes up a slot."""

    holds_slot: bool
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    attempt: JobAttempt | None = None
    saved_at: float = 0.0
    task: asyncio.Task[None] | None = None


def _find_no_server() -> None:
    return None


FetchFiles = Callable[[VersionRecord], Awaitable[VersionRecord]]
"""Returns the version with the paths of its files. Raises a ServingError."""


class JobQueue:
    """Runs queued jobs of all kinds; retries lost processes; resumes after a restart.

    Each job that is worked on has a task of the application's supervisor, and its own folder in `folder`.
    Processes may be forked from pilots of `pool`. Versions that jobs become are created by `operations`; a
    project may have `max_versions`, 0: any number. `fetch_files` has the files of a job's version on this
    server, where another one may have prepared them. `find_server` returns what this server is known by to
    others of its state, None where there are no others; `log_copies` has copies of logs for them.
    """

    def __init__(
        self,
        catalog: Catalog,
        supervisor: Supervisor,
        kinds: Iterable[JobKind],
        operations: OperationStarter,
        folder: Path,
        *,
        pool: NodePool,
        max_versions: int = 0,
        timing: JobTiming | None = None,
        fetch_files: FetchFiles | None = None,
        find_server: Callable[[], JobServer | None] = _find_no_server,
        log_copies: LogCopies | None = None,
    ) -> None:
        self._catalog = catalog
        self._supervisor = supervisor
        self.kinds: Mapping[JobKindName, JobKind] = {kind.name: kind for kind in kinds}
        self._operations = operations
        self._pool = pool
        self._max_versions = max_versions
        self._folder = folder
        self._threads = ThreadPool("jobs", _THREADS)
        self._processes = JobProcesses()
        self._timing = timing or JobTiming()
        self._fetch_files = fetch_files
        self._find_server = find_server
        self._log_copies = log_copies
        self._active_jobs: dict[str, _ActiveJob] = {}
        self._accepting = False
        self._limit_timer: asyncio.TimerHandle | None = None

    # ---- the queue

    def remove_stale_files(self, state: CatalogState) -> None:
        """Delete the files, but not the logs, of jobs that are not worked on (a kill may have left some)."""
        if not self._folder.is_dir():
            return
        ended = {record.uid: record.has_ended for record in state.jobs.values()}
        for folder in self._folder.iterdir():
            if folder.name not in ended:
                remove_folder(folder)
            # Jobs that have ended are many, and next to all of their folders are as they should be.
            elif ended[folder.name] and not _KEPT_FILES.issuperset(path.name for path in folder.iterdir()):
                self._remove_work_files(folder.name)

    def resume(self) -> None:
        """Start work; what a stop or a kill has interrupted comes first."""
        self._accepting = True
        self.fail_jobs_missing_version(self._catalog.state)
        self.start_due_jobs()

    def start_due_jobs(self) -> None:
        """Start the jobs that are next. Those that only have to be ended need no slot."""
        if not self._accepting:
            return
        waiting: dict[JobKindName, list[JobRecord]] = {name: [] for name in self.kinds}
        for record in rules.list_unfinished_jobs(self._catalog.state):
            if record.name in self._active_jobs:
                continue
            if rules.is_ending(record):
                self._start_work(record, holds_slot=False)
            else:
                waiting[record.kind].append(record)
        for name, kind in self.kinds.items():
            for record in kind.choose_due(waiting[name], self._list_running(kind)):
                self._start_work(record, holds_slot=True)
        self._set_limit_timer()

    async def check_new_job(self, kind: JobKind, job: Job) -> None:
        """Raises a ServingError for what this server does not allow a new job, or cannot do for it."""
        await self.check_settings(kind, job)
        await kind.check_output_writable(job)

    async def check_settings(self, kind: JobKind, job: Job) -> None:
        """Raises what `JobKind.check_settings` raises."""
        await self._threads.run(kind.check_settings, job)

    async def cancel(self, name: str) -> JobRecord:
        """End a job, if it has not ended."""
        record = await self._catalog.change(rules.cancel_job, name)
        await self._stop_process(record)
        return record

    def fail_jobs_missing_version(self, state: CatalogState) -> None:
        """Mark jobs failing whose version is gone in the new state."""
        if not self._accepting:
            return
        for record in rules.list_unfinished_jobs(state):
            if record.target is None or rules.is_ending(record) or rules.find_used_version(state, record):
                continue
            # If it fails, the next change of the state retries it.
            self._supervisor.start_task("job", self._fail_for_deleted_version(record), title=record.name)

    async def suspend(self) -> None:
        """Stop all processes without a change of state; `resume` starts again, here or at another server."""
        note = _STOP_NOTE if self._find_server() is None else _HAND_OVER_NOTE
        self._accepting = False
        if self._limit_timer is not None:
            self._limit_timer.cancel()
        left = [name for name, running in self._active_jobs.items() if running.attempt is not None]
        for name in left:
            if not self._active_jobs[name].stop.is_set():
                log = self.job_log(self._catalog.state.jobs[name])
                await self._threads.run(log.add_note, note)
        tasks = [running.task for running in self._active_jobs.values() if running.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        copies = [asyncio.create_task(self._copy_log(self._catalog.state.jobs[name])) for name in left]
        if copies:
            _, unfinished = await asyncio.wait(copies, timeout=_COPY_SECONDS)
            for copying in unfinished:
                copying.cancel()

    async def hand_over(self) -> None:
        """Stop all processes: another server goes on with the jobs."""
        await self.suspend()

    def apply_commit(self, commit: Commit) -> None:
        """Start and end jobs as other servers have been asked to."""
        changed = [record for record in commit.changes.values() if isinstance(record, JobRecord)]
        for record in changed:
            running = self._active_jobs.get(record.name)
            if running is not None and rules.is_ending(record) and not running.stop.is_set():
                self._supervisor.start_task("job", self._stop_process(record), title=record.name)
        if changed:
            self.start_due_jobs()
        deleted = [
            commit.before.jobs[name].uid
            for (table, name), record in commit.changes.items()
            if table == "jobs" and record is None and name in commit.before.jobs
        ]
        if deleted:
            self._supervisor.start_task("job", self._remove_folders(deleted), title="logs of deleted jobs")

    def is_working_on(self, name: str) -> bool:
        """Whether work on a job is not over yet, whatever its state."""
        return name in self._active_jobs

    async def remove_logs(self, uids: Collection[str]) -> None:
        """Remove the logs of jobs that are deleted, and their copies."""
        await self._remove_folders(uids)
        if self._log_copies is not None and uids:
            await self._log_copies.remove(uids)

    async def _remove_folders(self, uids: Iterable[str]) -> None:
        for uid in uids:
            await self._threads.run(remove_folder, self._folder / uid)

    # ---- copies of logs, for other servers

    async def copy_missing_logs(self) -> None:
        """Copy the logs of jobs that a kill, or a place that could not be reached, has kept from it."""
        found = await self._threads.run(self._list_uncopied, self._catalog.state)
        for record in found:
            if record.name not in self._active_jobs:
                await self._copy_log(record)

    def _list_uncopied(self, state: CatalogState) -> Sequence[JobRecord]:
        if self._log_copies is None or not self._folder.is_dir():
            return ()
        here = {folder.name for folder in self._folder.iterdir() if not (folder / COPIED_FILE).exists()}
        return [record for record in state.jobs.values() if record.uid in here] if here else ()

    async def _copy_log(self, record: JobRecord) -> None:
        own = self._find_server()
        if self._log_copies is not None and own is not None:
            await self._log_copies.copy(record, own)

    # ---- time limits

    def _set_limit_timer(self) -> None:
        """Wake up when the next job has waited or run for as long as it may."""
        if self._limit_timer is not None:
            self._limit_timer.cancel()
        deadlines = [deadline.time for _, deadline in self._list_deadlines()]
        if deadlines:
            now = datetime.datetime.now(datetime.UTC)
            seconds = min(max(0.0, (min(deadlines) - now).total_seconds()), _MAX_TIMER_SECONDS)
            self._limit_timer = asyncio.get_running_loop().call_later(seconds, self._start_cancelling)

    def _list_deadlines(self) -> list[tuple[JobRecord, JobDeadline]]:
        unfinished = rules.list_unfinished_jobs(self._catalog.state)
        found = (
            (record, find_deadline(record, self.kinds[record.kind].find_time_limits(record.job)))
            for record in unfinished
            if not rules.is_ending(record)
        )
        return [(record, deadline) for record, deadline in found if deadline is not None]

    def _start_cancelling(self) -> None:
        if self._accepting:
            self._supervisor.start_task("job", self._cancel_overdue(), title="time limits")

    async def _cancel_overdue(self) -> None:
        self._catalog.set_work_fence()
        now = datetime.datetime.now(datetime.UTC)
        for record, deadline in self._list_deadlines():
            if deadline.time <= now:
                change = self._catalog.change_with_retry
                await self._stop_process(await change(rules.cancel_job, record.name, deadline.reason))
        self._set_limit_timer()

    # ---- progress

    def with_current_output(self, record: JobRecord) -> JobRecord:
        return self.kinds[record.kind].add_details(self._with_attempt_output(record))

    def _with_attempt_output(self, record: JobRecord) -> JobRecord:
        attempt = self._find_attempt(record)
        output = None if attempt is None else attempt.output
        return record if output is None else rules.with_output(record, output)

    def render_progress(self, record: JobRecord) -> Mapping[str, Any]:
        """What is known of a job beyond its fields; most only while it is worked on."""
        attempt = self._find_attempt(record)
        rendered = self.kinds[record.kind].render_progress(self._with_attempt_output(record), attempt)
        return {
            "phase": "" if attempt is None else attempt.phase,
            "attempt": record.attempt,
            "waitReason": self.explain_wait(record),
            **rendered,
        }

    def explain_wait(self, record: JobRecord) -> str:
        """Why a job has not started yet; "" once it has."""
        if record.has_ended or record.name in self._active_jobs:
            return ""
        kind = self.kinds[record.kind]
        unfinished = rules.list_unfinished_jobs(self._catalog.state)
        waiting = [one for one in unfinished if one.kind is record.kind and one.name not in self._active_jobs]
        return kind.explain_wait(record, waiting, self._list_running(kind))

    def job_log(self, record: JobRecord) -> JobLog:
        """The job's log, over all its attempts."""
        return JobLog(self._folder / record.uid / LOG_FILE)

    def iter_log_lines(
        self, record: JobRecord, since: int, place: int = 0, folder: Path | None = None
    ) -> Iterator[JobLogLine]:
        """All lines of the log, in order; some of those before a time may be left out.

        The time is in microseconds since the epoch. `folder` has the copy of what another server has written.
        `place` is that of the server among those that have worked on the job. Blocks.
        """
        kind, folder = self.kinds[record.kind], folder or self._folder / record.uid
        begin = int(datetime.datetime.fromisoformat(record.job.create_time).timestamp()) * 1_000_000
        written = parse_log_lines(JobLog(folder / LOG_FILE).read_text(), begin, kind.log_task, place=place)
        others = kind.iter_extra_log_lines(folder, since)
        return heapq.merge(written, others, key=lambda line: (line.time, line.number))

    def read_last_lines(self, record: JobRecord, count: int, folder: Path | None = None) -> Sequence[str]:
        """The texts of the last lines of the log, or of a copy of it in `folder`. Blocks."""
        folder = folder or self._folder / record.uid
        others = self.kinds[record.kind].read_last_extra_lines(folder, count)
        return [*JobLog(folder / LOG_FILE).read_tail(count), *others][-count:]

    def _find_attempt(self, record: JobRecord) -> JobAttempt | None:
        active = self._active_jobs.get(record.name)
        return None if active is None or record.has_ended else active.attempt

    # ---- one job

    def _start_work(self, record: JobRecord, *, holds_slot: bool) -> None:
        running = self._active_jobs[record.name] = _ActiveJob(holds_slot)
        running.task = self._supervisor.start_task(
            "job", self._run_job(record.name, running), title=record.name
        )

    def _list_running(self, kind: JobKind) -> list[JobRecord]:
        """The jobs of a kind that take up slots, oldest first."""
        jobs = self._catalog.state.jobs
        names = (name for name, active in self._active_jobs.items() if active.holds_slot)
        found = (jobs[name] for name in names if self.kinds[jobs[name].kind] is kind)
        return sorted(found, key=operator.attrgetter("number"))

    async def _fail_for_deleted_version(self, record: JobRecord) -> None:
        self._catalog.set_work_fence()
        reason = (
            f"The version {record.target} was deleted while the job was using it. Submit the job again, "
            "under another id, with a version that is there."
        )
        await self._stop_process(await self._catalog.change(rules.fail_job, record.name, reason))

    async def _stop_process(self, record: JobRecord) -> None:
        """End what works on a job that is ending, and write down why."""
        running = self._active_jobs.get(record.name)
        is_first = running is not None and not running.stop.is_set()
        if running is not None:
            running.stop.set()
        self.start_due_jobs()
        reason = record.failure or record.cancellation
        if is_first and reason:  # a job that has ended meanwhile has none
            await self._threads.run(self.job_log(record).add_note, reason)

    async def _run_job(self, name: str, running: _ActiveJob) -> None:
        self._catalog.set_work_fence()
        no_errors = streak = ErrorStreak(self._timing.error_delays)
        try:
            while not (record := self._catalog.state.jobs[name]).has_ended:
                try:
                    if streak.is_exhausted:
                        await self._give_up(record, streak)
                    else:
                        await self._advance_job(record, running)
                    streak = no_errors
                except Exception as error:
                    was_over, streak = streak.is_exhausted, streak.add(error)
                    self._supervisor.report_error("job", error, f"{name}; {streak.errors} in a row")
                    if was_over or not streak.is_exhausted:
                        await _wait_after_error(running, streak.delay)
            logger.info("%s: %s %s", name, record.job.state, record.job.error_message)
            # What is left if it fails is removed at the next start of the server.
            await self._threads.run(self._remove_work_files, record.uid)
            if self._log_copies is not None:
                self._supervisor.start_task("job", self._copy_log(record), title=f"log of {name}")
        finally:
            del self._active_jobs[name]
            self.start_due_jobs()

    async def _give_up(self, record: JobRecord, streak: ErrorStreak) -> None:
        """Fail a job after errors of the server's own; end one that is ending without a cleanup."""
        change = self._catalog.change_with_retry
        if rules.is_ending(record):
            leftovers = self.kinds[record.kind].describe_leftovers(record)
            note = f"{leftovers}: {streak.reason}" if leftovers else ""
            await change(rules.end_stopped_job, record.name, note)
            return
        reason = (
            f"The server failed at this job {streak.failures} times in a row: {streak.reason.rstrip('.')}. "
            "That is no fault of the job. The server's log tells more; submit the job again, under another "
            "id, when the cause is mended."
        )
        await self._stop_process(await change(rules.fail_job, record.name, reason))

    async def _advance_job(self, record: JobRecord, running: _ActiveJob) -> None:
        if rules.is_ending(record):
            await self._catalog.change(rules.record_server, record.name, self._find_server())
            note = await self._clean_up(record)
            await self._catalog.change(rules.end_stopped_job, record.name, note)
            return
        await self._wait_after_lost_attempt(record, running)
        if record.target is not None and rules.find_used_version(self._catalog.state, record) is None:
            await self._fail_for_deleted_version(record)
            return
        output = self.kinds[record.kind].build_next_output(record)
        record = await self._catalog.change(rules.start_attempt, record.name, output, self._find_server())
        if record.has_ended or rules.is_ending(record):
            return
        await self._record_attempt_result(record, running, await self._run_attempt(record, running))

    async def _wait_after_lost_attempt(self, record: JobRecord, running: _ActiveJob) -> None:
        """Wait after a lost attempt, unless the job is ending."""
        if record.lost:
            pauses = self._timing.retry_delays
            await _wait_for_stop(running.stop, pauses[min(record.lost, len(pauses)) - 1])

    async def _run_attempt(self, record: JobRecord, running: _ActiveJob) -> AttemptResult:
        kind = self.kinds[record.kind]
        version = rules.find_used_version(self._catalog.state, record)
        try:
            await self.check_settings(kind, record.job)
            if version is not None and self._fetch_files is not None:
                version = await self._fetch_files(version)
        except (FailedPrecondition, InvalidArgument, Unimplemented) as error:  # a setting has changed
            return FailedAttempt(error.message, kind.build_next_output(record))
        log = self.job_log(record)
        if record.attempt > 1:
            reason = "" if running.attempt else self._describe_takeover()
            await self._threads.run(log.add_note, f"{reason}Attempt {record.attempt} begins.")
        attempt = running.attempt = kind.create_attempt(record, version, self._folder / record.uid)
        has_begun = False

        async def handle_report() -> None:
            nonlocal has_begun
            begins = attempt.is_running and not has_begun
            has_begun = attempt.is_running
            if begins or time.monotonic() >= running.saved_at + self._timing.save_interval:
                await self._save_progress(record, running)

        fork = await self._threads.run(kind.plan_fork, attempt)
        launcher = self._create_launcher(kind, self._timing.silence_seconds, fork)
        directing = asyncio.create_task(kind.direct(record, attempt))
        try:
            return await self._run_process(launcher, attempt, record, handle_report, running.stop)
        finally:
            directing.cancel()
            await asyncio.wait([directing])
            # Before the result is written down: a program may have filled the disk with what is in it.
            await self._threads.run(remove_folder, self._folder / record.uid / SCRATCH_FOLDER)

    def _describe_takeover(self) -> str:
        """Why a job begins another attempt though none was lost here."""
        own = self._find_server()
        if own is None:
            return "The server has started, and the job goes on. "
        return f"The job goes on at {own.name}. "

    def _create_launcher(
        self, kind: JobKind, silence_seconds: float, fork: ForkPlan | None = None
    ) -> JobProcessLauncher:
        return JobProcessLauncher(
            kind.command,
            kind.environment,
            silence_seconds,
            kind.grace_seconds,
            kind.oom_score,
            self._threads,
            self._pool,
            self._processes,
            fork,
        )

    async def _run_process(
        self,
        launcher: JobProcessLauncher,
        attempt: JobAttempt,
        record: JobRecord,
        on_report: ReportHandler,
        stop: asyncio.Event,
    ) -> AttemptResult:
        try:
            return await launcher.run(attempt, self.job_log(record), on_report, stop)
        except OSError as error:
            return LostProcess(f"The job's process could not be started: {error}.")

    async def _record_attempt_result(
        self, record: JobRecord, running: _ActiveJob, ending: AttemptResult
    ) -> None:
        # A finished attempt must not be repeated because its result was not stored.
        change, name = self._catalog.change_with_retry, record.name
        match ending:
            case SucceededAttempt(output):
                if not await self._deploy_results(record, output):
                    await change(rules.mark_succeeded, name, output)
            case FailedAttempt(message, output):
                await change(rules.mark_failed, name, message, output)
            case LostProcess(reason):
                await self._save_progress(record, running)
                if rules.is_ending(self._catalog.state.jobs[name]):
                    return  # it was stopped on purpose
                logger.warning("%s: attempt %d is lost. %s", name, record.attempt, reason)
                await self._threads.run(self.job_log(record).add_note, reason)
                await change(rules.record_lost_attempt, name, reason, _MAX_LOST_ATTEMPTS)

    async def _deploy_results(self, record: JobRecord, output: JobOutput) -> bool:
        """End a job that becomes a version, and begin to create that; False if it does not become one."""
        try:
            planned = await self.kinds[record.kind].plan_version(record)
            if planned is None:
                return False
            await self._operations.check_sources(planned.version)
            operation = await self._catalog.change_with_retry(
                rules.mark_succeeded_and_deploy, record.name, output, planned, most=self._max_versions
            )
        except Exception as error:
            # The job has done its work, and must not repeat it.
            if not isinstance(error, ServingError):
                self._supervisor.report_error("job", error, record.name)
            note = f"The job's model is not deployed: {explain_error(error)}"
            logger.warning("%s: %s", record.name, note)
            await self._threads.run(self.job_log(record).add_note, note)
            return False
        self._operations.begin(operation)
        note = f"The job's model is deployed as version {planned.version.name} of {planned.model}."
        await self._threads.run(self.job_log(record).add_note, note)
        return True

    async def _save_progress(self, record: JobRecord, running: _ActiveJob) -> None:
        attempt = running.attempt
        if attempt is None:
            return
        running.saved_at = time.monotonic()
        try:
            await self._threads.run(self.job_log(record).trim)
            await self._catalog.change(
                rules.record_progress, record.name, attempt.output, running=attempt.is_running
            )
        except Unavailable as error:
            logger.warning("the progress of %s cannot be written now: %s", record.name, error.message)
        except Exception:
            # That is no reason to end the attempt.
            logger.exception("the progress of %s cannot be written down", record.name)
        if attempt.is_running:
            self._set_limit_timer()

    async def _clean_up(self, record: JobRecord) -> str:
        """Remove what the job's attempts have left behind; returns a note for its owner if some remains."""
        kind, folder = self.kinds[record.kind], self._folder / record.uid
        attempt = kind.create_cleanup(record, rules.find_used_version(self._catalog.state, record), folder)
        if attempt is None:
            return ""
        launcher = self._create_launcher(kind, _CLEANUP_SILENCE_SECONDS)
        reason = ""
        for _ in range(_MAX_CLEANUP_ATTEMPTS):
            match await self._run_process(launcher, attempt, record, _ignore_report, asyncio.Event()):
                case SucceededAttempt():
                    return ""
                case FailedAttempt(message=reason):
                    break
                case LostProcess(reason):
                    continue
        note = f"{kind.describe_leftovers(record)}: {reason}"
        logger.warning("%s: %s", record.name, note)
        return note

    def _remove_work_files(self, uid: str) -> None:
        """Remove all local files of a job but its log. Blocks."""
        JobLog(self._folder / uid / LOG_FILE).trim()
        for entry in (self._folder / uid).glob("*"):
            if entry.name in _KEPT_FILES:
                continue
            if entry.is_dir() and not entry.is_symlink():
                remove_folder(entry)
            else:
                entry.unlink(missing_ok=True)


async def _ignore_report() -> None: ...


async def _wait_for_stop(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


async def _wait_after_error(running: _ActiveJob, seconds: float) -> None:
    """Wait before another try; not longer than until the job is told to end."""
    if running.stop.is_set():
        await asyncio.sleep(seconds)
    else:
        await _wait_for_stop(running.stop, seconds)
